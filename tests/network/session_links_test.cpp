// A session that outlives its links: what they carried arrives over the next, once and whole.
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/session_rig.hpp"
#include "tests/slower.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {
namespace {

using test::Alone;
using test::BothEnds;
using test::Came;
using test::Frame;
using test::Guarded;
using test::mib;
using test::Moving;

// Two sessions whose links are replaced.
class Outliving : public testing::Test {
protected:
    void SetUp() override {
        for (const auto& session : {peers.one, peers.other})
            session->outlive_links([this](const Error&) { ++lost; });
    }
    void TearDown() override {
        for (const auto& session : {peers.one, peers.other}) session->give_up(test::some_error());
    }

    void end_links() {
        peers.one->link()->end(test::some_error(ErrorCode::timed_out));
        peers.other->link()->end(test::some_error(ErrorCode::timed_out));
        for (const auto& session : {peers.one, peers.other}) EXPECT_TRUE(session->settle(test::patience()));
    }
    void join_again(std::size_t sockets = 2) {
        peers.renew(sockets);
        EXPECT_TRUE(peers.other->replay().ok());
        EXPECT_TRUE(peers.one->replay().ok());
    }

    std::atomic<int> lost{0};
    BothEnds peers{2};
};

TEST_F(Outliving, WhatWasOnItsWayArrivesOnceAndWhole) {
    constexpr std::size_t count = 12;
    constexpr Bytes size = 3 * mib + 17;
    std::minstd_rand random(3);
    constexpr int rounds = slower_by > 1 ? 8 : 20;
    for (int round = 0; round < rounds; ++round) {
        Guarded there(count * size, 1), source(count * size, 2 + static_cast<std::uint64_t>(round));
        Guarded readable(count * size, 77), target(count * size);
        const auto written = peers.other->grant(test::region_of(there, false, true));
        const auto read = peers.other->grant(test::region_of(readable, true, false));
        std::deque<Moving> pushes(count), pulls(count);
        std::thread mover([&] {
            for (std::size_t i = 0; i < count; ++i) {
                EXPECT_TRUE(test::begun(pushes[i], peers.one->push(source.data() + i * size, written,
                                                                   i * size, size, pushes[i].flight)));
                EXPECT_TRUE(
                    peers.one->pull(read, i * size, size, target.data() + i * size, pulls[i].flight).ok());
            }
        });
        for (int times = 0; times < 4; ++times) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
            end_links();
            join_again(1 + static_cast<std::size_t>(times) % 3);
        }
        mover.join();
        for (auto* all : {&pushes, &pulls})
            for (Moving& one : *all) {
                ASSERT_TRUE(one.over());
                EXPECT_EQ(one.code(), 0) << one.flight.result().error().to_string();
                EXPECT_EQ(one.ends, 1);
            }
        EXPECT_TRUE(there.text() == source.text());
        EXPECT_TRUE(target.text() == readable.text());
        EXPECT_TRUE(there.whole() && target.whole());
        EXPECT_FALSE(peers.one->waits());
        peers.other->withdraw(written);
        peers.other->withdraw(read);
    }
    EXPECT_EQ(lost, 2 * 4 * rounds);
    EXPECT_EQ(peers.one->renewed(), 4u * rounds);
}

TEST_F(Outliving, WhatIsBegunWhileItWaitsIsSentLater) {
    Guarded there(2 * mib, 1), source(2 * mib, 2), target(2 * mib, 3);
    const auto region = peers.other->grant(test::region_of(there));
    end_links();
    EXPECT_TRUE(peers.one->waits_for_link());
    EXPECT_FALSE(peers.one->end().has_value());
    Moving push, pull;
    const auto begun = peers.one->push(source.data(), region, 0, mib, push.flight);
    ASSERT_TRUE(begun.ok());
    EXPECT_EQ(*begun, backend::Progress::pending);
    ASSERT_TRUE(peers.one->pull(region, mib, mib, target.data(), pull.flight).ok());
    EXPECT_EQ(push.ends + pull.ends, 0);
    join_again();
    ASSERT_TRUE(push.over() && pull.over());
    EXPECT_EQ(push.code() + pull.code(), 0);
    EXPECT_EQ(there.text().substr(0, mib), source.text().substr(0, mib));
    EXPECT_EQ(target.text().substr(0, mib), there.text().substr(mib));
    EXPECT_FALSE(peers.one->waits_for_link());
}

