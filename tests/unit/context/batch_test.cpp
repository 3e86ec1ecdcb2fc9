// Batches, descriptors and coroutines through the public API, over an emulated machine.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>

#include <sidestep/cuda.hpp>
#include <sidestep/sidestep.hpp>

#include "tests/contents.hpp"

namespace sidestep {
namespace {

namespace fs = std::filesystem;

void fill(const Allocation& memory, unsigned seed) {
    test::fill(memory.address(), memory.size(), seed);
}

class BatchOfContext : public testing::Test {
protected:
    BatchOfContext() : context(*Context::open({"dgx-h100"})) {}

    Allocation memory(const Place& place, Bytes bytes, MemoryKind kind = MemoryKind::automatic) {
        auto made = context.allocate(place, bytes, kind);
        EXPECT_TRUE(made) << made.error().to_string();
        return std::move(*made);
    }
    // Emulated memory of GPUs is this process's own.
    static bool equal(const Allocation& a, const Allocation& b) {
        return std::memcmp(a.address(), b.address(), a.size()) == 0;
    }
    static void add(std::vector<BatchItem>& items, const Allocation& from, const Allocation& to, Bytes step) {
        for (Bytes at = 0; at < from.size(); at += step) {
            const Bytes size = std::min(step, from.size() - at);
            items.push_back({from.buffer().slice(at, size), to.buffer().slice(at, size)});
        }
    }

