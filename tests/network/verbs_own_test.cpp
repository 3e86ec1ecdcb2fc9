// Memory of a GPU of the machine that asks, and RDMA cards that take dma-bufs, in a virtual machine (tests/vm/jobs/verbs):
// Soft-RoCE with the library that SIDESTEP_DMA_BUF_VERBS names. What the emulated GPU hands out is the memfd of its pages.
#include <sys/mman.h>

#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include "backends/host/host_backend.hpp"
#include "backends/verbs/verbs_engine.hpp"
#include "tests/network/session_rig.hpp"
#include "transfer/engine.hpp"
#include "wire/own_memory.hpp"

namespace sidestep::wire {
namespace {

// The host backend, whose emulated GPUs hand out their memory.
class Exporting final : public backend::Backend, public backend::DmaBufs {
public:
    std::string_view name() const override { return inner_->name(); }
    backend::Support probe(const Topology& topology) override { return inner_->probe(topology); }
    std::vector<backend::Capability> capabilities() const override { return inner_->capabilities(); }
    backend::Allocator* allocator() override { return inner_->allocator(); }
    backend::Batcher* batcher() override { return inner_->batcher(); }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        return inner_->describe(buffer);
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        return inner_->attach(buffer, options);
    }
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        return inner_->start(piece, flight);
    }

    Result<backend::DmaBuf> dma_buf(const Buffer& memory) override {
        if (++handed_out == refuses)
            return Error{ErrorCode::out_of_memory, "the GPU's window is full", memory.to_string(), {}};
        auto shared = inner_->sharer()->share(memory);
        if (!shared || !*shared)
            return Error{ErrorCode::internal, "not shared", shared ? "" : shared.error().to_string(), {}};
        return backend::DmaBuf{(*shared)->descriptor, (*shared)->offset, (*shared)->keeps};
    }
    Result<void> see_writes(const Place& gpu) override { return inner().see_writes(gpu); }
    Result<Allocation> scratch(const Place& gpu, Bytes size) override { return inner().scratch(gpu, size); }
    Result<void> copy_in(const Buffer& to, const void* from) override { return inner().copy_in(to, from); }
    Result<void> copy_out(const Buffer& from, void* to) override { return inner().copy_out(from, to); }

    int handed_out = 0;
    int refuses = 0;  // that one of them

private:
    backend::DmaBufs& inner() const { return *backend::dma_bufs_of(*inner_); }
    const std::unique_ptr<backend::Backend> inner_ = backends::host::create({});
};

class VerbsOwn : public testing::Test {
protected:
    static constexpr Bytes memory_bytes = 8 * test::mib;
    static constexpr Bytes bytes = 5 * test::mib + 100;
    static constexpr Bytes at = 8192 + 100;  // 100 bytes into a page
    void SetUp() override {
        if (test::verbs_card() == nullptr) GTEST_SKIP() << "SIDESTEP_TEST_VERBS names no RDMA card";
        const char* const library = std::getenv("SIDESTEP_DMA_BUF_VERBS");
        const char* const other = std::getenv("SIDESTEP_TEST_OTHER_VERBS");
        ASSERT_TRUE(library != nullptr && other != nullptr) << "no library, or one card alone";
        backends::verbs::Options options;
        options.cards = {test::verbs_card(), other};
        options.library = library;
        auto made = backends::verbs::Engine::create(options).value();
        verbs = made.get();
        std::vector<std::unique_ptr<backend::NetworkEngine>> all;
        all.push_back(std::move(made));
        engines = std::make_unique<Engines>(std::move(all));
        auto exporting = std::make_unique<Exporting>();
        exporter = exporting.get();
        registry.add(std::move(exporting), topology);
        engine = std::make_unique<transfer::Engine>(topology, registry);
        own = std::make_unique<OwnMemory>(topology, registry, *engine, *engines,
                                          [this] { client->go_on_with_slots(); });
        gpu = transfer::allocate(registry, Place::gpu(0), memory_bytes, MemoryKind::device).value();
        ASSERT_TRUE(exporter->dma_buf(gpu.buffer()));  // from now on its pages stay where they are
        std::memset(gpu.buffer().address(), '#', memory_bytes);
        client->use(verbs->link(client));
        node->use(verbs->link(node));
        for (int i = 0; i < 2; ++i) {
            test::Ends ends = test::connected();
            ASSERT_TRUE(client->link()->add(test::number_of(std::move(ends.one))).ok());
            ASSERT_TRUE(node->link()->add(test::number_of(std::move(ends.other))).ok());
        }
    }
    void TearDown() override {
        for (const auto& session : {client, node}) {
            session->give_up(test::some_error(ErrorCode::cancelled));
            if (session->link()) session->link()->end(test::some_error(ErrorCode::cancelled));
        }
        engine.reset();
    }
    char* address() const { return static_cast<char*>(gpu.buffer().address()); }
    Result<std::shared_ptr<Region>> region(backend::Access access, std::string& way) {
        backend::AttachOptions options;
        options.access = access;
        return own->region(gpu.buffer(), options, way);
    }
    // There from the GPU's memory, and back into it, in which nothing beside it changes. How each was made ready.
    std::array<std::string, 2> there_and_back() {
        std::array<std::string, 2> ways;
        const std::string text = sidestep::test::text_of(bytes, 1), none(bytes, '#');
        test::Guarded memory(bytes);
        const std::uint64_t number = node->grant(test::region_of(memory));
        std::memcpy(address() + at, text.data(), bytes);
        test::Moving put, get;
        const auto out = region(backend::Access::read, ways[0]);
        EXPECT_TRUE(out &&
                    test::begun(put, client->push(address() + at, number, 0, bytes, put.flight, *out)));
        EXPECT_TRUE(put.over());
        EXPECT_TRUE(put.code() == 0 && memory.whole() && memory.text() == text) << put.code();
        std::memcpy(address() + at, none.data(), bytes);
        const auto in = region(backend::Access::write, ways[1]);
        EXPECT_TRUE(in && client->pull(number, 0, bytes, address() + at, get.flight, *in));
        EXPECT_TRUE(get.over());
        EXPECT_TRUE(get.code() == 0 && std::string(address() + at, bytes) == text) << get.code();
        EXPECT_EQ(std::string(address(), at), std::string(at, '#'));
        EXPECT_EQ(std::string(address() + at + bytes, memory_bytes - at - bytes),
                  std::string(memory_bytes - at - bytes, '#'));
        node->withdraw(number);
        std::memcpy(address() + at, none.data(), bytes);
        return ways;
    }
    static bool says(const std::string& words, const char* what) {
        return words.find(what) != std::string::npos;
    }

