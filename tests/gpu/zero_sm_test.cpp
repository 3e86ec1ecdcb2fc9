// Groups of the policy zero_sm on GPUs: through the public interface, on streams and in graphs, and what ends
// a wait of a stream.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include <sidestep/group.hpp>

#include "tests/gpu/collective_rig.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::zero_sm {
namespace {

constexpr std::size_t count = 5000;

class CopyGroups : public ContextTest {
protected:
    void SetUp() override {
        ContextTest::SetUp();
        if (IsSkipped()) return;
        if (machine().gpus() < 2) GTEST_SKIP() << "there are fewer than 2 GPUs";
    }

    void open(int timeout_ms = 30'001) {
        GroupOptions options;
        options.policy = GroupPolicy::zero_sm;
        options.timeout = std::chrono::milliseconds(timeout_ms);
        auto made = Group::local(*context_, {Place::gpu(0), Place::gpu(1)}, options);
        ASSERT_TRUE(made) << made.error().to_string();
        groups_ = std::move(*made);
        rig_ = collective_seat::make_rig(2);
        for (int rank = 0; rank < 2; ++rank) {
            for (auto* list : {&sends_, &recvs_}) {
                auto memory = context_->allocate(Place::gpu(rank), 2 * count * sizeof(int));
                ASSERT_TRUE(memory) << memory.error().to_string();
                list->push_back(std::move(*memory));
            }
        }
    }
    CUstream stream(unsigned rank) { return static_cast<CUstream>(rig_->stream(rank)); }

    void fill(int seed) {
        for (unsigned rank = 0; rank < 2; ++rank) {
            std::vector<int> values(count), poison(2 * count, -1);
            for (std::size_t i = 0; i < count; ++i) values[i] = value(seed, rank, i);
            rig_->write(sends_[rank].address(), values.data(), count * sizeof(int));
            rig_->write(recvs_[rank].address(), poison.data(), 2 * count * sizeof(int));
        }
    }
    static int value(int seed, unsigned rank, std::size_t i) {
        return static_cast<int>(i * 3 + rank * 100'000) + seed;
    }
    Result<void> all_gather(unsigned rank, std::size_t elements = count) {
        return groups_[rank].all_gather(sends_[rank].address(), recvs_[rank].address(), elements, Dtype::i32,
                                        stream(rank));
    }
    void expect_gathered(int seed) {
        for (unsigned rank = 0; rank < 2; ++rank) {
            std::vector<int> found(2 * count);
            rig_->read(found.data(), recvs_[rank].address(), found.size() * sizeof(int));
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < found.size(); ++i)
                wrong += found[i] != value(seed, static_cast<unsigned>(i / count), i % count);
            EXPECT_EQ(wrong, 0u) << "rank " << rank;
        }
    }
    // Until the group of a rank has failed.
    Error failure_of(unsigned rank) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (groups_[rank].status().ok() && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const auto state = groups_[rank].status();
        EXPECT_FALSE(state.ok());
        return state.ok() ? Error{} : state.error();
    }

