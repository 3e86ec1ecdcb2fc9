// Copies on a stream that is being captured: they become nodes of the graph, and each launch copies anew.
#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include <sidestep/context.hpp>
#include <sidestep/cuda.hpp>

#include "tests/gpu/raw_memory.hpp"
#include "tests/gpu/slow_stream.hpp"

namespace sidestep::gpu_tests::graph {
namespace {

using std::chrono::milliseconds;

constexpr Bytes size = 2_MiB + 5;

class Graphs : public ContextTest {
protected:
    void begin(const SlowStream& stream, int gpu, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
        driver::ScopedCudaContext current(machine().context(gpu));
        expect_success(cuda().cuStreamBeginCapture(stream.get(), mode), "cuStreamBeginCapture");
    }
    CUgraphExec end(const SlowStream& stream, int gpu) {
        driver::ScopedCudaContext current(machine().context(gpu));
        CUgraph graph = nullptr;
        expect_success(cuda().cuStreamEndCapture(stream.get(), &graph), "cuStreamEndCapture");
        CUgraphExec executable = nullptr;
        expect_success(cuda().cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
        cuda().cuGraphDestroy(graph);
        return executable;
    }
    // Launches twice, with other bytes each time.
    void replay(CUgraphExec executable, const SlowStream& stream, int gpu, const Buffer& from,
                const Buffer& to) {
        for (const unsigned seed : {41u, 42u}) {
            fill(from, seed);
            clear(to, 0x22);
            {
                driver::ScopedCudaContext current(machine().context(gpu));
                expect_success(cuda().cuGraphLaunch(executable, stream.get()), "cuGraphLaunch");
            }
            ASSERT_TRUE(stream.drained(milliseconds(30'000)));
            expect_pattern(to, seed);
        }
        driver::ScopedCudaContext current(machine().context(gpu));
        expect_success(cuda().cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    }
    static void expect_note(const Receipt& receipt) {
        const bool told = std::any_of(
            receipt.notes.begin(), receipt.notes.end(),
            [](const std::string& note) { return note.find("part of the graph") != std::string::npos; });
        EXPECT_TRUE(told) << receipt.explain();
    }

    void captured_copy(Raw from_kind, Raw to_kind, int to_gpu, const CopyOptions& options = {}) {
        SCOPED_TRACE(fmt::format("{} to {} of gpu:{}", to_string(from_kind), to_string(to_kind), to_gpu));
        const Allocation from = raw_memory(from_kind, 0, size);
        const Allocation to = raw_memory(to_kind, to_gpu, size);
        fill(from.buffer(), 40);
        clear(to.buffer(), 0x22);
        const SlowStream stream(0);
        begin(stream, 0);
        Transfer transfer = cuda::copy(*context_, from.buffer(), to.buffer(), stream.get(), options);
        const auto ended = transfer.poll();
        CUgraphExec executable = end(stream, 0);
        ASSERT_TRUE(ended) << "nothing is left to wait for";
        ASSERT_TRUE(*ended) << ended->error().to_string();
        expect_note(**ended);
        expect_value(to.buffer(), 0x22);  // no byte moves before the launch
        replay(executable, stream, 0, from.buffer(), to.buffer());
    }
};

TEST_F(Graphs, OneHopBecomesANode) {
    captured_copy(Raw::host_alloc, Raw::device, 0);
    captured_copy(Raw::device, Raw::host_alloc, 0);
    captured_copy(Raw::device, Raw::pool, 0);
    CopyOptions kernel;
    kernel.prefer = Prefer::kernel;
    captured_copy(Raw::device, Raw::device, 0, kernel);
}

TEST_F(Graphs, PeersWithEitherEngine) {
    if (machine().gpus() < 2 || !machine().topology().peer_access(0, 1).allowed)
        GTEST_SKIP() << "needs two GPUs with peer access";
    for (const Prefer prefer : {Prefer::copy_engine, Prefer::kernel}) {
        CopyOptions options;
        options.prefer = prefer;
        captured_copy(Raw::device, Raw::device, 1, options);
        captured_copy(Raw::vmm, Raw::device, 1, options);
    }
}

TEST_F(Graphs, BatchesBecomeNodesToo) {
    for (const Raw kind : {Raw::device, Raw::host_alloc}) {
        SCOPED_TRACE(to_string(kind));
        const Allocation from = raw_memory(kind, 0, size);
        const Allocation to = raw_memory(Raw::device, 0, size);
        std::vector<BatchItem> items;
        for (Bytes at = 0; at < size; at += 5000) {
            const Bytes part = std::min<Bytes>(5000, size - at);
            items.push_back({from.buffer().slice(at, part), to.buffer().slice(at, part)});
        }
        const SlowStream stream(0);
        begin(stream, 0);
        Transfer transfer = cuda::copy_batch(*context_, items, stream.get());
        const auto ended = transfer.poll();
        CUgraphExec executable = end(stream, 0);
        ASSERT_TRUE(ended && *ended) << ended->error().to_string();
        expect_note(**ended);
        replay(executable, stream, 0, from.buffer(), to.buffer());
    }
}

// Captures in the default mode forbid many calls to every thread of the process. A copy that is being polled
// at the same time must neither fail nor spoil the capture.
TEST_F(Graphs, OtherCopiesGoOnDuringACapture) {
    const Allocation from = raw_memory(Raw::host_alloc, 0, size);
    const Allocation to = raw_memory(Raw::device, 0, size);
    const Allocation other = raw_memory(Raw::device, 0, size);
    fill(from.buffer(), 51);
    SlowStream busy(0);
    busy.sleep(milliseconds(100));
    Transfer slow = cuda::copy(*context_, from.buffer(), other.buffer(), busy.get());
    ASSERT_TRUE(slow.event_fd()) << "now the library's own thread polls it";
    const SlowStream stream(0);
    begin(stream, 0);
    Transfer node = cuda::copy(*context_, from.buffer(), to.buffer(), stream.get());
    const auto receipt = slow.wait();
    auto also = context_->copy(from.buffer(), other.buffer()).wait();
    CUgraphExec executable = end(stream, 0);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    ASSERT_TRUE(also) << also.error().to_string();
    ASSERT_TRUE(node.wait());
    expect_pattern(other.buffer(), 51);
    replay(executable, stream, 0, from.buffer(), to.buffer());
}

TEST_F(Graphs, StagedAndVerifiedCopiesAreRefused) {
    const Allocation pageable = raw_memory(Raw::pageable, 0, size);
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, size);
    const Allocation gpu = raw_memory(Raw::device, 0, size);
    CopyOptions verify;
    verify.verify = true;
    const SlowStream stream(0);
    begin(stream, 0);
    auto staged = cuda::copy(*context_, pageable.buffer(), gpu.buffer(), stream.get()).wait();
    auto verified = cuda::copy(*context_, pinned.buffer(), gpu.buffer(), stream.get(), verify).wait();
    CUgraphExec executable = end(stream, 0);
    for (const auto* receipt : {&staged, &verified}) {
        ASSERT_FALSE(*receipt);
        EXPECT_EQ(receipt->error().code, ErrorCode::unsupported) << receipt->error().to_string();
        EXPECT_NE(receipt->error().to_string().find("captured"), std::string::npos)
            << receipt->error().to_string();
    }
    cuda().cuGraphExecDestroy(executable);
}

TEST_F(Graphs, AStreamOfAThirdGpuIsRefused) {
    if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, size);
    const Allocation gpu = raw_memory(Raw::device, 0, size);
    const SlowStream stream(1);
    begin(stream, 1);
    auto receipt = cuda::copy(*context_, pinned.buffer(), gpu.buffer(), stream.get()).wait();
    CUgraphExec executable = end(stream, 1);
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::unsupported) << receipt.error().to_string();
    cuda().cuGraphExecDestroy(executable);
}

}  // namespace
}  // namespace sidestep::gpu_tests::graph
