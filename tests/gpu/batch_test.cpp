// Many copies as one on real GPUs: every pair of places, by each way, in the order of a caller's stream.
#include <chrono>

#include <fmt/format.h>

#include <sidestep/context.hpp>
#include <sidestep/cuda.hpp>

#include "backends/cuda/batch.hpp"
#include "tests/gpu/raw_memory.hpp"
#include "tests/gpu/slow_stream.hpp"

namespace sidestep::gpu_tests::batch {
namespace {

using std::chrono::milliseconds;

constexpr Bytes room = 8_MiB;

// The parts of one buffer into those of another of the same size: `step` bytes apart, the last with one byte
// less than the others, and the bytes between them filled by one copy more each, so that all of the target is
// written.
std::vector<BatchItem> cut(const Buffer& from, const Buffer& to, Bytes step) {
    std::vector<BatchItem> items;
    for (Bytes at = 0; at < from.size(); at += step) {
        const Bytes size = std::min(step, from.size() - at);
        const Bytes head = size - size / 3;
        items.push_back({from.slice(at, head), to.slice(at, head)});
        if (size > head)
            items.push_back({from.slice(at + head, size - head), to.slice(at + head, size - head)});
    }
    return items;
}

class Batches : public ContextTest {
protected:
    Receipt batch(const Buffer& from, const Buffer& to, Bytes step, const CopyOptions& options = {}) {
        SCOPED_TRACE(fmt::format("{} to {} by {}", from.to_string(), to.to_string(), step));
        fill(from, ++seed_);
        clear(to, 0x3C);
        auto receipt = context_->copy_batch(cut(from, to, step), options).wait();
        EXPECT_TRUE(receipt) << receipt.error().to_string();
        if (!receipt) return {};
        expect_pattern(to, seed_);
        EXPECT_EQ(receipt->bytes, from.size());
        return *receipt;
    }

    bool two_gpus() const { return machine().gpus() > 1 && machine().topology().peer_access(0, 1).allowed; }

    unsigned seed_ = 7000;
};

TEST_F(Batches, HostAndGpu) {
    const Allocation gpu = raw_memory(Raw::device, 0, room);
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, room);
    const Allocation registered = raw_memory(Raw::host_registered, 0, room);
    for (const Bytes step : {Bytes{1000}, 4_KiB, 64_KiB + 1}) {
        EXPECT_TRUE(batch(pinned.buffer(), gpu.buffer(), step).route->direct());
        EXPECT_TRUE(batch(gpu.buffer(), pinned.buffer(), step).route->direct());
        EXPECT_TRUE(batch(registered.buffer(), gpu.buffer(), step).route->direct());
    }
}

TEST_F(Batches, InsideOneGpu) {
    const Allocation from = raw_memory(Raw::device, 0, room);
    const Allocation to = raw_memory(Raw::pool, 0, room);
    batch(from.buffer(), to.buffer(), 999);
    batch(from.buffer(), to.buffer(), 1_MiB);
}

TEST_F(Batches, BetweenTwoGpus) {
    if (!two_gpus()) GTEST_SKIP() << "needs two GPUs with peer access";
    for (const Raw kind : {Raw::device, Raw::pool, Raw::vmm, Raw::vmm_pieces, Raw::managed}) {
        SCOPED_TRACE(to_string(kind));
        const Allocation from = raw_memory(kind, 0, room);
        const Allocation to = raw_memory(kind, 1, room);
        const Receipt small = batch(from.buffer(), to.buffer(), 4_KiB);
        ASSERT_TRUE(small.route);
        EXPECT_EQ(small.route->lanes[0].hops[0].engine, "kernel") << small.explain();
        const Receipt large = batch(from.buffer(), to.buffer(), 1_MiB);
        ASSERT_TRUE(large.route);
        EXPECT_EQ(large.route->lanes[0].hops[0].engine, "copy engine") << large.explain();
        CopyOptions options;
        options.prefer = Prefer::copy_engine;
        batch(to.buffer(), from.buffer(), 4_KiB, options);
    }
}

// Places and kinds of memory of every sort in one batch; some of it staged.
TEST_F(Batches, EverythingAtOnce) {
    const int last = machine().gpus() - 1;
    const Allocation here = raw_memory(Raw::device, 0, room);
    const Allocation there = raw_memory(Raw::device, last, room);
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, room);
    const Allocation pageable = raw_memory(Raw::pageable, 0, room);
    const Allocation up = raw_memory(Raw::device, 0, room);
    const Allocation up_staged = raw_memory(Raw::device, last, room);
    std::vector<BatchItem> items;
    const auto add = [&items](const Allocation& from, const Allocation& to, Bytes step) {
        clear(to.buffer(), 0x3C);
        for (BatchItem& item : cut(from.buffer(), to.buffer(), step)) items.push_back(std::move(item));
    };
    fill(here.buffer(), 1);
    fill(pinned.buffer(), 2);
    fill(pageable.buffer(), 3);
    add(here, there, 4_KiB);
    add(pinned, up, 10'000);
    add(pageable, up_staged, 512_KiB);
    auto receipt = context_->copy_batch(items).wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(receipt->bytes, 3 * room);
    EXPECT_GE(receipt->notes.size(), 2u) << "the other ways are told";
    expect_pattern(there.buffer(), 1);
    expect_pattern(up.buffer(), 2);
    expect_pattern(up_staged.buffer(), 3);
}

TEST_F(Batches, VerifiedCopyByCopy) {
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, 1_MiB);
    const Allocation gpu = raw_memory(Raw::device, 0, 1_MiB);
    CopyOptions options;
    options.verify = true;
    EXPECT_TRUE(batch(pinned.buffer(), gpu.buffer(), 64_KiB, options).verified);
}