    std::unique_ptr<collective_seat::Rig> rig_;
    std::vector<Allocation> sends_, recvs_;
    std::vector<Group> groups_;
};

TEST_F(CopyGroups, AllGatherOnStreams) {
    open();
    for (int seed = 0; seed < 20; ++seed) {
        fill(seed);
        for (unsigned rank = 0; rank < 2; ++rank) ASSERT_TRUE(all_gather(rank));
        for (Group& group : groups_) ASSERT_TRUE(group.wait());
        expect_gathered(seed);
    }
}

TEST_F(CopyGroups, AllGatherInGraphs) {
    open();
    std::vector<CapturedTasks> graphs;
    for (unsigned rank = 0; rank < 2; ++rank)
        graphs.emplace_back(rank, stream(rank), [&](void*) { ASSERT_TRUE(all_gather(rank)); });
    for (int seed = 0; seed < 20; ++seed) {
        fill(seed);
        for (const CapturedTasks& graph : graphs) graph.launch();
        for (const CapturedTasks& graph : graphs) ASSERT_TRUE(graph.wait());
        expect_gathered(seed);
    }
    // One launches alone, and is let go.
    graphs[0].launch();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    groups_[1].abort("enough");
    EXPECT_TRUE(graphs[0].wait(10)) << "it still waits";
    EXPECT_EQ(failure_of(0).code, ErrorCode::cancelled);
}

// A free waits for streams that wait, and on H200 (driver 580.159.04) nobody else comes into the driver
// meanwhile: the other rank's call neither, and the deadline ends it. Where others do come in, all goes well.
TEST_F(CopyGroups, WhoFreesMemoryMeanwhileWaitsForTheDeadlineAtMost) {
    ASSERT_NO_FATAL_FAILURE(open(2'000));
    fill(1);
    for (unsigned rank = 0; rank < 2; ++rank) ASSERT_TRUE(all_gather(rank));
    for (Group& group : groups_) ASSERT_TRUE(group.wait());
    fill(2);
    Allocation memory = raw_memory(Raw::device, 0, 1 << 20);
    ASSERT_TRUE(all_gather(0));
    const auto start = std::chrono::steady_clock::now();
    std::thread frees([&memory] { memory = Allocation(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const bool called = all_gather(1).ok();
    bool good = called;
    for (Group& group : groups_) {
        const auto state = group.wait();
        good = good && state.ok();
        if (state.ok()) continue;
        EXPECT_EQ(state.error().code, ErrorCode::timed_out) << state.error().to_string();
        EXPECT_NE(state.error().message.find("rank 1"), std::string::npos) << state.error().message;
    }
    frees.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
    if (good) expect_gathered(2);
}

// Blocks of a size that are copied at a time, straight where the memory is known to all and by way of the
// arenas before.
TEST_F(CopyGroups, LargeBlocksBeforeAndAfterTheyAreMapped) {
    open();
    constexpr std::size_t bytes = 40 << 20;
    std::vector<Allocation> memory;
    for (unsigned rank = 0; rank < 2; ++rank)
        memory.push_back(raw_memory(Raw::device, static_cast<int>(rank), 2 * bytes));
    for (int seed = 0; seed < 3; ++seed) {
        for (unsigned rank = 0; rank < 2; ++rank) {
            const std::vector<char> own(bytes, static_cast<char>('a' + seed * 2 + static_cast<int>(rank)));
            rig_->write(static_cast<char*>(memory[rank].address()) + rank * bytes, own.data(), bytes);
        }
        for (unsigned rank = 0; rank < 2; ++rank) {
            char* const all = static_cast<char*>(memory[rank].address());
            ASSERT_TRUE(groups_[rank].all_gather(all + rank * bytes, all, bytes, Dtype::u8, stream(rank)));
        }
        for (Group& group : groups_) ASSERT_TRUE(group.wait());
        for (unsigned rank = 0; rank < 2; ++rank) {
            std::vector<char> found(2 * bytes);
            rig_->read(found.data(), memory[rank].address(), found.size());
            for (std::size_t i : {std::size_t{0}, bytes / 2, bytes - 1, bytes, 2 * bytes - 1})
                EXPECT_EQ(found[i], 'a' + seed * 2 + static_cast<int>(i / bytes))
                    << "rank " << rank << ", byte " << i;
            EXPECT_EQ(static_cast<std::size_t>(std::count(found.begin(), found.end(), 'a' + seed * 2)),
                      bytes);
        }
        if (seed > 0) continue;
        for (unsigned rank = 0; rank < 2; ++rank) ASSERT_TRUE(groups_[rank].attach(memory[rank].buffer()));
        const auto plan =
            groups_[0].explain(Collective::all_gather, bytes, Dtype::u8, {}, nullptr, memory[0].address());
        ASSERT_TRUE(plan);
        EXPECT_EQ(plan->memory.find("yes"), 0u) << plan->memory;
    }
}

TEST_F(CopyGroups, ARankThatNeverComesIsNamed) {
    ASSERT_NO_FATAL_FAILURE(open(3'000));
    ASSERT_TRUE(all_gather(0));
    const Error error = failure_of(0);
    EXPECT_EQ(error.code, ErrorCode::timed_out) << error.to_string();
    EXPECT_NE(error.message.find("rank 1"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("did not come to operation 1, all_gather 5000 i32"), std::string::npos)
        << error.message;
    EXPECT_FALSE(failure_of(1).message.empty());
}

// Long before the deadline.
TEST_F(CopyGroups, RanksThatCallAnotherCountAreTold) {
    open();
    ASSERT_TRUE(all_gather(0, 1000));
    ASSERT_TRUE(all_gather(1, 999));
    for (unsigned rank = 0; rank < 2; ++rank) {
        const Error error = failure_of(rank);
        EXPECT_EQ(error.code, ErrorCode::mismatch) << error.to_string();
        EXPECT_NE(error.message.find("all_gather 1000 i32"), std::string::npos) << error.message;
        EXPECT_NE(error.message.find("all_gather 999 i32"), std::string::npos) << error.message;
    }
}

// Where the streams that wait hold up every queue that copies could go through, no copy begins: the deadline
// ends it, and a warning says why.
TEST_F(CopyGroups, CopiesThatNoQueueTakesEndAtTheDeadline) {
    ::setenv("FAKE_CUDA_ONE_QUEUE", "1", 1);
    testing::internal::CaptureStderr();
    ASSERT_NO_FATAL_FAILURE(open(3'000));
    for (unsigned call = 0; call < 20; ++call)
        for (unsigned rank = 0; rank < 2; ++rank) static_cast<void>(all_gather(rank));
    for (unsigned rank = 0; rank < 2; ++rank) {
        if (groups_[rank].wait()) {
            testing::internal::GetCapturedStderr();
            ::unsetenv("FAKE_CUDA_ONE_QUEUE");
            GTEST_SKIP() << "this GPU has more than one queue";
        }
        EXPECT_EQ(failure_of(rank).code, ErrorCode::timed_out) << failure_of(rank).to_string();
        driver::ScopedCudaContext current(machine().context(gpu_of(rank)));
        expect_success(machine().cuda().cuStreamSynchronize(stream(rank)), "cuStreamSynchronize");
    }
    ::unsetenv("FAKE_CUDA_ONE_QUEUE");
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("hold up every queue"), std::string::npos) << said;
    EXPECT_NE(said.find("CUDA_DEVICE_MAX_CONNECTIONS=32"), std::string::npos) << said;
}

TEST_F(CopyGroups, ExplainSaysWhereAGpuHasFewQueues) {
    open();
    const auto reason = [&] {
        const auto plan = groups_[0].explain(Collective::all_gather, count, Dtype::i32);
        return plan ? plan->reason : plan.error().to_string();
    };
    const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const std::string before = set ? set : "";
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
    EXPECT_NE(reason().find("CUDA_DEVICE_MAX_CONNECTIONS is 8: "), std::string::npos) << reason();
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    EXPECT_EQ(reason().find("CUDA_DEVICE_MAX_CONNECTIONS"), std::string::npos) << reason();
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    EXPECT_NE(reason().find("CUDA_DEVICE_MAX_CONNECTIONS is not set: "), std::string::npos) << reason();
    if (set) ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", before.c_str(), 1);
}

// Each mapping comes to lie somewhere else at the others, so what spans two of them is never lent.
TEST_F(CopyGroups, BuffersAcrossMappings) {
    open();
    const std::size_t bytes = 5 << 20;
    std::vector<Allocation> pieces;
    for (int rank = 0; rank < 2; ++rank) pieces.push_back(raw_memory(Raw::vmm_pieces, rank, 2 * bytes));
    const std::size_t elements = bytes / sizeof(int);
    std::vector<std::vector<int>> given(2, std::vector<int>(elements));
    for (int round = 0; round < 3; ++round) {
        for (unsigned rank = 0; rank < 2; ++rank) {
            for (std::size_t i = 0; i < elements; ++i) given[rank][i] = value(round, rank, i);
            rig_->write(static_cast<char*>(pieces[rank].address()) + rank * bytes, given[rank].data(), bytes);
        }
        for (unsigned rank = 0; rank < 2; ++rank)
            ASSERT_TRUE(groups_[rank].all_gather(static_cast<char*>(pieces[rank].address()) + rank * bytes,
                                                 pieces[rank].address(), elements, Dtype::i32, stream(rank)));
        for (Group& group : groups_) ASSERT_TRUE(group.wait());
        for (unsigned rank = 0; rank < 2; ++rank) {
            std::vector<int> found(2 * elements);
            rig_->read(found.data(), pieces[rank].address(), 2 * bytes);
            for (unsigned from = 0; from < 2; ++from)
                EXPECT_TRUE(std::equal(given[from].begin(), given[from].end(),
                                       found.begin() + static_cast<std::ptrdiff_t>(from * elements)))
                    << "round " << round << ", rank " << rank << ", block " << from;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for the ranks to lend what they may
    }
    const auto plan = groups_[0].explain(Collective::all_gather, elements, Dtype::i32, {},
                                         pieces[0].address(), pieces[0].address());
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_NE(plan->memory.find("several mappings"), std::string::npos) << plan->memory;
    const auto listed = groups_[0].explain(Collective::all_to_all_v, 1, Dtype::i32, {}, sends_[0].address(),
                                           pieces[0].address());
    ASSERT_TRUE(listed) << listed.error().to_string();
    EXPECT_NE(listed->memory.find("several mappings"), std::string::npos) << "its counts may lie on the GPU";
}

TEST_F(CopyGroups, AGroupThatCannotBeSetUpIsRefused) {
    ::setenv("FAKE_CUDA_NO_EVENTS", "1", 1);
    const auto made = Group::local(*context_, {Place::gpu(0), Place::gpu(1)}, {});
    ::unsetenv("FAKE_CUDA_NO_EVENTS");
    if (made) GTEST_SKIP() << "the driver of this machine makes events all the same";
    EXPECT_NE(made.error().message.find("711"), std::string::npos) << made.error().to_string();
}

TEST_F(CopyGroups, AGpuWhoseStreamsCannotWaitForWordsSaysSo) {
    ::setenv("FAKE_CUDA_NO_STREAM_WORDS", "1", 1);
    open();
    const auto state = all_gather(0);
    ::unsetenv("FAKE_CUDA_NO_STREAM_WORDS");
    if (state.ok()) {
        groups_[0].abort("no use");
        GTEST_SKIP() << "those of this machine can";
    }
    EXPECT_EQ(state.error().code, ErrorCode::unsupported);
    EXPECT_NE(state.error().message.find("cannot wait for words of 64 bits"), std::string::npos)
        << state.error().message;
}

}  // namespace
}  // namespace sidestep::gpu_tests::zero_sm
