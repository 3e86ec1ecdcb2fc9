// What is kept of other processes' memory, and for how long. The publisher is in this process, and the
// backend knows none of its addresses, so that everything is mapped as if it were another's.
#include "transfer/shared_memory.hpp"

#include <atomic>
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "peer/publisher.hpp"

namespace sidestep::transfer {
namespace {

// Counts what it opens and closes; the address tells the handle.
class OpeningBackend final : public backend::Backend, public backend::Sharer {
public:
    struct Counts {
        std::atomic<int> opened{0};
        std::atomic<int> closed{0};
        std::function<bool(const Buffer&)> knows;
    };
    explicit OpeningBackend(Counts& counts) : counts_(counts) {}

    std::string_view name() const override { return "opening"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes(""); }
    std::vector<backend::Capability> capabilities() const override { return {}; }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        if (!counts_.knows || !counts_.knows(buffer)) return std::optional<backend::Description>();
        return std::optional(backend::Description{buffer.place(), MemoryKind::device, buffer.size(), 0});
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer&,
                                                          const backend::AttachOptions&) override {
        return Error{ErrorCode::unsupported, "moves nothing", {}, {}};
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight&) override {
        return backend::Progress::done;
    }
    backend::Sharer* sharer() override { return this; }
    Result<std::optional<backend::Exported>> share(const Buffer&) override {
        return std::optional<backend::Exported>();
    }
    Result<std::optional<Allocation>> open(const backend::Exported& exported) override {
        if (exported.scheme != "test") return std::optional<Allocation>();
        const int number = ++counts_.opened;
        auto* address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(number) << 32);
        return std::optional(Allocation(Buffer::gpu(0, address, 1_MiB), MemoryKind::device,
                                        [&counts = counts_] { ++counts.closed; }));
    }

private:
    Counts& counts_;
};

class SharedMemoryTest : public testing::Test {
protected:
    SharedMemoryTest() {
        std::string name = "/tmp/sidestep-shared-XXXXXX";
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        path = name;
        Topology::Parts parts;
        parts.name = "test";
        topology.emplace(*Topology::create(std::move(parts)));
        registry.add(std::make_unique<OpeningBackend>(counts), *topology);
        shared = std::make_unique<SharedMemory>(registry, path);
    }
    ~SharedMemoryTest() override {
        shared.reset();
        std::filesystem::remove_all(path);
    }

    std::uint64_t publish(const std::string& name, const std::string& handle, std::uint64_t identity,
                          Bytes offset = 0, const std::string& scheme = "test") {
        peer::MemoryOffer offer;
        offer.scheme = scheme;
        offer.handle = handle;
        offer.place = Place::gpu(0);
        offer.size = 4096;
        offer.offset = offset;
        offer.identity = identity;
        offer.address = 0x1000;
        auto id = publisher.publish(*peer::Folder::open(path, true), name, offer, -1);
        EXPECT_TRUE(id) << id.error().to_string();
        return *id;
    }
    Result<Import> import(const std::string& name) { return shared->import(Buffer::shared(name)); }
    std::uintptr_t address_of(const std::string& name) {
        auto found = import(name);
        EXPECT_TRUE(found) << found.error().to_string();
        return found ? reinterpret_cast<std::uintptr_t>(found->buffer.address()) : 0;
    }
    template <typename Condition>
    static bool soon(Condition condition) {
        for (int i = 0; i < 20'000; ++i) {
            if (condition()) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    }

    std::string path;
    OpeningBackend::Counts counts;
    std::optional<Topology> topology;
    backend::Registry registry;
    peer::Publisher publisher;
    std::unique_ptr<SharedMemory> shared;
};

TEST_F(SharedMemoryTest, OpenedOnceHoweverOftenItIsImported) {
    publish("kv", "a", 1, 256);
    const auto first = address_of("kv");
    EXPECT_EQ(first % 4096, 256u);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(address_of("kv"), first);
    EXPECT_EQ(counts.opened, 1);
    EXPECT_EQ(counts.closed, 0);
}

TEST_F(SharedMemoryTest, OneMappingForAllPartsOfAnAllocation) {
    for (Bytes i = 0; i < 50; ++i) publish(fmt::format("p{}", i), "arena", 1, i * 4096);
    const auto base = address_of("p0");
    for (Bytes i = 0; i < 50; ++i) EXPECT_EQ(address_of(fmt::format("p{}", i)), base + i * 4096);
    EXPECT_EQ(counts.opened, 1);
    EXPECT_EQ(counts.closed, 0);
}

TEST_F(SharedMemoryTest, WithdrawnMemoryIsLetGoWithoutBeingAskedFor) {
    const auto id = publish("kv", "a", 1);
    address_of("kv");
    publisher.withdraw(id);
    EXPECT_TRUE(soon([&] { return counts.closed == 1; }));
}

TEST_F(SharedMemoryTest, ALeaseOutlivesTheName) {
    const auto id = publish("kv", "a", 1);
    auto held = import("kv");
    ASSERT_TRUE(held) << held.error().to_string();
    publisher.withdraw(id);
    const auto gone = import("kv");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::not_found);
    EXPECT_EQ(counts.closed, 0);
    held = Error{};
    EXPECT_TRUE(soon([&] { return counts.closed == 1; }))
        << "whoever took the name out may hold it a moment longer";
}