TEST_F(Outliving, EndsForGoodWithAllThatWaits) {
    Guarded there(mib, 1);
    const auto region = peers.other->grant(test::region_of(there));
    end_links();
    Moving push;
    ASSERT_TRUE(peers.one->push(there.data(), region, 0, mib, push.flight).ok());
    peers.one->give_up(test::some_error(ErrorCode::mismatch));
    ASSERT_TRUE(push.over());
    EXPECT_EQ(push.code(), static_cast<int>(ErrorCode::mismatch));
    EXPECT_FALSE(peers.one->renew(peers.engine->link(peers.one)).ok());
    EXPECT_FALSE(peers.one->replay().ok());
    Moving late;
    EXPECT_FALSE(peers.one->push(there.data(), region, 0, 1, late.flight).ok());
}

TEST_F(Outliving, ALinkIsReplacedOnceItHasEnded) {
    EXPECT_FALSE(peers.one->renew(peers.engine->link(peers.one)).ok());
    end_links();
    ASSERT_TRUE(peers.one->renew(peers.engine->link(peers.one)).ok());
    peers.one->link()->end(test::some_error());
    EXPECT_FALSE(peers.one->replay().ok()) << "the new one has ended";
    EXPECT_TRUE(peers.one->waits_for_link());
    ASSERT_TRUE(peers.one->renew(peers.engine->link(peers.one)).ok());
    EXPECT_TRUE(peers.one->replay().ok());
}

// The other end is a bare socket here.
class OutlivingAlone : public testing::Test {
protected:
    void SetUp() override {
        alone.session->outlive_links({});
        ASSERT_TRUE(alone.session->push(source.data(), 7, 100, source.size(), push.flight).ok());
        ASSERT_TRUE(alone.session->pull(8, 5000, source.size(), target.data(), pull.flight).ok());
        for (int frames = 0; frames < 4; ++frames) {
            const Came came = alone.hears();
            (came.frame.kind == Frame::Kind::pull ? pull_number : push_number) = came.frame.request;
        }
    }
    // The frames that come over a new link.
    std::vector<Came> replayed(std::size_t count) {
        EXPECT_TRUE(test::comes([&] { return alone.session->waits_for_link(); }));
        alone.renew();
        EXPECT_TRUE(alone.session->replay().ok());
        std::vector<Came> all;
        for (std::size_t i = 0; i < count; ++i) all.push_back(alone.hears());
        return all;
    }

    Guarded source{2 * mib + 10, 1}, target{2 * mib + 10, 2};
    Moving push, pull;
    std::uint64_t push_number = 0, pull_number = 0;
    Alone alone;
};

TEST_F(OutlivingAlone, OnlyWhatIsMissingIsSentAgain) {
    const std::string answer(1000, '!');
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::confirm, push_number, 0, mib, mib})));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, pull_number, 0, 10, 1000}, answer)));
    ASSERT_TRUE(test::comes([&] { return alone.session->received() == 1000; }));
    alone.bare.clear();
    const auto frames = replayed(4);
    EXPECT_EQ(frames[0].frame, (Frame{Frame::Kind::push, push_number, 7, 100, mib}));
    EXPECT_EQ(frames[0].payload, source.text().substr(0, mib));
    EXPECT_EQ(frames[1].frame, (Frame{Frame::Kind::push, push_number, 7, 100 + 2 * mib, 10, 0, 0, 2 * mib}));
    EXPECT_EQ(frames[1].payload, source.text().substr(2 * mib));
    EXPECT_EQ(frames[2].frame, (Frame{Frame::Kind::pull, pull_number, 8, 5000, 10}));
    EXPECT_EQ(frames[3].frame,
              (Frame{Frame::Kind::pull, pull_number, 8, 6010, 2 * mib + 10 - 1010, 0, 0, 1010}));
}

