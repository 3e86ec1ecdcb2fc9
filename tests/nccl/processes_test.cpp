// One process a GPU: what PyTorch does.
#include "tests/nccl/processes.hpp"

#include <functional>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::processes {
namespace {

std::string text_of(const ncclUniqueId& id) {
    std::string text;
    for (const char byte : id.internal) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
}
std::string new_id() {
    return text_of(nccl_test::new_id());
}

TEST(NcclProcesses, SumTogetherAndLeave) {
    const std::string id = new_id();
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (int rank = 0; rank < 4; ++rank) ranks.push_back(std::make_unique<RankProcess>(rank, 4, id, "sum"));
    for (auto& rank : ranks) EXPECT_EQ(rank->line(), "ok");
    for (auto& rank : ranks) EXPECT_EQ(rank->ended(), 0);
}

// As programs do that keep communicators in objects of static storage.
TEST(NcclProcesses, DestroyWhileTheProcessExits) {
    const std::string id = new_id();
    RankProcess first(0, 2, id, "sum and exit");
    RankProcess second(1, 2, id, "sum and exit");
    for (RankProcess* rank : {&first, &second}) EXPECT_EQ(rank->line(), "ok");
    for (RankProcess* rank : {&first, &second}) EXPECT_EQ(rank->ended(), 0);
}

// Two ranks here on one GPU: one allocates, while the other is in an operation that ends only once the first has gone on.
TEST(NcclProcesses, AllocateWhileAnotherRankOfTheGpuWaits) {
    const ncclUniqueId id = nccl_test::new_id();
    RankProcess last(2, 3, text_of(id), "hand on");
    const auto rank = [&id](int number, const std::function<void(ncclComm_t)>& part) {
        ASSERT_NCCL(sidestepNcclSetDevice(0));
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(ncclCommInitRank(&comm, 3, id, number));
        part(comm);
        EXPECT_NCCL(ncclCommDestroy(comm));
    };
    std::thread first(rank, 0, [](ncclComm_t comm) {
        const Memory sent(0, 1), received(0, 1);
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclSend(sent.data(), 1, ncclInt8, 2, comm, nullptr));
        EXPECT_NCCL(ncclRecv(received.data(), 1, ncclInt8, 2, comm, nullptr));
        EXPECT_NCCL(ncclGroupEnd());
    });
    rank(1, [](ncclComm_t comm) {
        const Memory word(0, 1);
        EXPECT_NCCL(ncclRecv(word.data(), 1, ncclInt8, 2, comm, nullptr));
        const Memory fresh(0, 1);
        EXPECT_NCCL(ncclSend(fresh.data(), 1, ncclInt8, 2, comm, nullptr));
    });
    first.join();
    EXPECT_EQ(last.ended(), 0);
}

TEST(NcclProcesses, OthersLearnThatOneWasKilled) {
    const std::string id = new_id();
    RankProcess first(0, 3, id, "sum until it fails");
    RankProcess killed(1, 3, id, "fall silent");
    RankProcess last(2, 3, id, "sum until it fails");
    const int process = killed.process();
    for (RankProcess* rank : {&first, &killed, &last}) ASSERT_EQ(rank->line(), "ready");
    killed.kill();
    for (RankProcess* rank : {&first, &last}) {
        const std::string words = rank->line();
        EXPECT_EQ(words.substr(0, 4), fmt::format("{} {} ", +ncclRemoteError, +ncclRemoteError)) << words;
        EXPECT_NE(words.find("rank 1"), std::string::npos) << words;
        EXPECT_NE(words.find(std::to_string(process)), std::string::npos) << words;
        EXPECT_EQ(rank->ended(), 0);
    }
}

TEST(NcclProcesses, GoOnWithoutTheOneThatWasKilled) {
    const std::string id = new_id();
    RankProcess first(0, 3, id, "shrink when it fails");
    RankProcess killed(1, 3, id, "fall silent");
    RankProcess last(2, 3, id, "shrink when it fails");
    for (RankProcess* rank : {&first, &killed, &last}) ASSERT_EQ(rank->line(), "ready");
    killed.kill();
    for (RankProcess* rank : {&first, &last}) {
        EXPECT_EQ(rank->line(), "ok");
        EXPECT_EQ(rank->ended(), 0);
    }
}

}  // namespace
}  // namespace sidestep::nccl_test::processes
