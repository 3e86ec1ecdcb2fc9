// What is seen of groups from outside.
#include <chrono>

#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

class Running : public GroupTest {};

TEST_F(Running, ShowsGroupsAndTheirOperations) {
    EXPECT_TRUE(running_groups(folder.path).value().empty());
    auto first = make(2, {std::chrono::milliseconds(20'000), GroupPolicy::automatic, "training"});
    auto second = make(3);
    on_all(first, [&](Group& group) {
        const Allocation memory = allocate<float>(group, 10);
        ASSERT_TRUE(ok(group.all_reduce(memory.address(), memory.address(), 10, Dtype::f32,
                                        Reduction::of(ReduceOp::max))));
        ASSERT_TRUE(ok(group.barrier()));
        ASSERT_TRUE(ok(group.broadcast(memory.address(), memory.address(), 7, Dtype::bf16, 1)));
        ASSERT_TRUE(ok(group.wait()));
    });
    auto seen = running_groups(folder.path).value();
    ASSERT_EQ(seen.size(), 2u);
    if (seen[0].name != "training") std::swap(seen[0], seen[1]);
    EXPECT_EQ(seen[0].name, "training");
    EXPECT_EQ(seen[0].id, first[0].id().to_string());
    EXPECT_EQ(seen[0].stuck, "");
    ASSERT_EQ(seen[0].ranks.size(), 2u);
    for (const RunningRank& rank : seen[0].ranks) {
        EXPECT_EQ(rank.enqueued, 3u);
        EXPECT_EQ(rank.done, 3u);
        EXPECT_EQ(rank.last, "broadcast 7 bf16 from rank 1");
        EXPECT_EQ(rank.waiting_s, 0);
        EXPECT_TRUE(rank.alive);
    }
    EXPECT_EQ(seen[1].name, second[0].id().to_string());
    EXPECT_EQ(seen[1].ranks.size(), 3u);
    EXPECT_EQ(seen[1].ranks[0].enqueued, 0u);
}

TEST_F(Running, ErrorsAreSeen) {
    auto groups = make(2);
    groups[0].abort("why not");
    const auto seen = running_groups(folder.path).value();
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_NE(seen[0].ranks[0].error.find("why not"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::groups
