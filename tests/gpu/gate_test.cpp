// Gates: a stream that waits for the host, and what the driver still does meanwhile.
#include <future>

#include <fmt/format.h>

#include "backends/cuda/gate.hpp"
#include "tests/gpu/raw_memory.hpp"
#include "tests/gpu/slow_stream.hpp"

namespace sidestep::gpu_tests::gate {
namespace {

using backends::cuda::Engine;
using std::chrono::milliseconds;

class Gates : public GpuTest {};

TEST_F(Gates, HoldsTheStreamUntilOpened) {
    SlowStream stream(0);
    std::atomic<bool> before{false};
    std::atomic<bool> behind{false};
    stream.sleep(milliseconds(200));
    stream.run([&before] { before = true; });
    auto gate = backend().streams()->gate(stream.get());
    ASSERT_TRUE(gate) << gate.error().to_string();
    stream.run([&behind] { behind = true; });
    for (;;) {
        auto ready = (*gate)->ready();
        ASSERT_TRUE(ready) << ready.error().to_string();
        if (*ready) break;
    }
    EXPECT_TRUE(before);
    EXPECT_FALSE(stream.drained(milliseconds(200)));
    EXPECT_FALSE(behind);
    (*gate)->open();
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
    EXPECT_TRUE(behind);
}

TEST_F(Gates, WithoutEventsTheDriversWordsAreTold) {
    SlowStream stream(0);
    ::setenv("FAKE_CUDA_NO_EVENTS", "1", 1);
    auto gate = backend().streams()->gate(stream.get());
    ::unsetenv("FAKE_CUDA_NO_EVENTS");
    if (gate) GTEST_SKIP() << "the driver of this machine makes events all the same";
    EXPECT_NE(gate.error().message.find("711"), std::string::npos) << gate.error().to_string();
    EXPECT_TRUE(backend().streams()->gate(stream.get())) << "its word came back";
}

TEST_F(Gates, OpensWhenDestroyed) {
    SlowStream stream(0);
    {
        auto gate = backend().streams()->gate(stream.get());
        ASSERT_TRUE(gate) << gate.error().to_string();
        EXPECT_FALSE(stream.drained(milliseconds(100)));
    }
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
}

// The word of a gate that was opened before its stream came to it must not serve another gate meanwhile.
TEST_F(Gates, OpenedEarlyStaysOpen) {
    SlowStream stream(0);
    SlowStream other(0);
    stream.sleep(milliseconds(300));
    {
        auto early = backend().streams()->gate(stream.get());
        ASSERT_TRUE(early) << early.error().to_string();
    }
    auto closed = backend().streams()->gate(other.get());
    ASSERT_TRUE(closed) << closed.error().to_string();
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
    EXPECT_FALSE(other.drained(milliseconds(50)));
    (*closed)->open();
}

// Nor where the driver cannot say whether the stream has passed.
TEST_F(Gates, AFailedQuestionFreesNoWord) {
    SlowStream stream(0), other(0);
    std::atomic<bool> go_on{false};
    stream.run([&go_on] {
        while (!go_on) std::this_thread::yield();
    });
    {
        auto early = backend().streams()->gate(stream.get());
        ASSERT_TRUE(early) << early.error().to_string();
    }
    ::setenv("FAKE_CUDA_FAIL", "cuEventQuery:1", 1);
    (void)backend().streams()->gate(other.get()).ok();  // its end looks what has passed
    ::unsetenv("FAKE_CUDA_FAIL");
    auto closed = backend().streams()->gate(other.get());
    go_on = true;
    ASSERT_TRUE(closed) << closed.error().to_string();
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
    (*closed)->open();
}

// A word on which a stream still waits is kept, be it that nothing will tell when the stream has passed.
TEST_F(Gates, AWordThatIsWaitedForIsKept) {
    SlowStream stream(0);
    const std::shared_ptr<const driver::Cuda> driver = driver::Cuda::load().value();
    const auto gpus = backends::cuda::Gpus::find(driver, machine().topology()).value();
    auto words = std::make_shared<backends::cuda::GateWords>(driver);
    const auto callers = backends::cuda::callers_stream(*driver, stream.get(), nullptr).value();
    // The first gate takes the page of words: the driver may have that wait for a function on a stream.
    ASSERT_TRUE(words->put(*gpus, callers));
    ASSERT_TRUE(stream.drained(milliseconds(30'000)));
    std::atomic<bool> go_on{false};
    stream.run([&go_on, end = std::chrono::steady_clock::now() + std::chrono::seconds(60)] {
        while (!go_on && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    });
    ::setenv("FAKE_CUDA_FAIL", "cuEventRecord:2", 1);
    (void)words->put(*gpus, callers).ok();
    ::unsetenv("FAKE_CUDA_FAIL");
    // To free it would wait for the stream.
    auto gone = std::async(std::launch::async, [&words] { words.reset(); });
    EXPECT_EQ(gone.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    go_on = true;
    gone.get();
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
}

TEST_F(Gates, ManyOneAfterTheOther) {
    SlowStream stream(0);
    for (int i = 0; i < 5000; ++i) {
        auto gate = backend().streams()->gate(stream.get());
        ASSERT_TRUE(gate) << i << ": " << gate.error().to_string();
    }
    EXPECT_TRUE(stream.drained(milliseconds(30'000)));
}

TEST_F(Gates, TooManyAtATimeAreRefused) {
    SlowStream stream(0);
    std::vector<std::unique_ptr<backend::Gate>> gates;
    for (int i = 0; i < 150; ++i) {
        auto gate = backend().streams()->gate(stream.get());
        if (!gate) {
            EXPECT_EQ(gate.error().code, ErrorCode::unsupported) << gate.error().to_string();
            break;
        }
        gates.push_back(std::move(*gate));
    }
    EXPECT_EQ(gates.size(), 128u);
    gates.clear();
}

// A staged copy works while its gate is closed: nothing it does may wait for the stream.
class ClosedGate : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        host_ = raw_memory(Raw::host_alloc, 0, 1_MiB);
        gpu_ = raw_memory(Raw::device, 0, 1_MiB);
        ASSERT_TRUE(move(backend(), host_.buffer(), gpu_.buffer(), Engine::host_to_gpu));
        // The first one within a GPU waits for streams that are held.
        ASSERT_TRUE(
            move(backend(), gpu_.buffer().slice(0, 4), gpu_.buffer().slice(4, 4), Engine::local_copy));
        // Which streams share a queue with this one is a matter of how many there were before.
        ::setenv("FAKE_CUDA_OWN_QUEUE", "1", 1);
        stream_.emplace(0);
        ::unsetenv("FAKE_CUDA_OWN_QUEUE");
        auto gate = backend().streams()->gate(stream_->get());
        ASSERT_TRUE(gate) << gate.error().to_string();
        gate_ = std::move(*gate);
    }

    // Whether the call came back while the gate was closed; opens the gate if it did not.
    bool comes_back(const char* what, std::function<void()> call) {
        std::packaged_task<void()> task(std::move(call));
        auto done = task.get_future();
        std::thread thread(std::move(task));
        const bool back = done.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
        fmt::print("    with a gate closed, {} {}\n", what, back ? "goes on" : "WAITS for the gate");
        std::fflush(stdout);
        if (!back) gate_->open();
        thread.join();
        fmt::print("    ended\n");
        std::fflush(stdout);
        return back;
    }

    Allocation host_;
    Allocation gpu_;
    std::optional<SlowStream> stream_;
    std::unique_ptr<backend::Gate> gate_;
};

TEST_F(ClosedGate, LetsPiecesThrough) {
    const auto copy = [&](std::size_t engine, const Buffer& from, const Buffer& to) {
        auto moved = move(backend(), from, to, engine);
        EXPECT_TRUE(moved) << moved.error().to_string();
    };
    const Buffer lower = gpu_.buffer().slice(0, 500'000);
    const Buffer upper = gpu_.buffer().slice(500'000, 500'000);
    EXPECT_TRUE(comes_back("a copy from the host",
                           [&] { copy(Engine::host_to_gpu, host_.buffer(), gpu_.buffer()); }));
    EXPECT_TRUE(
        comes_back("a copy to the host", [&] { copy(Engine::gpu_to_host, gpu_.buffer(), host_.buffer()); }));
    EXPECT_TRUE(comes_back("a copy inside the GPU", [&] { copy(Engine::local_copy, lower, upper); }));
    EXPECT_TRUE(comes_back("a copy by the kernel", [&] { copy(Engine::local_kernel, lower, upper); }));
}

TEST_F(ClosedGate, LetsAllocationsThrough) {
    std::vector<Allocation> kept;
    const auto allocate = [&](const Place& place, MemoryKind kind) {
        auto memory = backend().allocator()->allocate(place, 8_MiB, kind);
        ASSERT_TRUE(memory) << memory.error().to_string();
        kept.push_back(std::move(*memory));
    };
    EXPECT_TRUE(comes_back("allocating pinned memory", [&] { allocate(Place::host(), MemoryKind::pinned); }));
    EXPECT_TRUE(
        comes_back("pinning memory of a node", [&] { allocate(Place::host(0), MemoryKind::pinned); }));
    EXPECT_TRUE(comes_back("allocating device memory", [&] { allocate(Place::gpu(0), MemoryKind::device); }));
    EXPECT_TRUE(comes_back("allocating VMM memory", [&] { allocate(Place::gpu(0), MemoryKind::vmm); }));
    EXPECT_TRUE(comes_back("allocating pool memory", [&] { allocate(Place::gpu(0), MemoryKind::pool); }));
    gate_->open();  // freeing waits for it
}

// Freeing may wait, as CUDA documents: printed, for whoever decides when to free.
TEST_F(ClosedGate, FreeingIsObserved) {
    for (MemoryKind kind : {MemoryKind::device, MemoryKind::vmm, MemoryKind::pool, MemoryKind::pinned}) {
        gate_->open();
        const Place place = kind == MemoryKind::pinned ? Place::host() : Place::gpu(0);
        auto memory = backend().allocator()->allocate(place, 8_MiB, kind);
        ASSERT_TRUE(memory) << memory.error().to_string();
        auto gate = backend().streams()->gate(stream_->get());
        ASSERT_TRUE(gate) << gate.error().to_string();
        gate_ = std::move(*gate);
        comes_back(fmt::format("freeing {} memory", sidestep::to_string(kind)).c_str(),
                   [&] { *memory = Allocation(); });
    }
}

TEST_F(ClosedGate, OpensAnotherGpu) {
    if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
    const int other = machine().gpus() - 1;
    EXPECT_TRUE(comes_back("opening another GPU", [&] {
        auto memory = backend().allocator()->allocate(Place::gpu(other), 1_MiB, MemoryKind::device);
        ASSERT_TRUE(memory) << memory.error().to_string();
        if (!machine().topology().peer_access(0, other).allowed) return;
        auto moved = move(backend(), gpu_.buffer(), memory->buffer(), Engine::peer_copy);
        EXPECT_TRUE(moved) << moved.error().to_string();
    }));
}

}  // namespace
}  // namespace sidestep::gpu_tests::gate
