// Calls that need threads while no more can be started.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <string>

#include "tests/nccl/world.hpp"

namespace {

// That the calling thread may still start; below 0: as many as it likes.
thread_local int threads_left = -1;

}  // namespace

// clang puts the thread sanitizer into the program, where it needs pthread_create for itself.
#if defined(__clang__)
#if __has_feature(thread_sanitizer)
#define SIDESTEP_TEST_WITHOUT_LIMIT
#endif
#endif

#ifndef SIDESTEP_TEST_WITHOUT_LIMIT
// Before libc's, for everything in the process.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*run)(void*),
                                                                     void* argument) noexcept {
    static const auto real =
        reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
    if (threads_left == 0) return EAGAIN;
    if (threads_left > 0) --threads_left;
    return real(thread, attributes, run, argument);
}
#endif

namespace sidestep::nccl_test::threads {
namespace {

class ThreadLimit {
public:
    explicit ThreadLimit(int threads) { threads_left = threads; }
    ~ThreadLimit() { threads_left = -1; }
    ThreadLimit(const ThreadLimit&) = delete;
    ThreadLimit& operator=(const ThreadLimit&) = delete;
};

class NcclThreads : public ::testing::Test {
protected:
    void SetUp() override {
#ifdef SIDESTEP_TEST_WITHOUT_LIMIT
        GTEST_SKIP() << "clang's thread sanitizer leaves no way to keep threads from starting";
#endif
    }
};

void expect_no_thread(ncclResult_t result, const std::string& call) {
    EXPECT_EQ(result, +ncclUnhandledCudaError);
    EXPECT_EQ(last_error().find(call + ": no thread could be started"), 0u) << last_error();
}

TEST_F(NcclThreads, NoneToMakeACommunicatorOnInTheBackground) {
    ncclConfig_t config = default_config();
    config.blocking = 0;
    const ncclUniqueId id = new_id();
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ncclComm_t comm = nullptr;
    {
        const ThreadLimit none(0);
        expect_no_thread(ncclCommInitRankConfig(&comm, 2, id, 0, &config), "ncclCommInitRankConfig");
    }
    ASSERT_NE(comm, nullptr);
    EXPECT_EQ(settled(comm), +ncclUnhandledCudaError);
    EXPECT_NE(last_error(comm).find("no thread could be started"), std::string::npos) << last_error(comm);
    EXPECT_NCCL(ncclCommAbort(comm));
}

TEST_F(NcclThreads, NoneToSplitOnInTheBackground) {
    ncclConfig_t config = default_config();
    config.blocking = 0;
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ncclComm_t comm = nullptr, child = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), +ncclInProgress);
    ASSERT_EQ(settled(comm), +ncclSuccess);
    {
        const ThreadLimit none(0);
        expect_no_thread(ncclCommSplit(comm, 0, 0, &child, nullptr), "ncclCommSplit");
    }
    EXPECT_EQ(child, nullptr);
    // Nothing of it has run, so the parent goes on.
    EXPECT_EQ(settled(comm), +ncclSuccess);
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), +ncclInProgress);
    EXPECT_EQ(settled(comm), +ncclSuccess);
    destroy({child, comm});
}

// One rank has a thread, which must not wait for those that have none.
TEST_F(NcclThreads, TooFewForTheRanksOfAGroup) {
    const Timeout timeout("600");
    std::vector<ncclComm_t> comms(3);
    const ncclUniqueId id = new_id();
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank) {
        ASSERT_NCCL(sidestepNcclSetDevice(rank));
        EXPECT_NCCL(ncclCommInitRank(&comms[static_cast<std::size_t>(rank)], 3, id, rank));
    }
    {
        const ThreadLimit one(1);
        expect_no_thread(ncclGroupEnd(), "ncclGroupEnd");
    }
    for (ncclComm_t comm : comms) EXPECT_EQ(comm, nullptr);
}

// Nothing of it has run, so the parents go on.
TEST_F(NcclThreads, TooFewToSplit) {
    const Timeout timeout("600");
    const World world(3);
    std::vector<ncclComm_t> children(3);
    const auto split = [&](int rank) {
        EXPECT_NCCL(ncclCommSplit(world[rank], 0, rank, &children[static_cast<std::size_t>(rank)], nullptr));
    };
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank) split(rank);
    {
        const ThreadLimit two(2);
        expect_no_thread(ncclGroupEnd(), "ncclGroupEnd");
    }
    for (ncclComm_t child : children) EXPECT_EQ(child, nullptr);
    ASSERT_NCCL(world.together(split));
    expect_sum(children, {0, 1, 2});
    destroy(children);
}

}  // namespace
}  // namespace sidestep::nccl_test::threads
