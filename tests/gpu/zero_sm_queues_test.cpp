// Streams share queues of their GPU, and one that waits holds up what others put into the same: copies of
// zero_sm go by others. Each test runs on streams of all queues, one after the other.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tests/gpu/collective_rig.hpp"
#include "tests/gpu/raw_memory.hpp"
#include "tests/unit/collective_seat/crew.hpp"

namespace sidestep::gpu_tests::zero_sm_queues {
namespace {

using collective_seat::Crew;
using collective_seat::Values;
using protocol::CollectiveTask;
using protocol::Shape;

constexpr std::uint64_t block = 10'000;
constexpr std::uint64_t recv_at = 1 << 20;
constexpr std::uint64_t deadline_ns = 5'000'000'000;

// Streams of one GPU.
class Streams {
public:
    Streams(int gpu, unsigned count) : gpu_(gpu) {
        const driver::ScopedCudaContext current(Machine::get().context(gpu));
        for (; count > 0; --count) {
            CUstream stream = nullptr;
            expect_success(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            streams_.push_back(stream);
        }
    }
    ~Streams() {
        const driver::ScopedCudaContext current(Machine::get().context(gpu_));
        for (CUstream stream : streams_) cuda().cuStreamDestroy(stream);
    }
    Streams(Streams&& other) noexcept : gpu_(other.gpu_), streams_(std::exchange(other.streams_, {})) {}
    Streams& operator=(Streams&&) = delete;
    CUstream operator[](std::size_t i) const { return streams_[i]; }
    std::size_t size() const { return streams_.size(); }
    static const driver::Cuda& cuda() { return Machine::get().cuda(); }

private:
    int gpu_;
    std::vector<CUstream> streams_;
};

// From everybody to everybody, and out of place.
CollectiveTask all_to_all(const Crew& crew, unsigned rank, bool mapped) {
    CollectiveTask task;
    task.shape = Shape::copies;
    task.signature = 5;
    task.send = crew.at(rank, 0);
    task.recv = crew.at(rank, recv_at);
    for (unsigned r = 0; r < crew.ranks(); ++r) {
        task.to[r] = task.from[r] = {r * block, block};
        if (mapped) task.from_tokens[r] = {1, recv_at + r * block};
    }
    return task;
}

Values given(unsigned from, unsigned to, unsigned round) {
    return Values(block, static_cast<char>(from * 16 + to + round * 3));
}

class CopyQueues : public testing::TestWithParam<bool> {
protected:
    void open(unsigned ranks) {
        crew_ = std::make_unique<Crew>(ranks, deadline_ns);
        if (!crew_->ready() || Machine::get().gpus() < 2) GTEST_SKIP() << "there are fewer than 2 GPUs";
    }
    // Each rank on its stream.
    void run(const std::vector<CUstream>& streams, unsigned round) {
        for (unsigned rank = 0; rank < crew_->ranks(); ++rank) {
            for (unsigned to = 0; to < crew_->ranks(); ++to)
                crew_->write(rank, to * block, given(rank, to, round));
            crew_->fill(rank, recv_at, crew_->ranks() * block, 'x');
        }
        for (unsigned rank = 0; rank < crew_->ranks(); ++rank) {
            if (before_) before_(rank, streams[rank]);
            CollectiveTask task = all_to_all(*crew_, rank, GetParam());
            if (!own_block_) task.to[rank] = task.from[rank] = {};
            const auto started = crew_->seat(rank).run(task, streams[rank]);
            ASSERT_TRUE(started) << started.error().to_string();
        }
        ASSERT_NO_FATAL_FAILURE(crew_->finish());
        for (unsigned rank = 0; rank < crew_->ranks(); ++rank)
            for (unsigned from = 0; from < crew_->ranks(); ++from)
                EXPECT_EQ(crew_->read(rank, recv_at + from * block, block),
                          from == rank && !own_block_ ? Values(block, 'x') : given(from, rank, round))
                    << "from " << from << " to " << rank;
    }
    // On fresh streams, so that each round has other queues.
    void run_in_every_queue(unsigned ranks) {
        open(ranks);
        if (IsSkipped()) return;
        std::vector<Streams> made;
        for (unsigned round = 0; round < 9; ++round) {
            SCOPED_TRACE(fmt::format("round {}", round));
            std::vector<CUstream> streams;
            for (unsigned rank = 0; rank < ranks; ++rank)
                streams.push_back(made.emplace_back(gpu_of(rank), 1)[0]);
            run(streams, round);
            if (HasFatalFailure()) return;
        }
    }

