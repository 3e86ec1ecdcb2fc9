#include "backends/host/host_backend.hpp"
#include "tests/started_piece.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

namespace sidestep::backends::host {
namespace {

using backend::Access;
using backend::Progress;

// Two GPUs that may not reach each other.
Topology::Parts machine(bool emulated) {
    Topology::Parts parts;
    parts.name = "two-gpus";
    parts.emulated = emulated;
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (int gpu = 0; gpu < 2; ++gpu) {
        parts.devices.push_back({DeviceKind::gpu, gpu, "gpu:" + std::to_string(gpu), "", "", 0, 64_MiB});
        parts.links.push_back({0, static_cast<DeviceId>(gpu + 1), LinkKind::pcie, 16, 63.015, 0.5});
    }
    const PeerAccess no{false, false, "the bridge forbids it", "move a card"};
    parts.peers = {{0, 1, no}, {1, 0, no}};
    return parts;
}

class HostBackendTest : public testing::Test {
protected:
    void open(bool emulated, HostOptions options = {.threads = 2}) {
        topology_.emplace(Topology::create(machine(emulated)).value());
        backend_ = create(options);
        support_ = backend_->probe(*topology_);
        ASSERT_TRUE(support_.usable);
    }

    Allocation take(const Place& place, Bytes bytes, MemoryKind kind) {
        auto memory = backend_->allocator()->allocate(place, bytes, kind);
        EXPECT_TRUE(memory.ok()) << memory.error().to_string();
        return memory ? std::move(*memory) : Allocation();
    }

    Error refused(const Place& place, Bytes bytes, MemoryKind kind) {
        const auto memory = backend_->allocator()->allocate(place, bytes, kind);
        EXPECT_FALSE(memory.ok());
        return memory ? Error{} : memory.error();
    }

    Error wrong(const Buffer& buffer) {
        const auto description = backend_->describe(buffer);
        EXPECT_FALSE(description.ok()) << buffer.to_string();
        return description ? Error{} : description.error();
    }

