#include "transfer/ends.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fake_backend.hpp"

namespace sidestep {
namespace {

class EndsTest : public testing::Test {
protected:
    EndsTest() {
        Topology::Parts parts;
        parts.name = "test";
        parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
        parts.devices.push_back({DeviceKind::gpu, 0, "gpu:0", "", "", 0, 1_GiB});
        parts.links.push_back({0, 1, LinkKind::pcie, 16, 50, 1});
        topology.emplace(*Topology::create(std::move(parts)));
        registry.add(std::make_unique<test::FakeBackend>(test::FakeBackend::Script{}), *topology);
    }
    ErrorCode code(const Buffer& from, const Buffer& to) {
        const auto ends = transfer::resolve_ends(*topology, registry, from, to);
        if (ends) return ErrorCode{0};
        last = ends.error().to_string();
        return ends.error().code;
    }

    std::optional<Topology> topology;
    backend::Registry registry;
    char memory[256] = {};
    std::string last;
};

TEST_F(EndsTest, AgreeingEndsResolve) {
    const auto ends = transfer::resolve_ends(*topology, registry, Buffer::host(memory, 128),
                                             Buffer::gpu(0, memory + 128, 128));
    ASSERT_TRUE(ends) << ends.error().to_string();
    EXPECT_EQ(ends->bytes, 128u);
    EXPECT_EQ(ends->to_memory, MemoryKind::device);
}

TEST_F(EndsTest, PlacesThatAreNotThere) {
    EXPECT_EQ(code(Buffer::host(memory, 8), Buffer::gpu(1, memory + 8, 8)), ErrorCode::not_found);
    EXPECT_NE(last.find("one GPU, gpu:0"), std::string::npos) << last;
    EXPECT_EQ(code(Buffer::memory(Place::host(3), memory, 8), Buffer::host(memory + 8, 8)),
              ErrorCode::not_found);
    EXPECT_EQ(code(Buffer::memory(Place::host().on("far"), memory, 8), Buffer::host(memory + 8, 8)),
              ErrorCode::unsupported);
}

TEST_F(EndsTest, SizesThatDoNotFit) {
    EXPECT_EQ(code(Buffer::host(memory, 8), Buffer::host(memory + 16, 9)), ErrorCode::invalid_argument);
    EXPECT_NE(last.find("8 bytes and the target 9"), std::string::npos) << last;
    EXPECT_EQ(code(Buffer::host(memory, Buffer::whole), Buffer::host(memory + 16, 9)),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(Buffer::file("x", 5, Buffer::whole), Buffer::host(memory, 9)),
              ErrorCode::invalid_argument);
}

TEST_F(EndsTest, OverlapsNullAndReadOnly) {
    EXPECT_EQ(code(Buffer::host(memory, 64), Buffer::host(memory + 63, 64)), ErrorCode::invalid_argument);
    EXPECT_EQ(code(Buffer::host(memory + 63, 64), Buffer::host(memory, 64)), ErrorCode::invalid_argument);
    EXPECT_EQ(code(Buffer::host(memory, 64), Buffer::host(memory + 64, 64)), ErrorCode{0});
    EXPECT_EQ(code(Buffer::host(static_cast<void*>(nullptr), 64), Buffer::host(memory, 64)),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code(Buffer::host(memory, 64), Buffer::host(static_cast<const void*>(memory + 64), 64)),
              ErrorCode::invalid_argument);
}

TEST_F(EndsTest, AFileWithoutABackendIsRefused) {
    // The fake describes every buffer; a registry without backends does not.
    const backend::Registry nobody;
    const auto ends = transfer::resolve_ends(*topology, nobody, Buffer::file("x"), Buffer::host(memory, 8));
    ASSERT_FALSE(ends);
    EXPECT_EQ(ends.error().code, ErrorCode::unsupported);
}

// Of the backends that are not usable the one that would reach the place gives the reason, whatever their
// order.
TEST_F(EndsTest, MemoryThatNobodyReachesNamesWhoWould) {
    backend::Registry nobody;
    for (const auto& [name, kind] :
         {std::pair{"cuda", PlaceKind::gpu}, std::pair{"p2pmem", PlaceKind::p2pmem}}) {
        backend::Capability capability;
        capability.to = kind;
        nobody.add_absent(
            {name, backend::Support::no(fmt::format("without {}", name)), {capability}, {}, {}});
    }
    const auto place = Place::p2pmem("0000:03:00.0");
    const auto ends = transfer::resolve_ends(*topology, nobody, Buffer::host(memory, 8),
                                             Buffer::memory(place, memory + 8, 8));
    ASSERT_FALSE(ends);
    EXPECT_EQ(ends.error().code, ErrorCode::path_unavailable);
    EXPECT_EQ(ends.error().hint, "p2pmem: without p2pmem");
    const auto gpu =
        transfer::resolve_ends(*topology, nobody, Buffer::host(memory, 8), Buffer::gpu(0, memory + 8, 8));
    ASSERT_FALSE(gpu);
    EXPECT_EQ(gpu.error().hint, "cuda: without cuda");
}

TEST_F(EndsTest, AnEmulatedMachineHasNoPeerToPeerMemory) {
    const auto machine = Topology::open("dgx-h100");
    ASSERT_TRUE(machine);
    const auto there = transfer::check_place(*machine, Place::p2pmem("0000:03:00.0"));
    ASSERT_FALSE(there);
    EXPECT_EQ(there.error().code, ErrorCode::not_found);
    EXPECT_TRUE(transfer::check_place(*topology, Place::p2pmem("0000:03:00.0")).ok());
}

}  // namespace
}  // namespace sidestep