    // How long the call takes, not the copy.
    bool takes_copies_slowly(CUstream stream) const {
        const driver::ScopedCudaContext current(Machine::get().context(0));
        const auto at = reinterpret_cast<CUdeviceptr>(crew_->at(0, 0));
        const auto start = std::chrono::steady_clock::now();
        expect_success(Streams::cuda().cuMemcpyAsync(at + block, at, 8, stream), "cuMemcpyAsync");
        return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(15);
    }

    std::unique_ptr<Crew> crew_;
    std::function<void(unsigned, CUstream)> before_;
    bool own_block_ = true;
};

TEST_P(CopyQueues, OfEachCallersStream) {
    run_in_every_queue(2);
}

TEST_P(CopyQueues, OfRanksThatShareAGpu) {
    run_in_every_queue(4);
}

TEST_P(CopyQueues, OfMoreRanksThatShareAGpu) {
    run_in_every_queue(6);
}

// A stream waits in the queue that it used last.
TEST_P(CopyQueues, OfCallersStreamsThatCopiedToOthers) {
    before_ = [&](unsigned rank, CUstream stream) {
        const driver::ScopedCudaContext current(Machine::get().context(gpu_of(rank)));
        const auto from = reinterpret_cast<CUdeviceptr>(crew_->at(rank, 3 << 20));
        const auto to = reinterpret_cast<CUdeviceptr>(crew_->at((rank + 1) % crew_->ranks(), 3 << 20));
        expect_success(Streams::cuda().cuMemcpyAsync(to, from, 4096, stream), "cuMemcpyAsync");
    };
    own_block_ = false;
    run_in_every_queue(2);
}

// What a stream is told to wait for may be these very copies, and its queue the one that they go through. So a wait that
// is enqueued while copies are does not come between the look at the queue and the copies.
TEST_P(CopyQueues, OfAStreamThatIsToldToWaitMeanwhile) {
    const auto gpus = static_cast<unsigned>(Machine::get().gpus());
    crew_ = std::make_unique<Crew>(gpus + 1, deadline_ns);  // the last one shares the GPU of the first
    if (!crew_->ready()) GTEST_SKIP() << Machine::get().missing();
    // In no queue of the others': what one rank waits for would be held up by it.
    ::setenv("FAKE_CUDA_OWN_QUEUE", "1", 1);
    const Streams own(0, 1);
    ::unsetenv("FAKE_CUDA_OWN_QUEUE");
    const Streams others(0, 9);  // one of them has the queue of the copies
    ::setenv("FAKE_CUDA_SLOW_CALLS", "20", 1);
    const bool slow = takes_copies_slowly(own[0]);
    const auto group = Machine::get().backend().seats()->seat({0, 1, Place::gpu(0)}).value();
    for (unsigned round = 0; slow && round < others.size() && !HasFatalFailure(); ++round) {
        SCOPED_TRACE(fmt::format("round {}", round));
        for (const bool next : {false, true}) {
            for (unsigned rank = 0; rank < crew_->ranks(); ++rank) {
                CollectiveTask task = all_to_all(*crew_, rank, GetParam());
                task.to[rank] = task.from[rank] = {};
                void* const stream = rank == gpus        ? own[0]
                                     : next && rank == 0 ? others[round]
                                                         : crew_->rig().stream(rank);
                EXPECT_TRUE(crew_->seat(rank).run(task, stream));
            }
            if (next) continue;
            // Another group, whose tasks are no copies, waits in the same way.
            EXPECT_TRUE(group->run(CollectiveTask(), crew_->rig().stream(0)));
            // Now the copies are on their way into the streams.
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            EXPECT_TRUE(group->run(CollectiveTask(), others[round]));
        }
        crew_->finish();
    }
    ::unsetenv("FAKE_CUDA_SLOW_CALLS");
    if (!slow) GTEST_SKIP() << "this driver cannot be told to be slow, nor which queue a stream gets";
}

INSTANTIATE_TEST_SUITE_P(Ways, CopyQueues, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "mapped" : "staged"; });

}  // namespace
}  // namespace sidestep::gpu_tests::zero_sm_queues
