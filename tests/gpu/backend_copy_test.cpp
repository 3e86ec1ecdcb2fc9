// Pieces by every engine, between every two places, of every kind of memory.
#include <fmt/format.h>
#include <deque>

#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::backend_copy {
namespace {

using backends::cuda::Engine;

constexpr Bytes guard = 4096;

struct Case {
    Bytes size;
    Bytes from_offset;
    Bytes to_offset;
};

// Around every width the kernel uses, aligned and not, up to sizes of many tiles.
const std::vector<Case>& cases() {
    static const std::vector<Case> all{
        {1, 0, 0},        {1, 3, 5},          {7, 1, 1},         {15, 0, 0},        {16, 0, 0},
        {17, 15, 15},     {31, 8, 8},         {33, 4, 8},        {64, 2, 4},        {100, 1, 2},
        {1000, 9, 9},     {4096, 0, 0},       {4097, 16, 3},     {32768, 0, 0},     {65535, 5, 21},
        {65536, 12, 4},   {1_MiB, 0, 0},      {1_MiB + 1, 7, 7}, {1_MiB - 1, 6, 4}, {5_MiB + 13, 1, 17},
        {16_MiB, 0, 256}, {64_MiB + 3, 3, 3}, {256_MiB, 0, 0},   {3_MiB + 1, 2, 1}, {8_MiB + 40, 8, 24},
    };
    return all;
}

// Two blocks that stay attached, and pieces of every case between them; the bytes around the target must
// stay as they were.
class Ends {
public:
    Ends(Allocation from, Allocation to) : from_(std::move(from)), to_(std::move(to)) {
        source_ = attach(from_.buffer(), backend::Access::read);
        target_ = attach(to_.buffer(), backend::Access::write);
    }

    void run(const Case& piece, std::size_t engine, unsigned seed) {
        ASSERT_TRUE(source_ && target_);
        SCOPED_TRACE(fmt::format("engine {}, {} bytes, offsets {} and {}", engine, piece.size,
                                 piece.from_offset, piece.to_offset));
        const Bytes to_offset = guard + piece.to_offset;
        const Buffer before = to_.buffer().slice(to_offset - guard, guard);
        const Buffer target = to_.buffer().slice(to_offset, piece.size);
        const Buffer after = to_.buffer().slice(to_offset + piece.size, guard);
        fill(from_.buffer().slice(piece.from_offset, piece.size), seed);
        clear(to_.buffer().slice(to_offset - guard, piece.size + 2 * guard), 0xA5);
        auto moved = move(Machine::get().backend(), *source_, piece.from_offset, *target_, to_offset,
                          piece.size, engine);
        ASSERT_TRUE(moved) << moved.error().to_string();
        expect_pattern(target, seed);
        expect_value(before, 0xA5);
        expect_value(after, 0xA5);
    }

private:
    static std::unique_ptr<backend::Registration> attach(const Buffer& buffer, backend::Access access) {
        backend::AttachOptions options;
        options.access = access;
        auto attached = Machine::get().backend().attach(buffer, options);
        EXPECT_TRUE(attached) << attached.error().to_string();
        return attached ? std::move(*attached) : nullptr;
    }