TEST_F(Batches, InTheOrderOfAStream) {
    const int last = two_gpus() ? 1 : 0;
    for (const bool peer : {false, true}) {
        const Allocation from = raw_memory(peer ? Raw::device : Raw::host_alloc, 0, room);
        const Allocation to = raw_memory(Raw::device, last, room);
        const Allocation seen = raw_memory(Raw::host_alloc, 0, room);
        // CUDA loads a GPU's kernels when it is idle, so that a first batch would wait for the stream; and the stream of one GPU may
        // fill the memory of the other from then on.
        ASSERT_TRUE(context_->copy(from.buffer(), to.buffer()).wait());
        clear(from.buffer(), 0x11);
        clear(to.buffer(), 0x22);
        SlowStream stream(last);
        stream.sleep(milliseconds(1500));
        if (peer)
            stream.set(from.buffer(), 0x77);
        else
            stream.run([&from] { std::memset(from.address(), 0x77, room); });
        Transfer transfer = cuda::copy_batch(*context_, cut(from.buffer(), to.buffer(), 4_KiB), stream.get());
        stream.copy(seen.buffer(), to.buffer());
        EXPECT_FALSE(transfer.poll()) << "the stream sleeps";
        auto receipt = transfer.wait();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        ASSERT_TRUE(stream.drained(milliseconds(30'000)));
        expect_value(to.buffer(), 0x77);
        expect_value(seen.buffer(), 0x77);
    }
}

// Of several calls to the driver one fails when those before it are on a busy stream already. The error comes when
// they have ended: its reader may free the memory.
class BatchesCutShort : public Batches {
protected:
    // `count` copies of `size` bytes; `call` is the one that fails.
    void fail(CUstream stream, Bytes size, std::size_t count, const char* call) {
        const Allocation from = raw_memory(Raw::host_alloc, 0, size * count);
        const Allocation to = raw_memory(Raw::device, 0, size * count);
        clear(from.buffer(), 0x77);
        clear(to.buffer(), 0x11);
        std::vector<BatchItem> items;
        for (std::size_t i = 0; i < count; ++i)
            items.push_back({from.buffer().slice(i * size, size), to.buffer().slice(i * size, size)});
        const driver::ScopedCudaContext current(machine().context(0));
        // CUDA loads a kernel when its GPU is idle, so the first batch would wait for the stream.
        ASSERT_TRUE(cuda::copy_batch(*context_, items, stream).wait());
        std::atomic<bool> busy{true};
        const auto wait = [](void* flag) {
            while (static_cast<std::atomic<bool>*>(flag)->load())
                std::this_thread::sleep_for(milliseconds(1));
        };
        expect_success(cuda().cuLaunchHostFunc(stream, wait, &busy), "cuLaunchHostFunc");
        ::setenv("FAKE_CUDA_FAIL", call, 1);
        Transfer transfer = cuda::copy_batch(*context_, items, stream);
        ::unsetenv("FAKE_CUDA_FAIL");
        EXPECT_FALSE(transfer.wait_for(milliseconds(100))) << "copies are in flight";
        busy = false;
        auto receipt = transfer.wait();
        expect_success(cuda().cuStreamQuery(stream), "cuStreamQuery");
        if (receipt) GTEST_SKIP() << "the driver of this machine does not fail";
        EXPECT_EQ(receipt.error().code, ErrorCode::out_of_memory) << receipt.error().to_string();
        EXPECT_NE(receipt.error().message.find("of the batch"), std::string::npos) << receipt.error().message;
    }
};

TEST_F(BatchesCutShort, OneByOne) {
    fail(CU_STREAM_LEGACY, 1_MiB, 8, "cuMemcpyAsync:6");
}

TEST_F(BatchesCutShort, InTheBatchCall) {
    SlowStream stream(0);
    fail(stream.get(), 1_MiB, 8, "cuMemcpyBatchAsync:6");
}

TEST_F(BatchesCutShort, ByTheKernel) {
    SlowStream stream(0);
    fail(stream.get(), 4_KiB, 4000, "cuLaunchKernel:2");
}

TEST_F(Batches, AStreamTakesNoStagedCopies) {
    const Allocation pageable = raw_memory(Raw::pageable, 0, 64_KiB);
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, 64_KiB);
    const Allocation gpu = raw_memory(Raw::device, 0, 128_KiB);
    clear(gpu.buffer(), 0x22);
    SlowStream stream(0);
    auto receipt = cuda::copy_batch(*context_,
                                    {{pinned.buffer(), gpu.buffer().slice(0, 64_KiB)},
                                     {pageable.buffer(), gpu.buffer().slice(64_KiB, 64_KiB)}},
                                    stream.get())
                       .wait();
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::unsupported) << receipt.error().to_string();
    EXPECT_NE(receipt.error().message.find("copy 1 of the batch"), std::string::npos)
        << receipt.error().message;
    ASSERT_TRUE(stream.drained(milliseconds(30'000)));
    expect_value(gpu.buffer(), 0x22);
}

// Seconds from the first call until the stream is empty, the best of a few rounds.
template <typename Enqueue>
double best_seconds(const driver::Cuda& cuda, CUstream stream, Enqueue enqueue) {
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
        const auto start = std::chrono::steady_clock::now();
        auto done = enqueue();
        EXPECT_TRUE(done) << done.error().to_string();
        while (cuda.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) continue;
        best =
            std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

// Prints what each way costs; from these figures the backend's choice between them is made.
void measure_ways(int gpu, const Allocation& from, const Allocation& to, Bytes bytes, std::size_t count) {
    Machine& machine = Machine::get();
    const driver::Cuda& cuda = machine.cuda();
    std::vector<backends::cuda::BatchPart> parts;
    std::vector<CUdeviceptr> targets, sources;
    for (std::size_t i = 0; i < count; ++i) {
        targets.push_back(reinterpret_cast<CUdeviceptr>(to.address()) + i * bytes);
        sources.push_back(reinterpret_cast<CUdeviceptr>(from.address()) + i * bytes);
        parts.push_back({targets.back(), sources.back(), bytes});
    }
    std::vector<std::size_t> sizes(count, bytes);
    const SlowStream stream(gpu);
    const std::shared_ptr<const driver::CudaContext> context(&machine.context(gpu), [](const auto*) {});
    auto kernel = backends::cuda::BatchKernel::load(context);
    ASSERT_TRUE(kernel) << kernel.error().to_string();
    driver::ScopedCudaContext current(*context);
    const double by_kernel =
        best_seconds(cuda, stream.get(), [&] { return kernel->launch(parts, stream.get()); });
    const double by_call = best_seconds(cuda, stream.get(), [&] {
        return cuda.check(cuda.batch_copy(targets.data(), sources.data(), sizes.data(), count, stream.get()),
                          "cuMemcpyBatchAsync");
    });
    const double by_loop = best_seconds(cuda, stream.get(), [&]() -> Result<void> {
        for (const auto& part : parts)
            if (auto done =
                    cuda.check(cuda.cuMemcpyAsync(part.to, part.from, part.bytes, stream.get()), "copy");
                !done)
                return done;
        return {};
    });
    fmt::print("    {} x {}, {} -> {}: kernel {}, batch call {}, one by one {}\n", count, format_bytes(bytes),
               from.place().to_string(), to.place().to_string(), format_seconds(by_kernel),
               format_seconds(by_call), format_seconds(by_loop));
}

TEST_F(Batches, WhatEachWayCosts) {
    const std::pair<Bytes, std::size_t> shapes[] = {
        {4_KiB, 10'000}, {64_KiB, 1000}, {256_KiB, 400}, {1_MiB, 100}};
    const int last = two_gpus() ? 1 : 0;
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, 105_MiB);
    const Allocation gpu = raw_memory(Raw::device, 0, 105_MiB);
    const Allocation peer = raw_memory(Raw::device, last, 105_MiB);
    ASSERT_TRUE(context_->copy(gpu.buffer(), peer.buffer()).wait());  // enables peer access
    for (const auto& [bytes, count] : shapes) {
        measure_ways(0, pinned, gpu, bytes, count);
        measure_ways(0, gpu, pinned, bytes, count);
        measure_ways(last, gpu, peer, bytes, count);
    }
    // The whole library, with its look at 20,000 ends.
    std::vector<BatchItem> items;
    for (std::size_t i = 0; i < 10'000; ++i)
        items.push_back({gpu.buffer().slice(i * 4_KiB, 4_KiB), peer.buffer().slice(i * 4_KiB, 4_KiB)});
    for (int round = 0; round < 3; ++round) {
        const auto start = std::chrono::steady_clock::now();
        Transfer transfer = context_->copy_batch(items);
        const double submitted =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        ASSERT_TRUE(transfer.wait());
        const double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        fmt::print("    10000 x 4 KiB, copy_batch: submitted in {}, ended after {}\n",
                   format_seconds(submitted), format_seconds(whole));
    }
}

}  // namespace
}  // namespace sidestep::gpu_tests::batch