// A half of what was asked for had come: all of it comes again.
TEST_F(OutlivingAlone, WhatWasLandingIsAskedForAgain) {
    const std::string half =
        test::said({Frame::Kind::push, pull_number, 0, 0, mib}, std::string(mib / 2, '?'));
    ASSERT_TRUE(alone.says(half));
    // Nothing tells that it lands; without this it would seldom have begun to.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    alone.bare.clear();
    const auto frames = replayed(4);
    EXPECT_EQ(frames[3].frame, (Frame{Frame::Kind::pull, pull_number, 8, 5000, 2 * mib + 10}));
    EXPECT_EQ(pull.ends, 0);
}

TEST_F(OutlivingAlone, WhatHasFailedIsNotBegunAgain) {
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::fault, push_number, 0, mib, 3}, "\x02no")));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::fault, pull_number, 0, 10, 3}, "\x03no")));
    // Both have been read when this has been answered.
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::pull, 1, 99, 0, 1})));
    EXPECT_EQ(alone.hears().frame.kind, Frame::Kind::fault);
    EXPECT_EQ(push.ends + pull.ends, 0);
    alone.bare.clear();
    EXPECT_TRUE(replayed(0).empty());
    ASSERT_TRUE(push.over() && pull.over());
    EXPECT_EQ(push.ends, 1);
    EXPECT_EQ(push.code(), static_cast<int>(ErrorCode::not_found));
    EXPECT_EQ(pull.code(), static_cast<int>(ErrorCode::permission_denied));
}

// Calls back while it sends, once.
class BusyLink final : public backend::Link {
public:
    Result<void> add(int, const backend::SocketKeys&) override { return {}; }
    std::size_t sockets() const override { return 1; }
    void send(const Frame& frame, const void*, std::function<void()>) override {
        ++sent;
        if (const auto call = std::exchange(calls, nullptr)) call(frame);
    }
    void look() override {}
    void resume(Resume) override {}
    void close(Error) override {}
    void end(Error) override {}

    std::function<void(const Frame&)> calls;
    int sent = 0;
};

// The link is lost, and there is another one, before the call that began it is back.
TEST(OutlivingInACall, WhatHasFailedIsNotSentAgain) {
    const auto session = std::make_shared<Session>("node7");
    const auto link = std::make_shared<BusyLink>(), next = std::make_shared<BusyLink>();
    session->outlive_links({});
    session->use(link);
    link->calls = [&](const Frame& push) {
        const Frame fault{Frame::Kind::fault, push.request, 0, push.size, 3};
        const auto landing = session->landing(fault).value();
        std::memcpy(landing.address, "\x02no", fault.size);
        EXPECT_TRUE(session->arrived(fault, landing));
        session->ended(test::some_error());
        EXPECT_TRUE(session->renew(next));
        EXPECT_TRUE(session->replay());
    };
    Guarded source(1000, 1);
    Moving push;
    const auto begun = session->push(source.data(), 7, 0, source.size(), push.flight);
    EXPECT_EQ(next->sent, 0);
    ASSERT_FALSE(begun);
    EXPECT_EQ(begun.error().code, ErrorCode::not_found) << begun.error().to_string();
    EXPECT_FALSE(session->waits());
}

// Who breaks the rules is not given another link.
TEST_F(OutlivingAlone, EndsWithWhomItCannotTrust) {
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::confirm, 999, 0, 0, 1})));
    ASSERT_TRUE(alone.has_ended());
    EXPECT_TRUE(push.over() && pull.over());
    EXPECT_FALSE(alone.session->renew(alone.engine->link(alone.session)).ok());
}

}  // namespace
}  // namespace sidestep::wire
