// Requests with many parts: all arrive where they belong, over links that end too, and are told of once.
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/session_rig.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {
namespace {

using test::Alone;
using test::BothEnds;
using test::Came;
using test::comes;
using test::Frame;
using test::Guarded;
using test::Heard;
using test::list;
using test::mib;
using test::scatter;

// Pieces of all sizes that lie in one order here and in another one there.
struct Scattered {
    explicit Scattered(std::uint64_t seed) {
        for (std::size_t i = 0; i < 1200; ++i) sizes.push_back(i * 7919 % 3000);
        for (const Bytes size : {mib, mib + 1, 3 * mib + 5, Bytes{0}, Bytes{1}, Bytes{256} << 10})
            sizes.push_back(size);
        std::shuffle(sizes.begin(), sizes.end(), std::minstd_rand(static_cast<unsigned>(seed)));
        all = std::accumulate(sizes.begin(), sizes.end(), Bytes{0});
    }
    // Those of `memory`, and in the regions: the last is first there; every third lies in the second region.
    std::vector<Part> parts(Guarded& memory, std::uint64_t first, std::uint64_t second) const {
        std::vector<Part> parts;
        Bytes here = 0;
        for (std::size_t i = 0; i < sizes.size(); here += sizes[i++])
            parts.push_back(
                {i % 3 == 0 ? second : first, all - here - sizes[i], sizes[i], memory.data() + here});
        return parts;
    }
    // What of `here` the region holds where `in_second` says which.
    void expect(Guarded& here, Guarded& first, Guarded& second) const {
        Bytes at = 0;
        for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
            const auto& there = i % 3 == 0 ? second : first;
            ASSERT_EQ(std::memcmp(const_cast<Guarded&>(there).data() + (all - at - sizes[i]),
                                  here.data() + at, sizes[i]),
                      0)
                << i;
        }
    }
    std::vector<Bytes> sizes;
    Bytes all = 0;
};

TEST(SessionParts, GoWhereTheyBelong) {
    const Scattered pieces(1);
    for (const std::size_t sockets : {1, 4}) {
        Guarded source(pieces.all, 1), target(pieces.all, 2), first(pieces.all, 3), second(pieces.all, 4);
        BothEnds peers(sockets);
        const auto a = peers.other->grant(test::region_of(first));
        const auto b = peers.other->grant(test::region_of(second));
        Heard pushed, pulled;
        peers.one->bring(pieces.parts(source, a, b), pushed.told());
        ASSERT_TRUE(pushed.once());
        EXPECT_EQ(pushed.errors, 0);
        pieces.expect(source, first, second);
        peers.one->fetch(pieces.parts(target, a, b), pulled.told());
        ASSERT_TRUE(pulled.once());
        EXPECT_EQ(pulled.errors, 0);
        EXPECT_TRUE(target.text() == source.text());
        EXPECT_TRUE(source.whole() && target.whole() && first.whole() && second.whole());
        EXPECT_FALSE(peers.one->waits());
    }
}

// Both ways at a time, and the links end while they go.
TEST(SessionParts, OutliveTheirLinks) {
    const Scattered pieces(2);
    std::minstd_rand random(5);
    BothEnds peers(3);
    for (const auto& session : {peers.one, peers.other}) session->outlive_links([](const Error&) {});
    for (int round = 0; round < 15; ++round) {
        Guarded source(pieces.all, 1), target(pieces.all, 2), first(pieces.all, 3), second(pieces.all, 4);
        Guarded readable(pieces.all, 5);
        std::vector<std::uint64_t> regions;
        std::vector<std::weak_ptr<Region>> held;
        for (Guarded* const memory : {&first, &second, &readable}) {
            auto region = test::region_of(*memory);
            held.push_back(region);
            regions.push_back(peers.other->grant(std::move(region)));
        }
        Heard pushed, pulled;
        std::thread mover([&] {
            peers.one->bring(pieces.parts(source, regions[0], regions[1]), pushed.told());
            peers.one->fetch(pieces.parts(target, regions[2], regions[2]), pulled.told());
        });
        for (int times = 0; times < 4; ++times) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
            for (const auto& session : {peers.one, peers.other})
                session->link()->end(test::some_error(ErrorCode::timed_out));
            for (const auto& session : {peers.one, peers.other})
                EXPECT_TRUE(session->settle(test::patience()));
            peers.renew(3);
            EXPECT_TRUE(peers.other->replay().ok());
            EXPECT_TRUE(peers.one->replay().ok());
        }
        mover.join();
        ASSERT_TRUE(pushed.once() && pulled.once());
        EXPECT_EQ(pushed.errors + pulled.errors, 0);
        pieces.expect(source, first, second);
        pieces.expect(target, readable, readable);
        EXPECT_TRUE(target.whole() && first.whole() && second.whole());
        for (const std::uint64_t region : regions) peers.other->withdraw(region);
        // What was asked for twice may still be on its way, from memory that its region keeps.
        for (const auto& region : held) EXPECT_TRUE(comes([&] { return region.expired(); }));
    }
}