TEST_F(SharedMemoryTest, RepublishedMemoryIsOpenedAnew) {
    auto id = publish("kv", "a", 1);
    const auto before = address_of("kv");
    publisher.withdraw(id);
    publish("kv", "b", 2);
    EXPECT_NE(address_of("kv"), before);
    EXPECT_EQ(counts.opened, 2);
}

// The handle is the same and the identity another: the address was freed and given out again. What was kept
// of it goes before the new one is opened.
TEST_F(SharedMemoryTest, AnAddressThatWasGivenOutAgainIsNoticed) {
    publish("old", "a", 1);
    const auto before = address_of("old");
    publish("new", "a", 2);
    EXPECT_NE(address_of("new"), before);
    EXPECT_EQ(counts.opened, 2);
    EXPECT_EQ(counts.closed, 1);
}

TEST_F(SharedMemoryTest, NoMoreNamesThanItsBound) {
    std::string first;
    for (int i = 0; i < 1100; ++i) {
        const std::string name = fmt::format("n{}", i);
        publish(name, name, 1);
        address_of(name);
        address_of("n0");  // in use all the time, so never the oldest
    }
    EXPECT_EQ(counts.opened, 1100);
    EXPECT_TRUE(soon([&] { return counts.closed == 1100 - 1024; }));
    address_of("n0");
    EXPECT_EQ(counts.opened, 1100);
    address_of("n1");
    EXPECT_EQ(counts.opened, 1101);
}

TEST_F(SharedMemoryTest, OwnMemoryIsUsedAsItIs) {
    counts.knows = [](const Buffer& buffer) { return buffer.address() == reinterpret_cast<void*>(0x1000); };
    publish("own", "a", 1);
    EXPECT_EQ(address_of("own"), 0x1000u);
    EXPECT_EQ(counts.opened, 0);
}

TEST_F(SharedMemoryTest, ASchemeThatNobodyKnows) {
    publish("kv", "a", 1, 0, "other");
    const auto found = import("kv");
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::unsupported) << found.error().to_string();
}

TEST_F(SharedMemoryTest, APublisherThatPromisesTooMuch) {
    publish("kv", "a", 1, 1_MiB - 4095);
    const auto found = import("kv");
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::io_error) << found.error().to_string();
    EXPECT_EQ(counts.closed, 1);
}

TEST_F(SharedMemoryTest, ManyThreadsAtOnceMapOnce) {
    publish("kv", "a", 1);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 50; ++i) EXPECT_TRUE(import("kv"));
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(counts.opened, 1);
}

}  // namespace
}  // namespace sidestep::transfer
