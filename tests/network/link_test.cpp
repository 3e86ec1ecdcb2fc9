// Frames over the links of an engine: whole, each once, over one socket or several, from many threads.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"

namespace sidestep::wire {
namespace {

using test::Came;
using test::Frame;
using test::Joined;
using test::Landing;
using test::Side;

constexpr Bytes large = backend::max_push;

Frame push(std::uint64_t request, Bytes size) {
    return {Frame::Kind::push, request, 3, 5, size};
}

// What the threads of one test send, and what has become of it.
class Senders {
public:
    static constexpr std::size_t threads = 8, each = 35;
    static constexpr std::array<Bytes, 5> sizes = {0, 1, 40, 16 << 10, large};

    Senders() {
        for (std::size_t i = 0; i < threads * each; ++i) {
            const Bytes size = sizes[i % sizes.size()];
            const auto kind = static_cast<Frame::Kind>(1 + i / sizes.size() % 4);
            Frame frame{kind, i, i * 7, i << 33, size};
            if (kind == Frame::Kind::fault) frame.size = std::min(size, backend::max_fault);
            frames.push_back(frame);
            payloads.push_back(frame.has_payload() ? sidestep::test::text_of(frame.size, i) : "");
        }
    }

    void run(backend::Link& link) {
        std::vector<std::thread> running;
        for (std::size_t thread = 0; thread < threads; ++thread)
            running.emplace_back([this, thread, &link] {
                for (std::size_t i = thread; i < frames.size(); i += threads)
                    link.send(frames[i], payloads[i].data(), [this, i] { ++sent[i]; });
            });
        for (auto& one : running) one.join();
    }

    bool all_sent() const {
        return std::all_of(sent.begin(), sent.end(), [](const auto& times) { return times == 1; });
    }

    void expect_all(const std::vector<Came>& came) const {
        ASSERT_EQ(came.size(), frames.size());
        std::vector<int> times(frames.size());
        for (const Came& one : came) {
            ASSERT_LT(one.frame.request, frames.size());
            ++times[one.frame.request];
            EXPECT_EQ(one.frame, frames[one.frame.request]) << one.frame.request;
            EXPECT_TRUE(one.payload == payloads[one.frame.request]) << one.frame.request;
        }
        EXPECT_EQ(times, std::vector<int>(frames.size(), 1));
    }