TEST(SessionParts, FailAsOne) {
    Guarded source(1000, 1), there(1000, 2);
    BothEnds peers(2);
    const auto region = peers.other->grant(test::region_of(there));
    for (const bool push : {true, false}) {
        std::vector<Part> parts;
        for (Bytes i = 0; i < 10; ++i)
            parts.push_back({i == 7 ? region + 99 : region, i, 1, source.data() + i});
        Heard heard;
        push ? peers.one->bring(parts, heard.told()) : peers.one->fetch(parts, heard.told());
        ASSERT_TRUE(heard.once());
        EXPECT_EQ(heard.errors, 1);
    }
    Heard nothing;
    peers.one->fetch({{region, 0, 0, source.data()}}, nothing.told());
    peers.one->bring({{region, 0, 0, source.data()}}, nothing.told());
    EXPECT_EQ(nothing.times * 10 + nothing.errors, 20) << "there is nothing to wait for";
    EXPECT_FALSE(peers.one->waits());
}

// What has come together is confirmed together.
TEST(SessionParts, AreConfirmedInOneFrame) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(1000, 1);
    Alone alone;
    const auto region = alone.session->grant(test::region_of(memory, false, true));
    std::string said;
    // The parts of two requests, of which the second lacks one.
    for (Bytes i = 0; i < 20; ++i)
        for (const std::uint64_t request : {1, 2})
            if (request == 1 || i != 10)
                said += test::said({Frame::Kind::push, request, region, 900 - 10 * i, 3, 0, 0, 3 * i}, "abc");
    ASSERT_TRUE(alone.says(said));
    std::vector<Frame> heard;
    for (int i = 0; i < 3; ++i) heard.push_back(alone.hears().frame);
    std::sort(heard.begin(), heard.end(), [](const Frame& a, const Frame& b) {
        return std::pair(a.request, a.offset) < std::pair(b.request, b.offset);
    });
    EXPECT_EQ(heard[0], (Frame{Frame::Kind::confirm, 1, 0, 0, 60}));
    EXPECT_EQ(heard[1], (Frame{Frame::Kind::confirm, 2, 0, 0, 30}));
    EXPECT_EQ(heard[2], (Frame{Frame::Kind::confirm, 2, 0, 33, 27}));
}

// The other end hangs up on whoever asks for too much at a time: what is beyond waits until something has come.
TEST(SessionParts, NoMoreIsAskedForThanTheOtherEndBears) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t many = 40'000;
    Guarded memory(many, 1);
    Alone alone;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < many; ++i) parts.push_back({7, i, 1, memory.data() + i});
    Heard first, second, third;
    std::thread asking([&] {
        for (Heard* heard : {&first, &second, &third}) alone.session->fetch(parts, heard->told());
    });
    const auto hears_all = [&] {
        std::uint64_t request = 0;
        for (Bytes asked = 0; asked < many;) {
            const Came came = alone.hears();
            EXPECT_TRUE(request == 0 || came.frame.request == request);
            request = came.frame.request;
            if (came.frame.kind == Frame::Kind::gather) asked += came.frame.size;
        }
        return request;
    };
    const std::uint64_t request = hears_all();
    asking.join();
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, request, 0, 0, many}, std::string(many, 'a'))));
    ASSERT_TRUE(first.once());
    EXPECT_EQ(first.errors, 0);
    EXPECT_EQ(memory.text(), std::string(many, 'a'));
    EXPECT_EQ(hears_all(), request + 1);
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::fault, request + 1, 0, many, 3}, "\x02no")));
    ASSERT_TRUE(second.once());
    EXPECT_EQ(hears_all(), request + 2);
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::fault, request + 2, 0, many, 3}, "\x02no")));
    ASSERT_TRUE(third.once());
    EXPECT_FALSE(alone.session->end().has_value());
}