    Allocation from_;
    Allocation to_;
    std::unique_ptr<backend::Registration> source_;
    std::unique_ptr<backend::Registration> target_;
};

constexpr Bytes room = 256_MiB + 4 * guard;

class Copies : public GpuTest {};
class PeerCopies : public TwoGpuTest {};

TEST_F(Copies, InsideEveryGpu) {
    for (int gpu = 0; gpu < machine().gpus(); ++gpu) {
        SCOPED_TRACE(fmt::format("gpu:{}", gpu));
        Ends ends(raw_memory(Raw::device, gpu, room), raw_memory(Raw::device, gpu, room));
        unsigned seed = 0;
        for (const Case& piece : cases())
            for (std::size_t engine : {Engine::local_copy, Engine::local_kernel})
                ends.run(piece, engine, ++seed);
    }
}

TEST_F(Copies, BetweenHostAndEveryGpu) {
    for (int gpu = 0; gpu < machine().gpus(); ++gpu) {
        SCOPED_TRACE(fmt::format("gpu:{}", gpu));
        Ends down(raw_memory(Raw::host_alloc, gpu, room), raw_memory(Raw::device, gpu, room));
        Ends up(raw_memory(Raw::device, gpu, room), raw_memory(Raw::host_registered, gpu, room));
        unsigned seed = 100;
        for (const Case& piece : cases()) {
            down.run(piece, Engine::host_to_gpu, ++seed);
            up.run(piece, Engine::gpu_to_host, ++seed);
        }
    }
}

TEST_F(PeerCopies, BetweenEveryPair) {
    for (int from = 0; from < machine().gpus(); ++from) {
        for (int to = 0; to < machine().gpus(); ++to) {
            if (from == to || !machine().topology().peer_access(from, to).allowed) continue;
            SCOPED_TRACE(fmt::format("gpu:{} to gpu:{}", from, to));
            Ends ends(raw_memory(Raw::device, from, room), raw_memory(Raw::device, to, room));
            unsigned seed = 200;
            for (const Case& piece : cases())
                for (std::size_t engine : {Engine::peer_copy, Engine::peer_kernel})
                    ends.run(piece, engine, ++seed);
        }
    }
}

TEST_F(PeerCopies, BetweenEveryTwoKindsOfMemory) {
    const std::vector<Raw> kinds{Raw::device, Raw::pool, Raw::vmm, Raw::vmm_pieces, Raw::managed};
    unsigned seed = 300;
    for (Raw from : kinds) {
        for (Raw to : kinds) {
            SCOPED_TRACE(fmt::format("{} to {}", to_string(from), to_string(to)));
            Ends peers(raw_memory(from, 0, 12_MiB), raw_memory(to, 1, 12_MiB));
            Ends local(raw_memory(from, 0, 12_MiB), raw_memory(to, 0, 12_MiB));
            for (const Case& piece : {Case{5_MiB + 13, 1, 17}, Case{8_MiB, 0, 0}}) {
                peers.run(piece, Engine::peer_copy, ++seed);
                peers.run(piece, Engine::peer_kernel, ++seed);
                local.run(piece, Engine::local_copy, ++seed);
                local.run(piece, Engine::local_kernel, ++seed);
            }
        }
    }
}

TEST_F(Copies, HostLinkWithEveryKindOfMemory) {
    unsigned seed = 400;
    for (Raw host : {Raw::host_alloc, Raw::host_registered}) {
        for (Raw gpu : {Raw::device, Raw::pool, Raw::vmm, Raw::vmm_pieces, Raw::managed}) {
            SCOPED_TRACE(fmt::format("{} and {}", to_string(host), to_string(gpu)));
            Ends down(raw_memory(host, 0, 12_MiB), raw_memory(gpu, 0, 12_MiB));
            Ends up(raw_memory(gpu, 0, 12_MiB), raw_memory(host, 0, 12_MiB));
            down.run({5_MiB + 13, 1, 17}, Engine::host_to_gpu, ++seed);
            up.run({5_MiB + 13, 1, 17}, Engine::gpu_to_host, ++seed);
        }
    }
}

TEST_F(PeerCopies, ReachesTheLibrarysOwnMemory) {
    unsigned seed = 500;
    for (MemoryKind kind : {MemoryKind::device, MemoryKind::pool, MemoryKind::vmm, MemoryKind::managed}) {
        SCOPED_TRACE(sidestep::to_string(kind));
        auto from = backend().allocator()->allocate(Place::gpu(0), 12_MiB, kind);
        auto to = backend().allocator()->allocate(Place::gpu(1), 12_MiB, kind);
        ASSERT_TRUE(from && to);
        Ends ends(std::move(*from), std::move(*to));
        ends.run({8_MiB, 0, 0}, Engine::peer_copy, ++seed);
        ends.run({8_MiB, 0, 0}, Engine::peer_kernel, ++seed);
    }
}

// More pieces in flight than there are streams, each with bytes of its own.
TEST_F(Copies, ManyPiecesInFlight) {
    constexpr Bytes chunk = 64_KiB + 3;
    constexpr Bytes count = 500;
    const Allocation from = raw_memory(Raw::host_alloc, 0, chunk * count);
    const Allocation to = raw_memory(Raw::device, 0, chunk * count);
    fill(from.buffer(), 77);
    clear(to.buffer(), 0);
    auto source = backend().attach(from.buffer(), {});
    auto target = backend().attach(to.buffer(), {backend::Access::write});
    ASSERT_TRUE(source && target);
    std::deque<test::StartedPiece> started;
    for (Bytes i = 0; i < count; ++i) {
        backend::Piece piece;
        piece.from = source->get();
        piece.to = target->get();
        piece.from_offset = piece.to_offset = i * chunk;
        piece.size = chunk;
        piece.capability = Engine::host_to_gpu;
        const auto& begun = started.emplace_back(backend(), piece).begun();
        ASSERT_TRUE(begun) << begun.error().to_string();
    }
    for (auto& each : started) {
        auto ended = each.wait();
        EXPECT_TRUE(ended) << ended.error().to_string();
    }
    expect_pattern(to.buffer(), 77);
}

TEST_F(Copies, RefusesEnginesOutOfReach) {
    const Allocation host = raw_memory(Raw::host_alloc, 0, 1_MiB);
    const Allocation gpu = raw_memory(Raw::device, 0, 1_MiB);
    for (std::size_t engine : {Engine::gpu_to_host, Engine::peer_copy, Engine::peer_kernel,
                               Engine::local_copy, Engine::local_kernel}) {
        auto moved = move(backend(), host.buffer(), gpu.buffer(), engine);
        ASSERT_FALSE(moved) << engine;
        EXPECT_EQ(moved.error().code, ErrorCode::unsupported) << moved.error().to_string();
    }
    auto inside = move(backend(), gpu.buffer(), gpu.buffer(), Engine::peer_copy);
    ASSERT_FALSE(inside);
    EXPECT_EQ(inside.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace sidestep::gpu_tests::backend_copy