    std::vector<Frame> frames;
    std::vector<std::string> payloads;
    std::array<std::atomic<int>, threads * each> sent{};
};

TEST(Link, FramesComeWholeAndEachOnce) {
    for (const std::size_t sockets : {1, 3, 8}) {
        Senders senders;
        const Joined joined;
        joined.join(sockets);
        EXPECT_EQ(joined.one.link->sockets(), sockets);
        senders.run(*joined.one.link);
        ASSERT_TRUE(test::comes([&] { return joined.other.owner->count() >= senders.frames.size(); }))
            << joined.other.owner->count() << " of " << senders.frames.size() << " over " << sockets;
        EXPECT_TRUE(test::comes([&] { return senders.all_sent(); }));
        senders.expect_all(joined.other.owner->came());
        joined.one.link->end(test::some_error());
        EXPECT_TRUE(senders.all_sent()) << "told again";
        EXPECT_EQ(joined.one.owner->count(), 0u);
    }
}

// Both ways at once, while threads that wait look for themselves.
TEST(Link, ThreadsThatLookTakeNothingAway) {
    Senders there, back;
    const Joined joined;
    joined.join(3);
    std::atomic<bool> over{false};
    std::vector<std::thread> lookers;
    for (int i = 0; i < 4; ++i)
        lookers.emplace_back([&, i] {
            while (!over) (i % 2 == 0 ? joined.one : joined.other).link->look();
        });
    std::thread other([&] { back.run(*joined.other.link); });
    there.run(*joined.one.link);
    other.join();
    EXPECT_TRUE(test::comes([&] {
        return joined.other.owner->count() >= there.frames.size() &&
               joined.one.owner->count() >= back.frames.size() && there.all_sent() && back.all_sent();
    }));
    over = true;
    for (auto& one : lookers) one.join();
    there.expect_all(joined.other.owner->came());
    back.expect_all(joined.one.owner->came());
}

// The bytes of a bare socket come in every possible portion.
TEST(Link, FramesMayComeInAnyPortions) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const std::vector<Came> frames = {{push(1, 0), ""},
                                      {push(2, 1), "x"},
                                      {{Frame::Kind::confirm, 3, 0, 0, 9}, ""},
                                      {push(4, 100), sidestep::test::text_of(100)},
                                      {{Frame::Kind::fault, 5, 0, 0, 3}, "abc"},
                                      {push(6, 0), ""}};
    std::string all;
    for (const Came& one : frames) all += test::said(one.frame, one.payload);
    for (const std::size_t portion : {std::size_t{1}, std::size_t{39}, std::size_t{41}, all.size()}) {
        const auto engine = test::make_engine(1);
        const Side side(*engine);
        const auto socket = side.bare();
        for (std::size_t at = 0; at < all.size(); at += portion) {
            ASSERT_TRUE(test::say(socket, all.substr(at, portion)));
            if (portion < 40) std::this_thread::yield();
        }
        ASSERT_TRUE(test::comes([&] { return side.owner->count() == frames.size(); })) << portion;
        const auto came = side.owner->came();
        for (std::size_t i = 0; i < frames.size(); ++i) {
            EXPECT_EQ(came[i].frame, frames[i].frame) << portion;
            EXPECT_EQ(came[i].payload, frames[i].payload) << portion;
        }
    }
}

// What the socket does not take at once keeps no frame behind it, and none that may wait for others.
TEST(Link, FramesThatMayWaitStandBetweenLargeOnes) {
    constexpr std::size_t rounds = 100;
    const Joined joined;
    joined.join(1);
    const std::string few = sidestep::test::text_of(8, 1), many = sidestep::test::text_of(400'000, 2);
    std::atomic<std::size_t> sent{0};
    std::size_t all = 0;
    const auto send = [&](const std::string& text, bool may_wait) {
        const backend::Outgoing one{.frame = {Frame::Kind::push, all++, 1, 0, text.size()},
                                    .payload = text.data(),
                                    .may_wait = may_wait};
        joined.one.link->send_all({&one, 1}, [&] { ++sent; });
    };
    for (std::size_t round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < round % 20; ++i) send(few, true);
        send(many, false);
        for (std::size_t i = 0; i < round % 7; ++i) send(few, true);
        if (round % 3 == 0) joined.one.link->look();
        if (round % 10 == 0) {
            EXPECT_TRUE(test::comes([&] { return sent == all; })) << round;
        }
    }
    EXPECT_TRUE(test::comes([&] { return sent == all && joined.other.owner->count() == all; }));
    std::vector<bool> seen(all);
    for (const Came& one : joined.other.owner->came()) {
        EXPECT_FALSE(seen.at(one.frame.request)) << one.frame.request;
        seen[one.frame.request] = true;
        EXPECT_TRUE(one.payload == (one.frame.size == few.size() ? few : many)) << one.frame.request;
    }
}

// Each is given to the link by itself. The loop's thread sends them where nobody looks, and takes in what comes after a look that
// was the last.
TEST(Link, FramesThatMayWaitGoTogether) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t count = 70, rounds = 10;  // not all of them in whole groups
    const Joined joined;
    test::Ends ends = test::connected();
    const int socket = test::number_of(std::move(ends.one));
    const backend::SocketKeys keys = test::test_keys();
    ASSERT_TRUE(joined.one.link->add(socket, keys).ok());
    ASSERT_TRUE(joined.other.link->add(test::number_of(std::move(ends.other)), {keys.in, keys.out}).ok());
    const auto packets = [socket] {
        tcp_info info{};
        socklen_t size = sizeof(info);
        EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
        return info.tcpi_data_segs_out;
    };
    const std::string text = sidestep::test::text_of(8, 1);
    std::size_t all = 0;
    const auto least_packets = [&](bool may_wait) {
        unsigned least = ~0u;
        for (std::size_t round = 0; round < rounds; ++round) {
            std::atomic<std::size_t> sent{0};
            const unsigned before = packets();
            for (std::size_t i = 0; i < count; ++i) {
                const backend::Outgoing one{.frame = {Frame::Kind::push, all + i, 1, 0, text.size()},
                                            .payload = text.data(),
                                            .may_wait = may_wait};
                joined.one.link->send_all({&one, 1}, [&] { ++sent; });
            }
            all += count;
            EXPECT_TRUE(test::comes([&] { return sent == count && joined.other.owner->count() == all; }));
            least = std::min(least, packets() - before);
        }
        return least;
    };
    const unsigned together = least_packets(true), alone = least_packets(false);
    EXPECT_LT(2 * together, alone) << together;
    std::size_t next = 0;
    for (const Came& one : joined.other.owner->came()) {
        EXPECT_EQ(one.frame.request, next++) << "in order";
        EXPECT_EQ(one.payload, text);
    }
    const backend::Outgoing held{.frame = {Frame::Kind::pull, 1, 1, 0, 1}, .may_wait = true};
    joined.one.link->send_all({&held, 1}, {});
    joined.one.link->look();
    joined.other.link->send({Frame::Kind::confirm, 1, 0, 0, 1}, nullptr, {});
    EXPECT_TRUE(test::comes([&] { return joined.one.owner->count() == 1; }));
}