// One for nothing at all ends with the link, also where it has not been asked yet.
TEST(SessionParts, WhatWaitsAndEndsIsNotAskedLater) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t most = 1 << 16;
    Guarded memory(most, 1);
    Heard first, last;
    test::Moving nothing;
    Alone alone;
    alone.session->outlive_links({});
    std::vector<Part> parts;
    for (std::size_t i = 0; i < most; ++i) parts.push_back({7, i, 1, memory.data() + i});
    alone.session->fetch(parts, first.told());
    ASSERT_TRUE(alone.session->pull(7, 0, 0, memory.data(), nothing.flight).ok());
    alone.session->fetch({{7, 0, 1, memory.data()}}, last.told());
    alone.bare.clear();
    ASSERT_TRUE(nothing.over());
    ASSERT_TRUE(comes([&] { return alone.session->waits_for_link(); }));
    alone.renew();
    std::thread replaying([&] { EXPECT_TRUE(alone.session->replay().ok()); });
    for (Bytes asked = 0; asked < most;) {
        const Came came = alone.hears();
        if (came.frame.kind == Frame::Kind::gather) asked += came.frame.size;
    }
    replaying.join();
    EXPECT_EQ(last.times, 0) << "there is no room";
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, 1, 0, 0, most}, std::string(most, 'a'))));
    ASSERT_TRUE(first.once());
    const Came question = alone.hears();
    EXPECT_EQ(question.frame, (Frame{Frame::Kind::pull, 3, 7, 0, 1}));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, 3, 0, 0, 1}, "b")));
    ASSERT_TRUE(last.once());
    EXPECT_EQ(first.errors + last.errors, 0);
}

// A question that was not asked is not answered either.
TEST(SessionParts, WhatWaitsToBeAskedForIsNotAnswered) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t many = 40'000;
    for (const auto kind : {Frame::Kind::push, Frame::Kind::fault}) {
        Guarded memory(many, 1);
        Heard heard;
        Alone alone;
        const std::vector<Part> parts(many, {7, 0, 1, memory.data()});
        alone.session->fetch(parts, heard.told());
        alone.session->fetch(parts, heard.told());
        const std::uint64_t request = alone.hears().frame.request;
        ASSERT_TRUE(alone.says(test::said({kind, request + 1, 0, 0, 1}, "\x02")));
        ASSERT_TRUE(alone.has_ended());
        EXPECT_TRUE(comes([&] { return heard.times == 2; }));
        EXPECT_EQ(heard.errors, 2);
    }
}

// Small ones leave in two frames, and come back as one answer.
TEST(SessionParts, SmallOnesTravelTogether) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(100, 1);
    Alone alone;
    Heard pushed, pulled;
    const std::vector<Part> parts{
        {7, 50, 3, memory.data()}, {7, 0, 0, memory.data()}, {7, 9, 4, memory.data() + 20}};
    alone.session->bring(parts, pushed.told());
    const Came places = alone.hears(), bytes = alone.hears();
    const std::uint64_t push = places.frame.request;
    EXPECT_EQ(list({{50, 3}, {9, 4}}, push, 7), test::said(places.frame, places.payload));
    EXPECT_EQ(scatter(memory.text().substr(0, 3) + memory.text().substr(20, 4), push, 7),
              test::said(bytes.frame, bytes.payload));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::confirm, push, 0, 0, 7})));
    ASSERT_TRUE(pushed.once());
    alone.session->fetch(parts, pulled.told());
    const Came asked = alone.hears(), question = alone.hears();
    const std::uint64_t pull = asked.frame.request;
    EXPECT_EQ(list({{50, 3}, {9, 4}}, pull, 7), test::said(asked.frame, asked.payload));
    EXPECT_EQ(question.frame, (Frame{Frame::Kind::gather, pull, 7, 0, 7}));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, pull, 0, 1, 5}, "bcdef")));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, pull, 0, 6, 1}, "g")));
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::push, pull, 0, 0, 1}, "a")));
    ASSERT_TRUE(pulled.once());
    EXPECT_EQ(pushed.errors + pulled.errors, 0);
    EXPECT_EQ(memory.text().substr(0, 3) + memory.text().substr(20, 4), "abcdefg");
    EXPECT_TRUE(memory.whole());
}

