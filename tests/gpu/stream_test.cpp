// Copies in the order of a caller's stream.
//
// Each test makes the stream slow before the copy and changes the source at the end of that slow work: a
// copy that does not wait carries the old bytes. Behind the copy the stream reads the target: work that
// does not wait for the copy sees the old target.
#include <poll.h>

#include <cstring>

#include <fmt/format.h>

#include <sidestep/context.hpp>
#include <sidestep/cuda.hpp>

#include "tests/gpu/raw_memory.hpp"
#include "tests/gpu/slow_stream.hpp"

namespace sidestep::gpu_tests::stream {
namespace {

using backends::cuda::Engine;
using std::chrono::milliseconds;

constexpr Bytes size = 6_MiB + 3;
constexpr unsigned char old_source = 0x11;
constexpr unsigned char old_target = 0x22;
constexpr unsigned char fresh = 0x77;
constexpr milliseconds slow{300};

// The memory of one test: what is copied, and where the stream puts what it saw in the target.
struct Ends {
    Ends(Raw from_raw, int from_gpu, Raw to_raw, int to_gpu)
        : from(raw_memory(from_raw, from_gpu, size)),
          to(raw_memory(to_raw, to_gpu, size)),
          seen(raw_memory(Raw::host_alloc, to_gpu, size)) {
        clear(from.buffer(), old_source);
        clear(to.buffer(), old_target);
        clear(seen.buffer(), 0);
    }
    Allocation from;
    Allocation to;
    Allocation seen;
};

// Makes the source fresh, in the order of the stream, after a while.
void slow_source(SlowStream& stream, const Ends& ends) {
    stream.sleep(slow);
    if (ends.from.place().is_gpu()) {
        stream.set(ends.from.buffer(), fresh);
        return;
    }
    stream.run([&ends] { std::memset(ends.from.address(), fresh, size); });
}

void look_at_target(SlowStream& stream, const Ends& ends) {
    if (ends.to.place().is_gpu()) {
        stream.copy(ends.seen.buffer(), ends.to.buffer());
        return;
    }
    stream.run([&ends] { std::memcpy(ends.seen.address(), ends.to.address(), size); });
}

class BackendStream : public GpuTest {
protected:
    // A piece on the stream with work before and behind it.
    void piece_in_order(const Ends& ends, std::size_t engine, int stream_gpu) {
        SlowStream stream(stream_gpu);
        auto source = backend().attach(ends.from.buffer(), {});
        auto target = backend().attach(ends.to.buffer(), {backend::Access::write});
        ASSERT_TRUE(source && target);
        slow_source(stream, ends);
        backend::Piece piece;
        piece.from = source->get();
        piece.to = target->get();
        piece.size = size;
        piece.capability = engine;
        piece.stream = stream.get();
        test::StartedPiece started(backend(), piece);
        ASSERT_TRUE(started.begun()) << started.begun().error().to_string();
        look_at_target(stream, ends);
        auto ended = started.wait();
        ASSERT_TRUE(ended) << ended.error().to_string();
        ASSERT_TRUE(stream.drained(milliseconds(30'000)));
        expect_value(ends.to.buffer(), fresh);
        expect_value(ends.seen.buffer(), fresh);
    }
};

class BackendStreamOfTwo : public BackendStream {
protected:
    void SetUp() override {
        BackendStream::SetUp();
        if (!IsSkipped() && (machine().gpus() < 2 || !machine().topology().peer_access(0, 1).allowed))
            GTEST_SKIP() << "needs two GPUs with peer access";
    }
};

TEST_F(BackendStream, OneHopWaitsAndIsWaitedFor) {
    piece_in_order(Ends(Raw::host_alloc, 0, Raw::device, 0), Engine::host_to_gpu, 0);
    piece_in_order(Ends(Raw::device, 0, Raw::host_registered, 0), Engine::gpu_to_host, 0);
    piece_in_order(Ends(Raw::device, 0, Raw::device, 0), Engine::local_copy, 0);
    piece_in_order(Ends(Raw::device, 0, Raw::pool, 0), Engine::local_kernel, 0);
}

TEST_F(BackendStreamOfTwo, PeersOnTheStreamOfEitherEnd) {
    for (int stream_gpu : {0, 1}) {
        SCOPED_TRACE(stream_gpu);
        piece_in_order(Ends(Raw::device, 0, Raw::device, 1), Engine::peer_copy, stream_gpu);
        piece_in_order(Ends(Raw::device, 0, Raw::device, 1), Engine::peer_kernel, stream_gpu);
    }
}

// Either end of most peer copies may carry them out. What other processes share is reached by the GPU it lies on alone.
TEST_F(BackendStreamOfTwo, ABatchIsCarriedOutByTheGpuThatOneOfItsPiecesCannotLeave) {
    struct Case {
        std::size_t engine;
        int shared_at;
        bool shared_first;
    };
    constexpr Case cases[] = {{Engine::peer_copy, 0, false},  {Engine::peer_copy, 1, false},
                              {Engine::peer_copy, 1, true},   {Engine::peer_kernel, 0, false},
                              {Engine::peer_kernel, 0, true}, {Engine::peer_kernel, 1, false}};
    for (const auto& [engine, shared_at, shared_first] : cases) {
        SCOPED_TRACE(fmt::format("engine {} gpu:{} {}", engine, shared_at, shared_first));
        const auto memory = [&, at = shared_at](int gpu, bool shared) {
            return gpu == at && shared ? map_pieces(gpu, size, 2_MiB, Pieces::imported)
                                       : raw_memory(Raw::vmm, gpu, size);
        };
        std::vector<std::pair<Allocation, Allocation>> copies;
        for (const bool shared : {shared_first, !shared_first})
            copies.emplace_back(memory(0, shared), memory(1, shared));
        std::vector<std::unique_ptr<backend::Registration>> attached;
        std::vector<backend::Piece> pieces;
        SlowStream stream(1);
        for (const auto& [from, to] : copies) {
            fill(from.buffer(), 70);
            clear(to.buffer(), old_target);
            auto source = backend().attach(from.buffer(), {});
            auto target = backend().attach(to.buffer(), {backend::Access::write});
            ASSERT_TRUE(source && target);
            pieces.push_back({source->get(), 0, target->get(), 0, size, engine, stream.get()});
            attached.push_back(std::move(*source));
            attached.push_back(std::move(*target));
        }
        test::StartedPiece started(backend(), pieces);
        const auto ended = started.wait();
        ASSERT_TRUE(ended) << ended.error().to_string();
        ASSERT_TRUE(stream.drained(milliseconds(30'000)));
        for (const auto& [from, to] : copies) expect_pattern(to.buffer(), 70);
    }
}

TEST_F(BackendStreamOfTwo, StreamOfAGpuThatTakesNoPart) {
    piece_in_order(Ends(Raw::host_alloc, 0, Raw::device, 0), Engine::host_to_gpu, 1);
    piece_in_order(Ends(Raw::device, 0, Raw::device, 0), Engine::local_kernel, 1);
}

TEST_F(BackendStream, DefaultStream) {
    const Ends ends(Raw::device, 0, Raw::device, 0);
    driver::ScopedCudaContext current(machine().context(0));
    const auto address = reinterpret_cast<CUdeviceptr>(ends.from.address());
    expect_success(cuda().cuMemsetD8Async(address, fresh, size, CU_STREAM_LEGACY), "cuMemsetD8Async");
    auto moved = move(backend(), ends.from.buffer(), ends.to.buffer(), Engine::local_copy, CU_STREAM_LEGACY);
    ASSERT_TRUE(moved) << moved.error().to_string();
    expect_value(ends.to.buffer(), fresh);
}

// What fails when a piece is on its way already is told when it has ended: also on a stream of another GPU, beside
// which it goes.
TEST_F(BackendStreamOfTwo, AnErrorWaitsForThePiece) {
    const Ends ends(Raw::host_alloc, 0, Raw::device, 0);
    auto source = backend().attach(ends.from.buffer(), {});
    auto target = backend().attach(ends.to.buffer(), {backend::Access::write});
    ASSERT_TRUE(source && target);
    constexpr std::pair<int, const char*> cases[] = {
        {0, ""}, {1, ""}, {0, "cuEventRecord:1"}, {1, "cuEventRecord:2"}, {1, "cuStreamWaitEvent:2"}};
    for (const auto& [stream_gpu, call] : cases) {
        SCOPED_TRACE(fmt::format("gpu:{} {}", stream_gpu, call));
        clear(ends.to.buffer(), old_target);
        SlowStream stream(stream_gpu);
        std::atomic<bool> busy{true};
        stream.run([&busy] {
            while (busy) std::this_thread::sleep_for(milliseconds(1));
        });
        backend::Piece piece{source->get(), 0, target->get(), 0, size, Engine::host_to_gpu, stream.get()};
        ::setenv("FAKE_CUDA_FAIL", call, 1);
        test::StartedPiece started(backend(), piece);
        ::unsetenv("FAKE_CUDA_FAIL");
        ASSERT_TRUE(started.begun()) << started.begun().error().to_string();
        EXPECT_FALSE(started.over());
        busy = false;
        const bool ended = started.wait().ok();
        expect_value(ends.to.buffer(), old_source);
        if (ended && *call) GTEST_SKIP() << "the driver of this machine does not fail";
        EXPECT_EQ(ended, *call == 0);
    }
}

TEST_F(BackendStream, ACapturedStreamTakesPiecesButNoGate) {
    const Ends ends(Raw::device, 0, Raw::device, 0);
    SlowStream stream(0);
    driver::ScopedCudaContext current(machine().context(0));
    expect_success(cuda().cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_RELAXED),
                   "cuStreamBeginCapture");
    auto moved = move(backend(), ends.from.buffer(), ends.to.buffer(), Engine::local_copy, stream.get());
    auto gate = backend().streams()->gate(stream.get());
    CUgraph graph = nullptr;
    expect_success(cuda().cuStreamEndCapture(stream.get(), &graph), "cuStreamEndCapture");
    cuda().cuGraphDestroy(graph);
    EXPECT_TRUE(moved) << moved.error().to_string();
    expect_value(ends.to.buffer(), old_target);
    ASSERT_FALSE(gate);
    EXPECT_EQ(gate.error().code, ErrorCode::unsupported) << gate.error().to_string();
}

class ContextStream : public ContextTest {
protected:
    void copy_in_order(const Ends& ends, int stream_gpu, const CopyOptions& options = {}) {
        SlowStream stream(stream_gpu);
        slow_source(stream, ends);
        Transfer transfer =
            cuda::copy(*context_, ends.from.buffer(), ends.to.buffer(), stream.get(), options);
        look_at_target(stream, ends);
        auto receipt = transfer.wait();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        ASSERT_TRUE(stream.drained(milliseconds(30'000)));
        expect_value(ends.to.buffer(), fresh);
        expect_value(ends.seen.buffer(), fresh);
    }

    // A staged copy that cannot end well, held up by its stream; answers how it ended. The stream must go
    // on all the same.
    ErrorCode fail_behind_slow_work(const CopyOptions& options, bool cancel) {
        const Ends ends(Raw::pageable, 0, Raw::device, 0);
        SlowStream stream(0);
        stream.sleep(milliseconds(1000));
        Transfer transfer =
            cuda::copy(*context_, ends.from.buffer(), ends.to.buffer(), stream.get(), options);
        std::atomic<bool> went_on{false};
        stream.run([&went_on] { went_on = true; });
        if (cancel) transfer.cancel();
        auto receipt = transfer.wait();
        EXPECT_TRUE(stream.drained(milliseconds(30'000))) << "the stream is stuck at the gate";
        EXPECT_TRUE(went_on);
        return receipt ? ErrorCode{} : receipt.error().code;
    }
};

TEST_F(ContextStream, OneHop) {
    copy_in_order(Ends(Raw::host_alloc, 0, Raw::device, 0), 0);
    copy_in_order(Ends(Raw::device, 0, Raw::host_alloc, 0), 0);
}

TEST_F(ContextStream, StagedFromPageable) {
    copy_in_order(Ends(Raw::pageable, 0, Raw::device, 0), 0);
}

TEST_F(ContextStream, StagedToPageable) {
    copy_in_order(Ends(Raw::device, 0, Raw::pageable, 0), 0);
}

TEST_F(ContextStream, StagedInSmallChunks) {
    CopyOptions options;
    options.chunk = 64_KiB;
    options.max_staging = 256_KiB;
    copy_in_order(Ends(Raw::pageable, 0, Raw::device, 0), 0, options);
    copy_in_order(Ends(Raw::device, 0, Raw::pageable, 0), 0, options);
}

// What comes behind it writes to the target.
TEST_F(ContextStream, AVerifiedCopyOfOneHopIsComparedBeforeTheStreamGoesOn) {
    const Ends ends(Raw::host_alloc, 0, Raw::device, 0);
    CopyOptions verify;
    verify.verify = true;
    SlowStream stream(0);
    slow_source(stream, ends);
    Transfer transfer = cuda::copy(*context_, ends.from.buffer(), ends.to.buffer(), stream.get(), verify);
    look_at_target(stream, ends);
    stream.set(ends.to.buffer(), old_target);
    auto receipt = transfer.wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(receipt->verified);
    ASSERT_TRUE(stream.drained(milliseconds(30'000)));
    expect_value(ends.seen.buffer(), fresh);
    expect_value(ends.to.buffer(), old_target);
}

TEST_F(ContextStream, PeersWithEitherEngine) {
    if (machine().gpus() < 2 || !machine().topology().peer_access(0, 1).allowed)
        GTEST_SKIP() << "needs two GPUs with peer access";
    for (Prefer prefer : {Prefer::copy_engine, Prefer::kernel}) {
        CopyOptions options;
        options.prefer = prefer;
        copy_in_order(Ends(Raw::device, 0, Raw::device, 1), 0, options);
        copy_in_order(Ends(Raw::device, 0, Raw::device, 1), 1, options);
    }
}

TEST_F(ContextStream, OneAfterTheOtherOnOneStream) {
    const Ends first(Raw::pageable, 0, Raw::device, 0);
    const Allocation last = raw_memory(Raw::pageable, 0, size);
    SlowStream stream(0);
    slow_source(stream, first);
    Transfer there = cuda::copy(*context_, first.from.buffer(), first.to.buffer(), stream.get());
    Transfer back = cuda::copy(*context_, first.to.buffer(), last.buffer(), stream.get());
    auto receipt = back.wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    ASSERT_TRUE(there.wait());
    expect_value(last.buffer(), fresh);
}

// A second without a byte is a stall, but the stream has not come to the copy yet.
TEST_F(ContextStream, SlowWorkBeforeACopyIsNoStall) {
    for (const Raw from : {Raw::pageable, Raw::host_alloc}) {
        const Ends ends(from, 0, Raw::device, 0);
        SlowStream stream(0);
        stream.sleep(milliseconds(2500));
        slow_source(stream, ends);
        CopyOptions options;
        options.stall_limit = milliseconds(1000);
        auto receipt =
            cuda::copy(*context_, ends.from.buffer(), ends.to.buffer(), stream.get(), options).wait();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        expect_value(ends.to.buffer(), fresh);
    }
}

TEST_F(ContextStream, WhatComesBehindAFailedCopyFailsToo) {
    const Ends first(Raw::pageable, 0, Raw::device, 0);
    const Allocation last = raw_memory(Raw::host_alloc, 0, size);
    const Allocation pageable = raw_memory(Raw::pageable, 0, size);
    clear(last.buffer(), old_target);
    clear(pageable.buffer(), old_target);
    SlowStream stream(0);
    // CUDA loads a kernel when its GPU is idle, so the first batch would wait for the stream.
    ASSERT_TRUE(cuda::copy_batch(*context_, {{last.buffer(), first.to.buffer()}}, stream.get()).wait());
    std::atomic<bool> busy{true};
    stream.run([&busy] {
        while (busy) std::this_thread::sleep_for(milliseconds(1));
    });
    CopyOptions options;
    options.deadline = milliseconds(100);
    Transfer failed = cuda::copy(*context_, first.from.buffer(), first.to.buffer(), stream.get(), options);
    Transfer behind[] = {
        cuda::copy(*context_, first.to.buffer(), pageable.buffer(), stream.get()),
        cuda::copy(*context_, first.to.buffer(), last.buffer(), stream.get()),
        cuda::copy_batch(*context_, {{first.to.buffer(), last.buffer()}}, stream.get()),
    };
    EXPECT_EQ(failed.wait().error().code, ErrorCode::timed_out);
    busy = false;
    for (Transfer& transfer : behind) {
        auto receipt = transfer.wait();
        ASSERT_FALSE(receipt);
        EXPECT_NE(receipt.error().message.find("before it on the stream"), std::string::npos)
            << receipt.error().message;
    }
    expect_value(pageable.buffer(), old_target);
    ASSERT_TRUE(stream.drained(milliseconds(30'000)));
    auto receipt = cuda::copy(*context_, first.from.buffer(), first.to.buffer(), stream.get()).wait();
    EXPECT_TRUE(receipt) << receipt.error().to_string();
}

// Nothing behind the gate runs before the caller has the failure in hand.
TEST_F(ContextStream, TheGateOfAFailedCopyWaitsForItsCaller) {
    const Ends ends(Raw::pageable, 0, Raw::device, 0);
    SlowStream stream(0);
    stream.sleep(slow);
    CopyOptions options;
    options.deadline = milliseconds(100);
    Transfer transfer = cuda::copy(*context_, ends.from.buffer(), ends.to.buffer(), stream.get(), options);
    std::atomic<bool> went_on{false};
    stream.run([&went_on] { went_on = true; });
    auto ended = transfer.event_fd();
    ASSERT_TRUE(ended) << ended.error().to_string();
    pollfd waits{*ended, POLLIN, 0};
    ASSERT_EQ(::poll(&waits, 1, 30'000), 1);
    EXPECT_FALSE(stream.drained(slow + milliseconds(200)));
    EXPECT_FALSE(went_on);
    auto receipt = transfer.poll();
    ASSERT_TRUE(receipt.has_value());
    EXPECT_FALSE(*receipt);
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
    EXPECT_TRUE(went_on);
}

TEST_F(ContextStream, GateOpensWhenTheCopyIsCancelled) {
    EXPECT_EQ(fail_behind_slow_work({}, true), ErrorCode::cancelled);
}

TEST_F(ContextStream, GateOpensWhenTheDeadlinePasses) {
    CopyOptions options;
    options.deadline = milliseconds(100);
    EXPECT_EQ(fail_behind_slow_work(options, false), ErrorCode::timed_out);
}

TEST_F(ContextStream, GateOpensWhenTheTransferIsDropped) {
    const Ends ends(Raw::pageable, 0, Raw::device, 0);
    SlowStream stream(0);
    stream.sleep(slow);
    { Transfer dropped = cuda::copy(*context_, ends.from.buffer(), ends.to.buffer(), stream.get()); }
    EXPECT_TRUE(stream.drained(milliseconds(30'000))) << "the stream is stuck at the gate";
}

}  // namespace
}  // namespace sidestep::gpu_tests::stream