    std::optional<Topology> topology_;
    std::unique_ptr<backend::Backend> backend_;
    backend::Support support_;
};

bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST_F(HostBackendTest, TheRealMachineHasHostMemoryOnly) {
    open(false);
    EXPECT_EQ(support_.reason, "2 threads for copies");
    EXPECT_EQ(backend_->capabilities().size(), 1u);
    EXPECT_TRUE(backend_->allocator()->allocates(PlaceKind::gpu).empty());
    EXPECT_FALSE(backend_->allocator()->allocates(PlaceKind::host).has(MemoryKind::pinned));
    EXPECT_EQ(refused(Place::gpu(0), 1_MiB, MemoryKind::device).code, ErrorCode::unsupported);
    char byte = 0;
    const auto description = backend_->describe(Buffer::host(&byte, 1));
    ASSERT_TRUE(description.ok());
    EXPECT_FALSE(description->has_value());
    EXPECT_EQ(backend_->gpu_addresses(), nullptr);
    EXPECT_EQ(backend_->seats(), nullptr);
    EXPECT_EQ(backend_->attach(Buffer::gpu(0, &byte, 1), {}).error().code, ErrorCode::unsupported);
}

TEST_F(HostBackendTest, ANodeThatIsNotThereIsAnError) {
    for (const bool emulated : {false, true}) {
        open(emulated);
        const Error error = refused(Place::host(777), 1_MiB, MemoryKind::pageable);
        EXPECT_EQ(error.code, ErrorCode::not_found) << error.to_string();
        EXPECT_TRUE(says(error.message, "777")) << error.message;
        char byte = 0;
        EXPECT_EQ(backend_->attach(Buffer::memory(Place::host(777), &byte, 1), {}).error().code,
                  ErrorCode::not_found);
    }
}

TEST_F(HostBackendTest, TheExpectedRateGrowsWithTheThreadsUpToWhatMemoryGives) {
    open(false, {.threads = 1});
    const double one = backend_->capabilities()[0].max_gb_per_s;
    open(false, {.threads = 2});
    EXPECT_DOUBLE_EQ(backend_->capabilities()[0].max_gb_per_s, 2 * one);
    open(false, {.threads = 200});
    EXPECT_LT(backend_->capabilities()[0].max_gb_per_s, 200 * one);
}

TEST_F(HostBackendTest, AnEmulatedGpuGivesNoMoreThanTheModelHas) {
    open(true);
    EXPECT_EQ(support_.reason, "2 threads for copies, 2 emulated GPUs");
    Allocation max = take(Place::gpu(0), 40_MiB, MemoryKind::device);
    const Error error = refused(Place::gpu(0), 30_MiB, MemoryKind::device);
    EXPECT_EQ(error.code, ErrorCode::out_of_memory);
    EXPECT_TRUE(says(error.message, "30 MiB") && says(error.message, "24 MiB") &&
                says(error.message, "64 MiB"))
        << error.message;
    // Each has its own.
    EXPECT_TRUE(take(Place::gpu(1), 64_MiB, MemoryKind::device));
    max = Allocation();
    EXPECT_TRUE(take(Place::gpu(0), 64_MiB, MemoryKind::device));
}

TEST_F(HostBackendTest, TheOptionOverridesTheModelsMemory) {
    open(true, {.threads = 1, .emulated_gpu_memory = 1_MiB});
    EXPECT_EQ(refused(Place::gpu(1), 2_MiB, MemoryKind::device).code, ErrorCode::out_of_memory);
    EXPECT_TRUE(take(Place::gpu(1), 1_MiB, MemoryKind::device));
}

TEST_F(HostBackendTest, WhatThisMachineLacksIsNotPromised) {
    open(true, {.threads = 1, .emulated_gpu_memory = Bytes{1} << 55});
    const Error error = refused(Place::gpu(0), Bytes{1} << 50, MemoryKind::device);
    EXPECT_EQ(error.code, ErrorCode::out_of_memory);
    EXPECT_TRUE(says(error.message, "emulated gpu:0") && says(error.message, "available")) << error.message;
    // Nothing stays reserved after the refusal.
    EXPECT_TRUE(take(Place::gpu(0), 1_MiB, MemoryKind::device));
}

TEST_F(HostBackendTest, MemoryThatWasGivenButNotTouchedCountsAsGone) {
    open(false);
    // Two thirds of what there is, twice; no page of it is ever touched.
    Bytes max = Bytes{1} << 50;
    const Error error = refused(Place::host(), max, MemoryKind::pageable);
    while (!backend_->allocator()->allocate(Place::host(), max, MemoryKind::pageable).ok()) max = max / 4 * 3;
    const Allocation first = take(Place::host(), max / 3 * 2, MemoryKind::pageable);
    EXPECT_EQ(refused(Place::host(), max / 3 * 2, MemoryKind::pageable).code, ErrorCode::out_of_memory);
}

TEST_F(HostBackendTest, AnAddressIsHeldAgainstItsPlace) {
    open(true);
    const Allocation zero = take(Place::gpu(0), 1_MiB, MemoryKind::device);
    void* const address = zero.address();
    EXPECT_TRUE(backend_->describe(zero.buffer()).ok());
    EXPECT_TRUE(backend_->describe(zero.buffer().slice(1000, 24)).ok());

    Error error = wrong(Buffer::gpu(1, address, 1_MiB));
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_TRUE(says(error.message, "is memory of gpu:0, not of gpu:1")) << error.message;
    error = wrong(Buffer::host(address, 1_MiB));
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_TRUE(says(error.message, "is memory of gpu:0, not of host")) << error.message;
    EXPECT_EQ(wrong(Buffer::gpu(0, address, 1_MiB + 1)).code, ErrorCode::invalid_argument);
    EXPECT_EQ(wrong(zero.buffer().slice(1_MiB, 1)).code, ErrorCode::invalid_argument);
    char mine = 0;
    EXPECT_EQ(wrong(Buffer::gpu(0, &mine, 1)).code, ErrorCode::invalid_argument);
    EXPECT_EQ(wrong(Buffer::gpu(2, address, 1)).code, ErrorCode::not_found);
    EXPECT_EQ(refused(Place::gpu(2), 1, MemoryKind::device).code, ErrorCode::not_found);
    // attach() looks as well.
    EXPECT_EQ(backend_->attach(Buffer::gpu(1, address, 1), {}).error().code, ErrorCode::invalid_argument);
}

TEST_F(HostBackendTest, FreedMemoryIsKnownNoMore) {
    open(true);
    Allocation memory = take(Place::gpu(0), 1_MiB, MemoryKind::device);
    const Buffer buffer = memory.buffer();
    memory = Allocation();
    EXPECT_EQ(wrong(buffer).code, ErrorCode::invalid_argument);
}

TEST_F(HostBackendTest, PinnedMemoryIsToldFromPageable) {
    open(true);
    const Allocation pinned = take(Place::host(), 1_MiB, MemoryKind::pinned);
    EXPECT_EQ((*backend_->describe(pinned.buffer()))->memory, MemoryKind::pinned);
    const Allocation pageable = take(Place::host(), 1_MiB, MemoryKind::pageable);
    EXPECT_EQ((*backend_->describe(pageable.buffer()))->memory, MemoryKind::pageable);
    EXPECT_EQ(backend_->gpu_addresses()->locate(pinned.address(), 4)->memory, MemoryKind::pinned);
    EXPECT_EQ(backend_->gpu_addresses()->locate(pageable.address(), 4)->memory, MemoryKind::pageable);
    const Allocation gpu = take(Place::gpu(1), 1_MiB, MemoryKind::device);
    EXPECT_EQ(backend_->gpu_addresses()->locate(gpu.address(), 1_MiB)->place, Place::gpu(1));
    EXPECT_EQ(backend_->gpu_addresses()->locate(gpu.address(), 2_MiB).error().code,
              ErrorCode::invalid_argument);
}

class HostPieceTest : public HostBackendTest {
protected:
    std::unique_ptr<backend::Registration> attach(const Buffer& buffer, Access access) {
        backend::AttachOptions options;
        options.access = access;
        auto registration = backend_->attach(buffer, options);
        EXPECT_TRUE(registration.ok()) << registration.error().to_string();
        return registration ? std::move(*registration) : nullptr;
    }

