// How links end: of themselves, by either end, beside everything else. Each owner is told once, and last.
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"
#include "tests/no_threads.hpp"

namespace sidestep::wire {
namespace {

using test::Frame;
using test::Joined;
using test::Landing;
using test::Side;
using test::some_error;

constexpr Frame confirm_1{Frame::Kind::confirm, 1, 0, 0, 1};

Frame push_of(Bytes size, std::uint64_t request = 1) {
    return {Frame::Kind::push, request, 3, 0, size};
}

// Whoever ends it again changes nothing.
void expect_told_once(const Side& side) {
    EXPECT_TRUE(side.has_ended());
    side.link->close(some_error());
    side.link->end(some_error());
    EXPECT_EQ(side.owner->ends, 1);
}

TEST(LinkEnd, ErrorOfAnOwnerEndsBothLinks) {
    enum class Where { landing, pushed, confirmed, fault };
    for (const Where where : {Where::landing, Where::pushed, Where::confirmed, Where::fault}) {
        const std::string payload = sidestep::test::text_of(100'000);
        const Joined joined;
        if (where == Where::landing)
            joined.other.owner->lands = [](const Frame&) -> std::optional<Result<Landing>> {
                return Result<Landing>(some_error());
            };
        else
            joined.other.owner->arrives = [](const Frame&) { return Result<void>(some_error()); };
        joined.join(2);
        Frame frame = push_of(payload.size());
        if (where == Where::confirmed) frame = confirm_1;
        if (where == Where::fault) frame = {Frame::Kind::fault, 1, 0, 1, 10};
        joined.one.link->send(frame, payload.data(), {});
        EXPECT_TRUE(joined.other.has_ended());
        EXPECT_TRUE(joined.one.has_ended());
        EXPECT_EQ(joined.other.owner->why().code, ErrorCode::mismatch);
        EXPECT_EQ(joined.one.owner->why().code, ErrorCode::io_error) << joined.one.owner->why().to_string();
        expect_told_once(joined.one);
        expect_told_once(joined.other);
        EXPECT_EQ(joined.other.owner->count(), where == Where::landing ? 0u : 1u);
    }
}

// The socket is the link's, whatever comes of it.
TEST(LinkEnd, WithoutThreadsItsSocketIsClosed) {
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    test::Ends ends = test::connected();
    {
        const sidestep::test::NoThreads none;
        EXPECT_FALSE(side.link->add(test::number_of(std::move(ends.one))));
    }
    EXPECT_TRUE(test::hangs_up(ends.other));
}

TEST(LinkEnd, GarbageEndsTheLink) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const std::string good = test::said(confirm_1);
    struct Case {
        std::string bytes;
        std::size_t frames;
    };
    const std::vector<Case> cases = {
        {std::string(backend::frame_bytes, 'G'), 0},
        {std::string(4000, '\0'), 0},
        {good + std::string(backend::frame_bytes, '\xff'), 1},
        {test::said(push_of(3), "abc") +
             "GET / HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nUser-Agent: any\r\n\r\n",
         1},
        {test::said(push_of(backend::max_push + 1)), 0},
        {test::said({Frame::Kind::fault, 1, 0, 0, backend::max_fault + 1}), 0},
    };
    for (const auto& [bytes, frames] : cases) {
        const auto engine = test::make_engine(1);
        const Side side(*engine);
        const auto other = side.bare();
        const auto socket = side.bare();
        ASSERT_TRUE(test::say(socket, bytes));
        EXPECT_TRUE(side.has_ended());
        EXPECT_EQ(side.owner->why().code, ErrorCode::io_error) << side.owner->why().to_string();
        EXPECT_EQ(side.owner->count(), frames);
        EXPECT_TRUE(test::hangs_up(socket));
        EXPECT_TRUE(test::hangs_up(other)) << "the link's other sockets go too";
        expect_told_once(side);
    }
}

TEST(LinkEnd, WhoHangsUpLeavesNothingBehind) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const std::string push = test::said(push_of(backend::max_push), std::string(backend::max_push, 'x'));
    for (const std::size_t part :
         {std::size_t{0}, std::size_t{1}, backend::frame_bytes - 1, backend::frame_bytes, std::size_t{1000},
          push.size() / 2, push.size() - 1}) {
        const auto engine = test::make_engine(1);
        const Side side(*engine);
        std::weak_ptr<std::string> held;
        side.owner->lands = [&](const Frame& frame) -> std::optional<Result<Landing>> {
            auto text = std::make_shared<std::string>(frame.size, '?');
            held = text;
            return Result<Landing>(Landing{Landing::Kind::here, text->data(), text});
        };
        {
            const auto socket = side.bare();
            ASSERT_TRUE(test::say(socket, push.substr(0, part)));
            if (part >= backend::frame_bytes) {
                ASSERT_TRUE(test::comes([&] { return side.owner->asked == 1; }));
            }
        }
        EXPECT_TRUE(side.has_ended());
        EXPECT_EQ(side.owner->why().code, ErrorCode::io_error);
        EXPECT_EQ(side.owner->count(), 0u) << part;
        EXPECT_TRUE(held.expired()) << part;
        expect_told_once(side);
    }
}

TEST(LinkEnd, EngineEndsWhatIsLeft) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    auto owners = std::vector<std::shared_ptr<test::FakeOwner>>();
    std::vector<std::shared_ptr<backend::Link>> links;
    std::vector<driver::TcpSocket> sockets;
    {
        const auto engine = test::make_engine(2);
        for (int i = 0; i < 4; ++i) {
            const Side side(*engine);
            for (int k = 0; k < i; ++k) sockets.push_back(side.bare());
            owners.push_back(side.owner);
            links.push_back(side.link);
        }
        // One is ending by itself at that time.
        ASSERT_TRUE(test::say(sockets.back(), std::string(backend::frame_bytes, 'G')));
    }
    for (const auto& owner : owners) EXPECT_EQ(owner->ends, 1);
    EXPECT_EQ(owners.front()->why().code, ErrorCode::cancelled);
    for (const auto& socket : sockets) EXPECT_TRUE(test::hangs_up(socket));
    links.clear();
    for (const auto& owner : owners) EXPECT_EQ(owner->ends, 1);
}