struct Refused {
    std::vector<backend::RegionPart> places;
    std::uint64_t region;
    ErrorCode code;
    std::uint64_t target = 0;
};

// Each list is followed by 6 bytes of `kind`, and answered by a fault for all of them.
void expect_refused(const Alone& alone, Frame::Kind kind, const std::vector<Refused>& cases) {
    std::uint64_t request = 0;
    for (const auto& [places, region, code, target] : cases) {
        const Frame frame{kind, ++request, region, 0, 6, target};
        ASSERT_TRUE(alone.says(list(places, request, region) +
                               test::said(frame, frame.has_payload() ? "abcdef" : "")));
        const Came came = alone.hears();
        EXPECT_EQ(came.frame.kind, Frame::Kind::fault) << request;
        EXPECT_EQ(came.frame.request, request);
        EXPECT_EQ(came.frame.offset, 6u);
        ASSERT_FALSE(came.payload.empty());
        EXPECT_EQ(static_cast<int>(came.payload[0]), static_cast<int>(code)) << request;
    }
}

// What is asked for together is answered together.
TEST(SessionParts, AreReadWhereTheyMayBe) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(100, 1), closed(100, 2);
    Alone alone;
    const auto region = alone.session->grant(test::region_of(memory, true, false));
    const auto writable = alone.session->grant(test::region_of(closed, false, true));
    const auto gather = [](std::uint64_t request, std::uint64_t where, Bytes bytes, Bytes at = 0) {
        return test::said({Frame::Kind::gather, request, where, 0, bytes, 0, 0, at});
    };
    expect_refused(alone, Frame::Kind::gather,
                   {{{{0, 3}, {98, 3}}, region, ErrorCode::invalid_argument},
                    {{{0, 3}, {10, 3}}, writable, ErrorCode::permission_denied},
                    {{{0, 3}, {10, 3}}, region + 99, ErrorCode::not_found}});
    ASSERT_TRUE(
        alone.says(list({{50, 3}, {97, 3}, {0, 0}, {49, 3}}, 9, region, 5) + gather(9, region, 9, 5)));
    const Came came = alone.hears();
    EXPECT_EQ(came.frame, (Frame{Frame::Kind::push, 9, 0, 5, 9}));
    EXPECT_EQ(came.payload,
              memory.text().substr(50, 3) + memory.text().substr(97, 3) + memory.text().substr(49, 3));
    EXPECT_FALSE(alone.session->end().has_value());
    ASSERT_TRUE(alone.says(list({{50, 3}}, 9, region) + gather(9, region, 4)));
    EXPECT_TRUE(alone.has_ended()) << "another size than that of the places";
}

// A region of a third machine, 1000 bytes that it calls 33.
std::uint64_t grant_beyond(const Alone& node, const Alone& third, Bytes size = 1000) {
    auto region = std::make_shared<Region>();
    region->size = size;
    region->beyond = third.session;
    region->target = 33;
    return node.session->grant(region);
}

