// Groups of which some ranks share a process and others do not: 0 and 1 in one, 2 and 3 in another.
#include "tests/multiprocess/collective_groups.hpp"

namespace sidestep::multiprocess {
namespace {

class Mixed : public Groups {
protected:
    static constexpr int processes = 2;

    // A command for each of the four ranks, all at once; their answers, by rank. Nothing of a process that is
    // `except`.
    std::vector<std::string> tell_ranks(const std::function<std::string(int)>& command, int except = -1) {
        std::vector<std::string> answers;
        for (const std::string& both : tell(
                 [&](int process) {
                     return fmt::format("{}|{}", command(2 * process), command(2 * process + 1));
                 },
                 except)) {
            const std::size_t bar = both.find('|');
            answers.push_back(both.substr(0, bar));
            answers.push_back(bar == std::string::npos ? "" : both.substr(bar + 1));
        }
        return answers;
    }
    void expect_ranks(const std::string& command) {
        EXPECT_EQ(tell_ranks([&](int) { return command; }), std::vector<std::string>(4, "ok")) << command;
    }
    void join_all(int timeout, int timeout_of_rank_0 = 0) {
        start(processes);
        const auto answers = tell_ranks([&](int rank) {
            return fmt::format("join {} {} 4 {}", id, rank,
                               rank == 0 && timeout_of_rank_0 > 0 ? timeout_of_rank_0 : timeout);
        });
        ASSERT_EQ(answers, std::vector<std::string>(4, "ok"));
    }
};

TEST_F(Mixed, EveryOperation) {
    join_all(long_timeout);
    expect_ranks("checked 5 2");
    expect_ranks("others 5 1 0");
    expect_ranks("others 60007 3 0");
    expect_ranks("others 60007 2 3");
    // Slices and pairs between buffers that the ranks of both processes have mapped.
    const auto start = Clock::now();
    std::vector<std::string> where;
    while (where != std::vector<std::string>(4, "yes") && Clock::now() - start < soon) {
        expect_ranks("checked 600003 2");
        where = tell_ranks([](int) { return "explain 600003"; });
    }
    EXPECT_EQ(where, std::vector<std::string>(4, "yes"));
    expect_ranks("leave");
    expect_no_entries();
}

TEST_F(Mixed, FloatsHaveTheSameBits) {
    join_all(long_timeout);
    for (const int count : {3, many_floats}) {
        std::string first;
        for (const int offset : {0, 0, 1}) {
            const auto answers = tell_ranks([&](int) { return fmt::format("floats {} {}", count, offset); });
            if (first.empty()) first = answers[0];
            EXPECT_TRUE(first.starts_with("ok ")) << first;
            EXPECT_EQ(answers, std::vector<std::string>(4, first));
        }
    }
}

TEST_F(Mixed, MemoryThatIsAttachedFreedAndGivenAgain) {
    join_all(long_timeout);
    expect_ranks("again 600003");
    expect_ranks("again 100");
}

TEST_F(Mixed, SplitAcrossProcessesAndWithinThem) {
    for (const bool across : {true, false}) {
        peers.clear();
        start(processes);
        const std::string fresh = GroupId::create()->to_string();
        ASSERT_EQ(
            tell_ranks([&](int rank) { return fmt::format("join {} {} 4 {}", fresh, rank, long_timeout); }),
            std::vector<std::string>(4, "ok"));
        const auto made = tell_ranks(
            [&](int rank) { return fmt::format("split {} {}", across ? rank % 2 : rank / 2, rank); });
        EXPECT_EQ(made[0], "rank 0 of 2");
        EXPECT_EQ(made[3], "rank 1 of 2");
        expect_ranks("checked 3000 2");
        expect_ranks("others 30011 2 0");
    }
}

// Both ranks of a process die at once; the two of the other one hear the same.
TEST_F(Mixed, OneProcessIsKilled) {
    join_all(long_timeout);
    EXPECT_EQ(tell("spin|spin"), std::vector<std::string>(2, "ok"));
    await_operations();
    const std::string gone = process(1);
    peers[1]->kill();
    const auto answers = tell_ranks([](int) { return "status"; }, 1);  // what spin said
    for (const int rank : {0, 1}) {
        const std::string& answer = answers[static_cast<std::size_t>(rank)];
        EXPECT_NE(answer.find(gone), std::string::npos) << answer;
        EXPECT_NE(answer.find("died; its last one was operation "), std::string::npos) << answer;
        EXPECT_NE(answer.find(", all_reduce 30000 i32 sum"), std::string::npos) << answer;
    }
    // They go on without it. Each answer is that to the line before.
    (void)peers[0]->tell("shrink 2 3|shrink 2 3");
    EXPECT_EQ(peers[0]->tell("checked 3000 2|checked 3000 2"), "rank 0 of 2|rank 1 of 2");
    EXPECT_EQ(peers[0]->tell("leave|leave"), "ok|ok");
}

TEST_F(Mixed, TheyLeaveOneAfterTheOther) {
    join_all(long_timeout);
    expect_ranks("checked 600003 2");
    EXPECT_EQ(peers[1]->tell("leave|"), "ok|");
    EXPECT_EQ(peers[0]->tell("status|status"), "ok|ok");
    EXPECT_EQ(peers[0]->tell("leave|"), "ok|");
    EXPECT_EQ(peers[0]->tell("|status"), "|ok");
    // A pair of those that are left, across processes.
    EXPECT_EQ(peers[1]->tell("|pair send 5000 1"), "|ok");
    EXPECT_EQ(peers[0]->tell("|pair recv 5000 3"), "|ok");
    EXPECT_EQ(tell("|wait"), std::vector<std::string>(2, "|ok"));
    EXPECT_EQ(tell("|leave"), std::vector<std::string>(2, "|ok"));
    expect_no_entries();
}

// Rank 1 is in a task all the while that rank 0 of its process waits for it to let go, and longer.
TEST_F(Mixed, OneLeavesWhileAnotherOfItsProcessIsInAnOperation) {
    join_all(long_timeout, short_timeout);
    expect_ranks("checked 60007 2");
    EXPECT_EQ(peers[0]->tell("|pair recv 500000 2"), "|ok");
    EXPECT_EQ(peers[0]->tell("leave|"), "ok|");
    std::this_thread::sleep_for(std::chrono::milliseconds(short_timeout + 500));
    EXPECT_EQ(peers[0]->tell("|status"), "|ok");
    EXPECT_EQ(peers[1]->tell("pair send 500000 1|"), "ok|");
    EXPECT_EQ(peers[1]->tell("wait|"), "ok|");
    EXPECT_EQ(peers[0]->tell("|wait"), "|ok");
    EXPECT_EQ(peers[0]->tell("|leave"), "|ok");
    EXPECT_EQ(peers[1]->tell("leave|leave"), "ok|ok");
    expect_no_entries();
}

}  // namespace
}  // namespace sidestep::multiprocess