TEST(Link, WhatIsNotWantedIsDropped) {
    std::vector<std::string> payloads;  // stay as long as the link
    const Joined joined;
    joined.other.owner->lands = [](const Frame& frame) -> std::optional<Result<Landing>> {
        if (frame.request % 2 == 0) return Result<Landing>(Landing{});
        return std::nullopt;
    };
    joined.join(1);
    const std::vector<Bytes> sizes = {0, 1, 40, 16384, 16385, large, 7};
    for (std::size_t i = 0; i < 4 * sizes.size(); ++i)
        payloads.push_back(sidestep::test::text_of(sizes[i / 2 % sizes.size()], i));
    for (std::size_t i = 0; i < payloads.size(); ++i)
        joined.one.link->send(push(i, payloads[i].size()), payloads[i].data(), {});
    ASSERT_TRUE(test::comes([&] { return joined.other.owner->count() == payloads.size(); }));
    auto came = joined.other.owner->came();
    std::sort(came.begin(), came.end(),
              [](const Came& a, const Came& b) { return a.frame.request < b.frame.request; });
    for (std::size_t i = 0; i < came.size(); ++i) {
        EXPECT_EQ(came[i].frame, push(i, payloads[i].size()));
        EXPECT_TRUE(came[i].payload == (i % 2 == 0 ? "" : payloads[i])) << i;
    }
}

TEST(Link, WhoSaidLaterIsAskedAgainWhenResumed) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    std::atomic<bool> room{false};
    side.owner->lands = [&](const Frame& frame) -> std::optional<Result<Landing>> {
        if (frame.request == 1 && !room) return Result<Landing>(Landing{Landing::Kind::later});
        return std::nullopt;
    };
    const auto blocked = side.bare();
    const auto free = side.bare();
    ASSERT_TRUE(test::say(blocked, test::said(push(1, 3), "abc") + test::said(push(2, 1), "x")));
    ASSERT_TRUE(test::comes([&] { return side.owner->asked == 1; }));
    // Other sockets go on, and that one waits without being asked again and again.
    for (std::uint64_t i = 0; i < 50; ++i) {
        ASSERT_TRUE(test::say(free, test::said(push(100 + i, 1), "y")));
        ASSERT_TRUE(test::comes([&] { return side.owner->count() == i + 1; }));
    }
    EXPECT_EQ(side.owner->asked, 51);
    side.link->resume(backend::Link::Resume::all);
    ASSERT_TRUE(test::comes([&] { return side.owner->asked == 52; }));
    EXPECT_EQ(side.owner->count(), 50u);
    room = true;
    side.link->resume(backend::Link::Resume::all);
    ASSERT_TRUE(test::comes([&] { return side.owner->count() == 52; }));
    EXPECT_EQ(side.owner->came()[50].frame, push(1, 3));
    EXPECT_EQ(side.owner->came()[50].payload, "abc");
    EXPECT_EQ(side.owner->came()[51].frame, push(2, 1));
}

// Whoever is resumed before the answer `later` has been taken in is asked again all the same.
TEST(Link, NoResumeIsLost) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::uint64_t frames = 2000;
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    std::atomic<std::uint64_t> wanted{0};
    std::uint64_t refused = frames;
    side.owner->lands = [&](const Frame& frame) -> std::optional<Result<Landing>> {
        if (refused == frame.request) return std::nullopt;
        refused = frame.request;
        ++wanted;
        return Result<Landing>(Landing{Landing::Kind::later});
    };
    std::thread resumer([&] {
        for (std::uint64_t done = 0; done < frames; ++done) {
            if (!test::comes([&] { return wanted > done || side.owner->ends > 0; })) return;
            side.link->resume(backend::Link::Resume::all);
        }
    });
    const auto socket = side.bare();
    std::string all;
    for (std::uint64_t i = 0; i < frames; ++i) all += test::said(push(i, 1), "x");
    EXPECT_TRUE(test::say(socket, all));
    EXPECT_TRUE(test::comes([&] { return side.owner->count() == frames; })) << side.owner->count();
    side.link->end(test::some_error());
    resumer.join();
}