// One question for all, and one request to the third machine, into which nothing that ends meanwhile can break.
TEST(SessionParts, ArePassedOnTogether) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t many = backend::most_places / 2;
    Guarded memory(2 * many, 1);
    Alone client, node, third;
    const auto region = node.session->grant(test::region_of(memory, true, false));
    const auto beyond = grant_beyond(node, third);
    std::vector<Part> parts;
    std::vector<backend::RegionPart> targets;
    std::string bytes;
    for (std::size_t i = 0; i < many; ++i) {
        const Bytes from = 2 * (many - 1 - i);
        parts.push_back(
            {.region = region, .offset = from, .size = 2, .target = beyond, .target_offset = 3 * i});
        targets.push_back({3 * i, 2});
        bytes += memory.text().substr(from, 2);
    }
    Heard heard;
    ASSERT_TRUE(client.session->pass(parts, heard.told()).ok());
    const Came places = client.hears(), question = client.hears();
    const std::uint64_t request = places.frame.request;
    EXPECT_EQ(question.frame, (Frame{Frame::Kind::gather, request, region, 0, 2 * many, beyond}));
    ASSERT_TRUE(node.says(test::said(places.frame, places.payload) + test::said(question.frame)));
    const Came told = third.hears(), came = third.hears();
    EXPECT_EQ(list(targets, told.frame.request, 33), test::said(told.frame, told.payload));
    EXPECT_EQ(scatter(bytes, told.frame.request, 33), test::said(came.frame, came.payload));
    ASSERT_TRUE(third.says(test::said({Frame::Kind::confirm, told.frame.request, 0, 0, 2 * many})));
    const Came confirm = node.hears();
    EXPECT_EQ(confirm.frame, (Frame{Frame::Kind::confirm, request, 0, 0, 2 * many}));
    ASSERT_TRUE(client.says(test::said(confirm.frame)));
    ASSERT_TRUE(heard.once());
    EXPECT_EQ(heard.errors, 0);
}

TEST(SessionParts, ArePassedOnWhereTheyMayBe) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(100, 1), closed(100, 2);
    Alone node, third;
    const auto region = node.session->grant(test::region_of(memory, true, false));
    const auto writable = node.session->grant(test::region_of(closed, false, true));
    const auto beyond = grant_beyond(node, third), endless = grant_beyond(node, third, Buffer::whole);
    const std::vector<backend::RegionPart> good{{0, 3}, {10, 3}, {0, 0}, {997, 0}};
    expect_refused(node, Frame::Kind::gather,
                   {{{{0, 3}, {98, 3}, {0, 0}, {997, 0}}, region, ErrorCode::invalid_argument, beyond},
                    {{{0, 3}, {10, 3}, {0, 0}, {998, 0}}, region, ErrorCode::invalid_argument, beyond},
                    {{{0, 3}, {10, 3}, {1ull << 40, 0}, {0, 0}}, region, ErrorCode::invalid_argument, beyond},
                    {{{0, 3}, {10, 3}, {0, 0}, {~Bytes{1}, 0}}, region, ErrorCode::invalid_argument, endless},
                    {good, writable, ErrorCode::permission_denied, beyond},
                    {good, region + 99, ErrorCode::not_found, beyond},
                    {good, region, ErrorCode::not_found, writable},
                    {good, region, ErrorCode::not_found, 77}});
    EXPECT_FALSE(node.session->end().has_value());
    ASSERT_TRUE(node.says(list({{0, 3}, {10, 3}}, 9, region) +
                          test::said({Frame::Kind::gather, 9, region, 0, 6, beyond})));
    EXPECT_TRUE(node.has_ended()) << "places without targets";
}

// Neither what was granted is left, nor anything else touched.
TEST(SessionParts, AreWrittenWhereTheyMayBe) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(100, 1), closed(100, 2);
    Alone alone;
    const auto region = alone.session->grant(test::region_of(memory, false, true));
    const auto readable = alone.session->grant(test::region_of(closed, true, false));
    expect_refused(alone, Frame::Kind::scatter,
                   {{{{0, 3}, {98, 3}}, region, ErrorCode::invalid_argument},
                    {{{101, 0}, {0, 6}}, region, ErrorCode::invalid_argument},
                    {{{1ull << 40, 3}, {0, 3}}, region, ErrorCode::invalid_argument},
                    {{{0, 3}, {10, 3}}, readable, ErrorCode::permission_denied},
                    {{{0, 3}, {10, 3}}, region + 99, ErrorCode::not_found}});
    EXPECT_EQ(memory.text(), Guarded(100, 1).text());
    // Parts may lie upon one another; then there are more bytes than in the region.
    ASSERT_TRUE(alone.says(list({{0, 60}, {40, 60}, {5, 0}}, 50, region, 9) +
                           scatter(std::string(60, 'a') + std::string(60, 'b'), 50, region, 9)));
    EXPECT_EQ(alone.hears().frame, (Frame{Frame::Kind::confirm, 50, 0, 9, 120}));
    EXPECT_EQ(memory.text(), std::string(40, 'a') + std::string(60, 'b'));
    EXPECT_TRUE(memory.whole() && closed.whole());
    EXPECT_FALSE(alone.session->end().has_value());
}