TEST(LinkEnd, FirstReasonCounts) {
    for (const bool closed : {false, true}) {
        const Joined joined;
        joined.join(1);
        if (closed)
            joined.one.link->close(some_error(ErrorCode::timed_out));
        else
            joined.one.link->end(some_error(ErrorCode::timed_out));
        joined.one.link->end(some_error(ErrorCode::no_space));
        EXPECT_EQ(joined.one.owner->ends, 1) << "it has ended when end() returns";
        EXPECT_EQ(joined.one.owner->why().code, ErrorCode::timed_out);
        joined.one.link->close(some_error(ErrorCode::no_space));
        joined.one.link->end(some_error(ErrorCode::no_space));
        expect_told_once(joined.one);
        expect_told_once(joined.other);
    }
}

// The thread sanitizer looks at this one.
TEST(LinkEnd, ManyMayEndOneAtOnce) {
    for (int round = 0; round < 20; ++round) {
        const Joined joined;
        joined.join(3);
        std::vector<std::thread> threads;
        for (int i = 0; i < 6; ++i)
            threads.emplace_back([&, i] {
                const Side& side = i % 2 == 0 ? joined.one : joined.other;
                if (i < 4)
                    side.link->end(some_error());
                else
                    side.link->close(some_error());
                if (i < 4) {
                    EXPECT_EQ(side.owner->ends, 1);
                }
            });
        for (auto& thread : threads) thread.join();
        expect_told_once(joined.one);
        expect_told_once(joined.other);
    }
}