// Two places for four sockets: each that comes free is told to one that waits, and everything comes in the end.
TEST(Link, WhoWaitsForOneOfFewPlacesGetsIt) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::uint64_t frames = 1000, sockets = 4;
    const auto engine = test::make_engine(2);
    const Side side(*engine);
    std::mutex mutex;
    int places = 2, waiting = 0;
    std::uint64_t freed = 0;
    side.owner->lands = [&](const Frame&) -> std::optional<Result<Landing>> {
        std::lock_guard lock(mutex);
        if (places > 0) return --places, std::nullopt;
        ++waiting;
        return Result<Landing>(Landing{Landing::Kind::later});
    };
    std::thread gives_back([&] {
        while (freed < frames * sockets) {
            if (!test::comes([&] { return side.owner->count() > freed; })) return;
            bool tell = false;
            {
                std::lock_guard lock(mutex);
                ++freed;
                ++places;
                tell = waiting > 0;
                if (tell) --waiting;
            }
            if (tell) side.link->resume(backend::Link::Resume::one);
        }
    });
    std::vector<driver::TcpSocket> others;
    for (std::uint64_t i = 0; i < sockets; ++i) others.push_back(side.bare());
    for (std::uint64_t i = 0; i < frames; ++i)
        for (const auto& other : others) ASSERT_TRUE(test::say(other, test::said(push(i, 1), "x")));
    EXPECT_TRUE(test::comes([&] { return side.owner->count() == frames * sockets; })) << side.owner->count();
    gives_back.join();
    EXPECT_EQ(freed, frames * sockets);
}

// A socket may have something to say at once, and its first frame may have to wait.
TEST(Link, WhatWasThereBeforeTheSocketIsTakenIn) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    const auto engine = test::make_engine(2);
    for (int round = 0; round < 100; ++round) {
        const Side side(*engine);
        std::atomic<bool> room{false};
        side.owner->lands = [&](const Frame&) -> std::optional<Result<Landing>> {
            if (!room) return Result<Landing>(Landing{Landing::Kind::later});
            return std::nullopt;
        };
        test::Ends ends = test::connected();
        ASSERT_TRUE(test::say(ends.other, test::said(push(1, 3), "abc")));
        ASSERT_TRUE(side.link->add(test::number_of(std::move(ends.one))).ok());
        ASSERT_TRUE(test::comes([&] { return side.owner->asked > 0; }));
        room = true;
        side.link->resume(backend::Link::Resume::all);
        ASSERT_TRUE(test::comes([&] { return side.owner->count() == 1; }));
        side.link->end(test::some_error());
    }
}

// Memory of a frame that waits in a queue is the sender's again only when it is told so.
TEST(Link, SentIsToldWhenTheBytesAreGone) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t frames = 64;
    const std::string payload = sidestep::test::text_of(large);
    std::atomic<std::size_t> sent{0};
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    const auto socket = side.bare();
    for (std::size_t i = 0; i < frames; ++i) side.link->send(push(i, large), payload.data(), [&] { ++sent; });
    // Whatever the system keeps for a socket, it is less than all of this.
    EXPECT_LT(sent, frames);
    std::string taken(backend::frame_bytes + large, '\0');
    for (std::size_t i = 0; i < frames; ++i) {
        ASSERT_TRUE(socket.receive_all(taken.data(), taken.size(), test::patience()).ok());
        EXPECT_EQ(*backend::parse_frame(reinterpret_cast<const unsigned char*>(taken.data())),
                  push(i, large));
        EXPECT_TRUE(std::string_view(taken).substr(backend::frame_bytes) == payload) << i;
    }
    EXPECT_TRUE(test::comes([&] { return sent == frames; }));
}

TEST(Link, WithoutASocketSendsNothing) {
    const auto engine = test::make_engine(1);
    const Side side(*engine);
    bool sent = false;
    side.link->send({Frame::Kind::confirm, 1, 0, 0, 1}, nullptr, [&] { sent = true; });
    side.link->look();
    side.link->resume(backend::Link::Resume::all);
    EXPECT_FALSE(sent);
    EXPECT_EQ(side.link->sockets(), 0u);
    side.link->close(test::some_error());
    side.link->end(test::some_error(ErrorCode::timed_out));
    EXPECT_EQ(side.owner->ends, 1);
    EXPECT_EQ(side.owner->why().code, ErrorCode::mismatch);
}

}  // namespace
}  // namespace sidestep::wire