TEST(SessionParts, OfWhichNobodyWasToldEndTheLink) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(100, 1);
    std::string many;
    for (std::uint64_t i = 0; i < 5000; ++i) many += list({{0, 1}}, i, 1);
    const std::vector<std::pair<const char*, std::string>> cases{
        {"no list", scatter("abc", 1, 1)},
        {"of another request", list({{0, 3}}, 2, 1) + scatter("abc", 1, 1)},
        {"of another place", list({{0, 3}}, 1, 1, 5) + scatter("abc", 1, 1)},
        {"of more", list({{0, 3}, {5, 1}}, 1, 1) + scatter("abc", 1, 1)},
        {"of fewer", list({{0, 2}}, 1, 1) + scatter("abc", 1, 1)},
        {"twice", list({{0, 3}}, 1, 1) + list({{0, 3}}, 1, 1)},
        {"used twice", list({{0, 3}}, 1, 1) + scatter("abc", 1, 1) + scatter("abc", 1, 1)},
        {"an empty list", list({}, 1, 1)},
        {"no whole list", test::said({Frame::Kind::places, 1, 1, 0, 15}, std::string(15, 'x'))},
        {"too many lists", many}};
    for (const auto& [what, bytes] : cases) {
        Alone alone;
        const auto region = alone.session->grant(test::region_of(memory, false, true));
        ASSERT_EQ(region, 1u);
        alone.says(bytes);
        ASSERT_TRUE(alone.has_ended()) << what;
        EXPECT_EQ(alone.session->end()->code, ErrorCode::io_error) << what;
    }
    EXPECT_TRUE(memory.whole());
}

// One whose engine lands a frame at one place.
TEST(SessionParts, NeedALinkThatScatters) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    class Plain final : public backend::Link {
    public:
        Result<void> add(int, const backend::SocketKeys&) override { return {}; }
        std::size_t sockets() const override { return 1; }
        void send(const Frame& frame, const void*, std::function<void()> sent) override {
            frames.push_back(frame);
            if (sent) sent();
        }
        void look() override {}
        void resume(Resume) override {}
        void close(Error) override {}
        void end(Error) override {}
        std::vector<Frame> frames;
    };
    Guarded memory(100, 1);
    const auto link = std::make_shared<Plain>();
    const auto session = std::make_shared<Session>("node7");
    session->use(link);
    const auto region = session->grant(test::region_of(memory));
    Heard pushed, pulled;
    const std::vector<Part> parts{{7, 50, 3, memory.data()}, {7, 9, 4, memory.data() + 20}};
    session->bring(parts, pushed.told());
    session->fetch(parts, pulled.told());
    ASSERT_EQ(link->frames.size(), 4u);
    EXPECT_EQ(link->frames[1], (Frame{Frame::Kind::push, 1, 7, 9, 4, 0, 0, 3}));
    for (const Frame& frame :
         {Frame{Frame::Kind::push, 2, 0, 0, 7}, Frame{Frame::Kind::places, 1, region, 0, 16},
          Frame{Frame::Kind::scatter, 1, region, 0, 16}})
        EXPECT_FALSE(session->landing(frame).ok());
    EXPECT_TRUE(session->landing({Frame::Kind::push, 2, 0, 3, 4}).ok());
    ASSERT_TRUE(session->arrived({Frame::Kind::pull, 9, region, 0, 3}, {}).ok());
    ASSERT_TRUE(session->arrived({Frame::Kind::pull, 9, region, 7, 3, 0, 0, 3}, {}).ok());
    session->caught_up();
    ASSERT_EQ(link->frames.size(), 6u) << "an answer for each";
    session->ended(test::some_error());
    EXPECT_EQ(pushed.times + pulled.times, 2);
}

}  // namespace
}  // namespace sidestep::wire
