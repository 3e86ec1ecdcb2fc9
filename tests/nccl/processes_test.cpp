// One process a GPU: what PyTorch does.
#include "tests/nccl/processes.hpp"

#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::processes {
namespace {

std::string new_id() {
    ncclUniqueId id{};
    EXPECT_NCCL(ncclGetUniqueId(&id));
    std::string text;
    for (const char byte : id.internal) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
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