    Context context;
};

TEST_F(BatchOfContext, TenThousandBetweenTwoGpus) {
    const Allocation from = memory(Place::gpu(0), 10'000 * 4_KiB);
    const Allocation to = memory(Place::gpu(5), 10'000 * 4_KiB);
    fill(from, 1);
    std::vector<BatchItem> items;
    add(items, from, to, 4_KiB);
    const auto receipt = context.copy_batch(items).wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(equal(from, to));
    EXPECT_EQ(receipt->bytes, from.size());
    ASSERT_EQ(receipt->route->lanes.size(), 1u);
    EXPECT_NE(receipt->route->lanes[0].hops[0].engine.find("kernel"), std::string::npos)
        << receipt->explain();
    EXPECT_TRUE(receipt->notes.empty()) << receipt->notes[0];
    EXPECT_NE(receipt->to_json().find("\"lanes\""), std::string::npos);
}

// Kinds, places and files in one batch: each goes its way.
TEST_F(BatchOfContext, EverySortOfCopyInOne) {
    const fs::path path = fs::temp_directory_path() / ("sidestep-batch-" + std::to_string(::getpid()));
    const Allocation pinned = memory(Place::host(), 256_KiB, MemoryKind::pinned);
    const Allocation pageable = memory(Place::host(), 256_KiB, MemoryKind::pageable);
    const Allocation up = memory(Place::gpu(1), 256_KiB);
    const Allocation up_staged = memory(Place::gpu(1), 256_KiB);
    const Allocation across = memory(Place::gpu(2), 256_KiB);
    const Allocation down = memory(Place::host(), 256_KiB, MemoryKind::pageable);
    fill(pinned, 2);
    fill(pageable, 3);
    const Allocation here = memory(Place::gpu(3), 256_KiB);
    fill(here, 4);
    std::vector<BatchItem> items;
    add(items, pinned, up, 1000);
    add(items, pageable, up_staged, 64_KiB);
    add(items, here, across, 4_KiB);
    add(items, pageable, down, 5000);
    items.push_back({here.buffer(), Buffer::file(path.string())});
    const auto receipt = context.copy_batch(items).wait();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(equal(pinned, up));
    EXPECT_TRUE(equal(pageable, up_staged));
    EXPECT_TRUE(equal(here, across));
    EXPECT_TRUE(equal(pageable, down));
    EXPECT_EQ(receipt->bytes, 5 * 256_KiB);
    EXPECT_EQ(receipt->storage.total(), 256_KiB) << "of the file";
    EXPECT_EQ(receipt->notes.size(), 4u) << "the four other ways";
    const std::string written = test::get(path);
    ASSERT_EQ(written.size(), here.size());
    EXPECT_EQ(std::memcmp(written.data(), here.address(), here.size()), 0);
    fs::remove(path);
}

TEST_F(BatchOfContext, LargeCopiesAreCopiesOfTheirOwn) {
    const Allocation from = memory(Place::gpu(0), 40_MiB);
    const Allocation to = memory(Place::gpu(1), 40_MiB);
    fill(from, 5);
    std::vector<BatchItem> items;
    items.push_back({from.buffer().slice(0, 36_MiB), to.buffer().slice(0, 36_MiB)});
    items.push_back({from.buffer().slice(36_MiB, 4_MiB), to.buffer().slice(36_MiB, 4_MiB)});
    ASSERT_TRUE(context.copy_batch(items).wait());
    EXPECT_TRUE(equal(from, to));
}

TEST_F(BatchOfContext, CancelledBatchesEnd) {
    const Allocation from = memory(Place::gpu(0), 64_MiB);
    const Allocation to = memory(Place::gpu(1), 64_MiB);
    std::vector<BatchItem> items;
    add(items, from, to, 1_KiB);
    Transfer transfer = context.copy_batch(items);
    transfer.cancel();
    const auto receipt = transfer.wait();
    // It may have ended before.
    EXPECT_TRUE(receipt || receipt.error().code == ErrorCode::cancelled) << receipt.error().to_string();
    { Transfer dropped = context.copy_batch(items); }
}

TEST_F(BatchOfContext, StreamsNeedGpusThatAreThere) {
    const Allocation from = memory(Place::gpu(0), 4_KiB);
    const Allocation to = memory(Place::gpu(1), 4_KiB);
    const auto receipt = cuda::copy_batch(context, {{from.buffer(), to.buffer()}}, nullptr).wait();
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::unsupported);
}

TEST_F(BatchOfContext, ADescriptorTellsOfTheEnd) {
    const Allocation from = memory(Place::gpu(0), 8_MiB);
    const Allocation to = memory(Place::gpu(1), 8_MiB);
    fill(from, 6);
    std::vector<BatchItem> items;
    add(items, from, to, 3000);
    Transfer transfer = context.copy_batch(items);
    const auto descriptor = transfer.event_fd();
    ASSERT_TRUE(descriptor) << descriptor.error().to_string();
    pollfd entry{*descriptor, POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 60'000), 1);
    ASSERT_TRUE(transfer.poll());
    EXPECT_TRUE(equal(from, to));
}

// A coroutine that starts at once and frees itself at its end.
struct Task {
    struct promise_type {
        Task get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

struct Outcome {
    std::mutex mutex;
    std::condition_variable wake;
    bool ended = false;
    std::string error;
};

// Two copies one after the other; owns what they need.
Task there_and_back(Context context, Allocation from, Allocation over, Allocation back, Outcome& outcome) {
    auto there = co_await context.copy(from.buffer(), over.buffer());
    auto home = co_await context.copy(over.buffer(), back.buffer());
    std::string error = !there ? there.error().to_string() : !home ? home.error().to_string() : "";
    if (error.empty() && std::memcmp(from.address(), back.address(), from.size()) != 0) error = "other bytes";
    std::lock_guard lock(outcome.mutex);
    outcome.error = std::move(error);
    outcome.ended = true;
    outcome.wake.notify_all();
}

// The frame, which ends on the library's thread, holds the last handle of everything.
TEST(CoroutineOfContext, MayOwnTheContext) {
    auto context = Context::open({"dgx-h100"});
    ASSERT_TRUE(context);
    auto from = context->allocate(Place::gpu(0), 5'000'001);
    auto over = context->allocate(Place::gpu(1), 5'000'001);
    auto back = context->allocate(Place::host(), 5'000'001);
    ASSERT_TRUE(from && over && back);
    fill(*from, 7);
    Outcome outcome;
    there_and_back(std::move(*context), std::move(*from), std::move(*over), std::move(*back), outcome);
    std::unique_lock lock(outcome.mutex);
    outcome.wake.wait(lock, [&] { return outcome.ended; });
    EXPECT_EQ(outcome.error, "");
}

}  // namespace
}  // namespace sidestep
