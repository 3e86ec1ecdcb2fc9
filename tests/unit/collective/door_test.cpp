// Whoever else comes while ranks join.
#include <unistd.h>

#include <chrono>

#include "collective/wire.hpp"
#include "driver/local_socket.hpp"
#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Whoever connects to where rank 0 waits, as anybody of this user can.
class AtTheDoor : public GroupTest {
protected:
    AtTheDoor() {
        joining_ = std::thread([this] {
            first_ = Group::join(*context, {id_, 0, 2, Place::gpu(0)}, {milliseconds(60'000)});
        });
        // Not until the file is there only: a socket is bound before it listens.
        while (driver::look_at_socket(door()).value() != driver::SocketPath::live)
            std::this_thread::sleep_for(milliseconds(1));
    }
    ~AtTheDoor() override {
        if (joining_.joinable()) joining_.join();
    }
    std::string door() const { return folder.path + "/group-" + id_.to_string() + ".0"; }
    driver::LocalSocket knock() const {
        return std::move(driver::LocalSocket::connect(door(), Clock::now() + milliseconds(20'000))).value();
    }
    // The message of a hello, as another version would send it where `version` is not 0.
    static std::string hello(std::uint32_t rank, std::uint32_t ranks, char version = 0) {
        collective::Hello who{.rank = rank, .ranks = ranks, .process = 1, .place = "gpu:1"};
        std::string bytes =
            to_bytes(collective::Message{.word = collective::Word::hello, .blob = to_bytes(who)});
        if (version != 0) bytes[0] = version;
        return bytes;
    }
    Result<Group> second(milliseconds timeout = milliseconds(60'000)) {
        return Group::join(*context, {id_, 1, 2, Place::gpu(1)}, {timeout});
    }
    void expect_a_group() {
        auto other = second();
        joining_.join();
        ASSERT_TRUE(ok(*first_));
        ASSERT_TRUE(ok(other));
        std::vector<Group> groups;
        groups.push_back(std::move(**first_));
        groups.push_back(std::move(*other));
        on_all(groups, [](Group& group) {
            EXPECT_TRUE(ok(group.barrier()));
            EXPECT_TRUE(ok(group.wait()));
        });
    }

    const GroupId id_ = *GroupId::create();
    std::thread joining_;
    std::optional<Result<Group>> first_;
};

TEST_F(AtTheDoor, WhatIsNoRanksIsDropped) {
    std::vector<driver::LocalSocket> callers;
    const std::string hi = hello(1, 2);
    for (const std::string& said : {std::string("hello world"), std::string(1, '\0'),
                                    hi.substr(0, hi.size() - 3), hi + "x", hello(7, 2), hello(0, 0)}) {
        callers.push_back(knock());
        ASSERT_TRUE(ok(callers.back().send(said)));
    }
    expect_a_group();
}

TEST_F(AtTheDoor, ManyWhoSayNothingKeepNobodyOut) {
    std::vector<driver::LocalSocket> callers;
    for (int i = 0; i < 300; ++i) {
        auto caller = driver::LocalSocket::connect(door(), Clock::now() + milliseconds(20'000));
        ASSERT_TRUE(ok(caller)) << i;
        callers.push_back(std::move(*caller));
    }
    expect_a_group();
}

// Both sides hear of it, and so does a rank that comes later, long before its time is over.
TEST_F(AtTheDoor, AnotherVersionIsNamedToAll) {
    const auto caller = knock();
    ASSERT_TRUE(ok(caller.send(hello(1, 2, 0x7f))));
    const auto began = Clock::now();
    const auto late = second();
    EXPECT_LT(Clock::now() - began, milliseconds(30'000));
    joining_.join();
    for (const Result<Group>* joined : std::initializer_list<const Result<Group>*>{&*first_, &late}) {
        ASSERT_FALSE(joined->ok());
        EXPECT_EQ(joined->error().code, ErrorCode::unsupported) << joined->error().to_string();
        EXPECT_NE(joined->error().message.find("process " + std::to_string(::getpid()) +
                                               ": another rank speaks version 127 of the protocol, this one"),
                  std::string::npos)
            << joined->error().to_string();
    }
    const auto answer = caller.receive(collective::longest_message, Clock::now() + milliseconds(20'000));
    ASSERT_TRUE(ok(answer));
    const auto refused = collective::parse_message(answer->bytes);
    ASSERT_TRUE(ok(refused));
    EXPECT_EQ(refused->word, collective::Word::refuse);
}

}  // namespace
}  // namespace sidestep::groups