    Error refused_piece(const Buffer& from, const Buffer& to, Bytes from_at, Bytes size,
                        std::size_t capability) {
        const auto source = attach(from, Access::read);
        const auto target = attach(to, Access::write);
        if (!source || !target) return {};
        const test::StartedPiece started(*backend_,
                                         {source.get(), from_at, target.get(), 0, size, capability, nullptr});
        EXPECT_FALSE(started.begun().ok());
        return started.begun() ? Error{} : started.begun().error();
    }
};

TEST_F(HostPieceTest, PeersThatMayNotReachEachOtherDoNot) {
    open(true);
    const Allocation zero = take(Place::gpu(0), 4_KiB, MemoryKind::device);
    const Allocation one = take(Place::gpu(1), 4_KiB, MemoryKind::device);
    const auto capabilities = backend_->capabilities();
    int tried = 0;
    for (std::size_t i = 0; i < capabilities.size(); ++i) {
        if (capabilities[i].reach != backend::Reach::peer_access) continue;
        const Error error = refused_piece(zero.buffer(), one.buffer(), 0, 4_KiB, i);
        EXPECT_EQ(error.code, ErrorCode::unsupported);
        EXPECT_EQ(error.message, "gpu:0 cannot reach gpu:1: the bridge forbids it");
        EXPECT_EQ(error.hint, "move a card");
        ++tried;
    }
    EXPECT_EQ(tried, 2);
}

TEST_F(HostPieceTest, PiecesThatMakeNoSenseAreRefused) {
    open(true);
    std::vector<char> memory(1000);
    const Buffer all = Buffer::host(memory.data(), memory.size());
    EXPECT_EQ(refused_piece(all.slice(0, 500), all.slice(500, 500), 1, 500, 0).code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(refused_piece(all.slice(0, 500), all.slice(500, 499), 0, 500, 0).code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(refused_piece(all.slice(0, 500), all.slice(500, 500), Buffer::whole, 2, 0).code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(refused_piece(all.slice(0, 500), all.slice(499, 501), 0, 500, 0).code,
              ErrorCode::invalid_argument);
    EXPECT_EQ(refused_piece(all.slice(0, 500), all.slice(500, 500), 0, 500, 99).code,
              ErrorCode::invalid_argument);
}

TEST_F(HostPieceTest, ConstMemoryIsNoTarget) {
    open(false);
    const char byte = 0;
    backend::AttachOptions options;
    options.access = Access::write;
    EXPECT_EQ(backend_->attach(Buffer::host(&byte, 1), options).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(backend_->attach(Buffer::host(static_cast<void*>(nullptr), 1), {}).error().code,
              ErrorCode::invalid_argument);
}

TEST_F(HostPieceTest, SmallCopiesAreDoneOnTheSpot) {
    open(false);
    std::vector<char> from(64_KiB + 1, 'a');
    std::vector<char> to(64_KiB + 1);
    const auto source = attach(Buffer::host(from.data(), from.size()), Access::read);
    const auto target = attach(Buffer::host(to.data(), to.size()), Access::write);
    const test::StartedPiece small(*backend_, {source.get(), 0, target.get(), 0, 64_KiB, 0, nullptr});
    EXPECT_TRUE(small.done());
    EXPECT_EQ(to[64_KiB - 1], 'a');
    EXPECT_EQ(to[64_KiB], 0);
    test::StartedPiece larger(*backend_, {source.get(), 0, target.get(), 0, 64_KiB + 1, 0, nullptr});
    EXPECT_FALSE(larger.done());
    EXPECT_TRUE(larger.wait().ok());
    EXPECT_EQ(from, to);
}

}  // namespace
}  // namespace sidestep::backends::host