    Topology topology = Topology::open("dgx-h100").value();
    backend::Registry registry;
    std::unique_ptr<transfer::Engine> engine;
    backends::verbs::Engine* verbs = nullptr;
    Exporting* exporter = nullptr;
    std::unique_ptr<Engines> engines;
    std::unique_ptr<OwnMemory> own;
    Allocation gpu;
    const std::shared_ptr<Session> client = std::make_shared<Session>("the node");
    const std::shared_ptr<Session> node = std::make_shared<Session>("the client");
};

TEST_F(VerbsOwn, GoesByDmaBuf) {
    const auto reached = own->reaches(Place::gpu(0), "verbs");
    EXPECT_TRUE(reached.usable) << reached.reason;
    const auto& counts = verbs->counts();
    const std::uint64_t out = counts.direct_out, in = counts.direct_in;
    for (const std::string& way : there_and_back())
        EXPECT_TRUE(says(way, "over RDMA straight into gpu:0 and out of it, by dma-buf and rxe")) << way;
    // The node's own memory is not prepared. What is less than a frame of 4 KiB goes by a slot.
    EXPECT_EQ(counts.direct_out - out, 5u);
    EXPECT_EQ(counts.direct_in - in, 5u);
}

// The memory on either card, and that to try them out with, one registration after the other; and the descriptors before. A GPU's
// memory has no pages that a card could take by its address.
TEST_F(VerbsOwn, WhatFailsPartWayLeavesSlots) {
    struct Case {
        const char* what;
        const char* registration;  // of the card's library, which fails
        int descriptor;            // of the GPU's driver
        const char* reason;
    };
    for (const auto& [what, registration, descriptor, reason] :
         {Case{"the first descriptor", "", 1, "the GPU's window is full"},
          Case{"that to try it out", "", 2, "the GPU's window is full"},
          Case{"the first card", "1", 0, "Cannot allocate memory"},
          Case{"the second card", "2", 0, "Cannot allocate memory"},
          Case{"the first card's trial", "3", 0, "Cannot allocate memory"},
          Case{"the second card's trial", "4", 0, "Cannot allocate memory"}}) {
        SCOPED_TRACE(what);
        const Buffer memory = gpu.buffer();
        exporter->handed_out = 0;
        exporter->refuses = descriptor;
        ::setenv("SIDESTEP_DMA_BUF_VERBS_FAILS", registration, 1);
        ASSERT_EQ(::mprotect(memory.address(), memory.size(), PROT_READ), 0);
        std::string way;
        const auto failed = region(backend::Access::read, way);
        ASSERT_EQ(::mprotect(memory.address(), memory.size(), PROT_READ | PROT_WRITE), 0);
        ASSERT_TRUE(failed) << failed.error().to_string();
        EXPECT_TRUE((*failed)->reached.empty());
        EXPECT_TRUE(says(way,
                         "memory and its host-emulated copy engine, since its cards do not reach gpu:0: "
                         "neither by dma-buf ("))
            << way;
        EXPECT_TRUE(says(way, reason) && says(way, "nor by nvidia-peermem (")) << way;
        const std::string text = sidestep::test::text_of(bytes, 2);
        std::memcpy(address() + at, text.data(), bytes);
        test::Guarded there(bytes);
        const std::uint64_t number = node->grant(test::region_of(there));
        test::Moving put;
        ASSERT_TRUE(test::begun(put, client->push(address() + at, number, 0, bytes, put.flight, *failed)));
        EXPECT_TRUE(put.over());
        EXPECT_TRUE(put.code() == 0 && there.whole() && there.text() == text) << put.code();
        node->withdraw(number);
        std::memset(address() + at, '#', bytes);
    }
    ::unsetenv("SIDESTEP_DMA_BUF_VERBS_FAILS");
    exporter->refuses = 0;
    for (const std::string& way : there_and_back())
        EXPECT_TRUE(says(way, "by dma-buf and rxe")) << "the next time: " << way;
}

}  // namespace
}  // namespace sidestep::wire