// What was sent from may be freed when end() has returned, and so may what was received into.
TEST(LinkEnd, BesideThreadsThatSend) {
    for (int round = 0; round < 10; ++round) {
        std::atomic<bool> over{false};
        auto memory = std::make_unique<std::string>(sidestep::test::text_of(backend::max_push));
        std::atomic<std::uint64_t> told{0};
        const Joined joined;
        joined.join(3);
        std::vector<std::thread> senders;
        for (std::uint64_t thread = 0; thread < 8; ++thread)
            senders.emplace_back([&, thread] {
                const Bytes sizes[] = {0, 1, 40, 16384, 70'000, backend::max_push};
                // As many as memory holds, whichever end is the quicker one.
                for (std::uint64_t i = 0; i < 40 && !over; ++i)
                    joined.one.link->send(push_of(sizes[(i + thread) % 6]), memory->data(), [&] { ++told; });
            });
        ASSERT_TRUE(test::comes([&] { return joined.other.owner->count() > 20; }));
        (round % 2 == 0 ? joined.one : joined.other).link->end(some_error());
        if (round % 2 != 0) joined.one.link->end(some_error());
        const std::uint64_t then = told;
        over = true;
        for (auto& sender : senders) sender.join();
        memory.reset();
        EXPECT_LE(then, told);
        expect_told_once(joined.one);
        expect_told_once(joined.other);
    }
}

// Whoever sends to an end that has gone learns it by ended(), and nothing is kept.
TEST(LinkEnd, NothingIsTakenAfterwards) {
    const Joined joined;
    joined.join(2);
    joined.one.link->end(some_error());
    auto kept = std::make_shared<int>(0);
    const std::weak_ptr<int> gone = kept;
    bool sent = false;
    joined.one.link->send(push_of(3), "abc", [kept = std::move(kept), &sent] { sent = true; });
    EXPECT_TRUE(gone.expired());
    EXPECT_FALSE(sent);
    joined.one.link->look();
    joined.one.link->resume(backend::Link::Resume::all);
    EXPECT_EQ(joined.one.link->sockets(), 0u);
    test::Ends ends = test::connected();
    const auto added = joined.one.link->add(test::number_of(std::move(ends.one)));
    ASSERT_FALSE(added.ok());
    EXPECT_EQ(added.error().code, ErrorCode::io_error);
    EXPECT_TRUE(test::hangs_up(ends.other)) << "the socket belongs to the link, after an error too";
}

// Something that is no socket, or none that is open.
TEST(LinkEnd, BadDescriptorsAreRefused) {
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    EXPECT_FALSE(side.link->add(-1).ok());
    EXPECT_EQ(side.link->sockets(), 0u);
    EXPECT_EQ(side.owner->ends, 0);
}

TEST(LinkEnd, WhoNeverReadsIsGivenUp) {
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    const auto socket = side.bare();
    constexpr std::uint64_t most = 8'000'000;
    std::uint64_t sent = 0;
    for (; sent < most && side.owner->ends == 0; ++sent) side.link->send(confirm_1, nullptr, {});
    EXPECT_LT(sent, most) << "the queue has no bound";
    EXPECT_TRUE(side.has_ended());
    // One that a plugin reaches has 15 s to say so: a busy machine may not have sent enough by then.
    const bool late = test::network_plugin() != nullptr && side.owner->why().code == ErrorCode::timed_out;
    EXPECT_TRUE(late || side.owner->why().code == ErrorCode::io_error) << side.owner->why().to_string();
    expect_told_once(side);
}

// The last holder of a link may let go on one of the engine's threads, in a call.
TEST(LinkEnd, ItsOwnerMayGoAtAnyTime) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const auto engine = test::make_engine(2);
    for (int round = 0; round < 50; ++round) {
        struct Holder final : backend::LinkOwner {
            std::shared_ptr<backend::Link> link;
            Result<Landing> landing(const Frame&) override { return Landing{}; }
            Result<void> arrived(const Frame&, Landing) override { return {}; }
            void ended(Error) override {}
        };
        auto holder = std::make_shared<Holder>();
        holder->link = engine->link(holder);
        const std::weak_ptr<Holder> gone = holder;
        test::Ends ends = test::connected();
        ASSERT_TRUE(holder->link->add(test::number_of(std::move(ends.one))).ok());
        std::thread talker([&] {
            for (int i = 0; i < 200; ++i) {
                const std::string bytes = test::said(push_of(3), "abc");
                const driver::TcpSocket::Part part{bytes.data(), bytes.size()};
                if (!ends.other.send({&part, 1})) return;
            }
        });
        holder.reset();
        EXPECT_TRUE(test::comes([&] { return gone.expired(); }));
        EXPECT_TRUE(test::hangs_up(ends.other));
        talker.join();
    }
}

// Links without sockets end at once, others get the first socket of their engine at that time. For the thread sanitizer.
TEST(LinkEnd, BesideTheEnginesFirstSocket) {
    for (int round = 0; round < 50; ++round) {
        const auto engine = test::make_engine(1);
        const Side idle(*engine);
        const Side side(*engine);
        test::Ends ends = test::connected();
        std::thread closer([&] { idle.link->close(some_error()); });
        EXPECT_TRUE(side.link->add(test::number_of(std::move(ends.one))).ok());
        closer.join();
        EXPECT_TRUE(idle.has_ended());
    }
}

}  // namespace
}  // namespace sidestep::wire
