// A stop that is asked for while a rank joins; the test speaks for another rank, so that it knows how far
// they are.
#include <unistd.h>

#include <chrono>
#include <thread>

#include "collective/rendezvous.hpp"
#include "tests/unit/group/ranks.hpp"

namespace sidestep::collective {
namespace {

using groups::ok;
using Clock = std::chrono::steady_clock;

// A rank 1 of `ranks` that the test speaks for: it says hello to rank 0 and hears who that is.
driver::LocalSocket meet_rank_0(const std::string& folder, const GroupId& id, std::uint32_t ranks) {
    Hello hello;
    hello.rank = 1;
    hello.ranks = ranks;
    hello.process = static_cast<std::uint32_t>(::getpid());
    hello.program = {1, 2};
    hello.place = "gpu:1";
    const std::string path = group_path(peer::Folder::open(folder, true).value(), id) + "0";
    for (const auto until = Clock::now() + std::chrono::seconds(60); Clock::now() < until;) {
        auto socket = driver::LocalSocket::connect(path, Clock::now() + std::chrono::seconds(20));
        if (!socket) {  // it does not listen yet
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            continue;
        }
        EXPECT_TRUE(ok(socket->send(to_bytes(Message{.word = Word::hello, .blob = to_bytes(hello)}))));
        const auto answer = socket->receive(longest_message, Clock::now() + std::chrono::seconds(20));
        EXPECT_TRUE(ok(answer));
        return std::move(*socket);
    }
    ADD_FAILURE() << "rank 0 does not listen";
    return driver::LocalSocket(driver::Fd());
}

struct Stopped {
    Error joined;      // what rank 0's join ended with
    std::string told;  // what rank 1 was told last
    ErrorCode told_as{0};
};

// Rank 0 of `ranks` has met rank 1, and is told to stop then.
Stopped stop_rank_0(const Context& context, const std::string& folder, int ranks) {
    Stopped seen;
    const GroupId id = *GroupId::create();
    std::stop_source source;
    std::optional<Result<Group>> joined;
    std::thread rank([&] {
        joined = Group::join(context, {id, 0, ranks, Place::gpu(0)}, {std::chrono::minutes(10)},
                             source.get_token());
    });
    const auto socket = meet_rank_0(folder, id, static_cast<std::uint32_t>(ranks));
    source.request_stop();
    rank.join();
    if (!joined->ok()) seen.joined = joined->error();
    for (;;) {  // its arena may have come before
        const auto received = socket.receive(longest_message, Clock::now());
        if (!received) return seen;
        const auto message = parse_message(received->bytes);
        if (!message) return seen;
        seen.told = message->text;
        seen.told_as = message->code;
    }
}

class Stops : public groups::GroupTest {};

TEST_F(Stops, EndAWaitForRanksThatDoNotCome) {
    const auto start = Clock::now();
    const Stopped seen = stop_rank_0(*context, folder.path, 4);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
    EXPECT_EQ(seen.joined.code, ErrorCode::cancelled);
    EXPECT_NE(seen.joined.message.find("gpu:0) was told to stop while it waited for rank 2, rank 3"),
              std::string::npos)
        << seen.joined.to_string();
    EXPECT_EQ(seen.told, seen.joined.message);
    EXPECT_EQ(seen.told_as, ErrorCode::cancelled);
    EXPECT_EQ(folder.entries(), 0u);
}

TEST_F(Stops, EndAWaitForARankThatCameAndSaysNothing) {
    const Stopped seen = stop_rank_0(*context, folder.path, 2);
    EXPECT_EQ(seen.joined.code, ErrorCode::cancelled);
    EXPECT_NE(seen.joined.message.find("was told to stop while it waited for rank 1 (process"),
              std::string::npos)
        << seen.joined.to_string();
    EXPECT_EQ(seen.told, seen.joined.message);
    EXPECT_EQ(folder.entries(), 0u);
}

// The ranks have agreed on it. Those who wait for that rank hear of it at once, and not when their time to join is over.
TEST_F(Stops, OfARankThatCannotComeToTheGroupOfASplitEndTheWaitOfTheOthers) {
    auto groups = make(3, {std::chrono::minutes(10)});
    // Rank 0 of a group reads it before it meets the others.
    ::setenv("SIDESTEP_TUNING", "/no/such/figures", 1);
    GroupOptions options{std::chrono::minutes(10)};
    options.join_timeout = std::chrono::seconds(20);
    groups::on_all(groups, [&](Group& group) {
        const auto part = group.split(group.rank() == 1, 0, options);
        EXPECT_EQ(part.ok() ? ErrorCode{0} : part.error().code, ErrorCode::not_found)
            << (part.ok() ? "" : part.error().to_string());
        const auto same = group.shrink({}, options);
        EXPECT_EQ(same.ok() ? ErrorCode{0} : same.error().code, ErrorCode::not_found)
            << (same.ok() ? "" : same.error().to_string());
    });
    ::unsetenv("SIDESTEP_TUNING");
    groups::on_all(groups, [](Group& group) { EXPECT_TRUE(ok(group.split(0, 0))); });
}

}  // namespace
}  // namespace sidestep::collective
