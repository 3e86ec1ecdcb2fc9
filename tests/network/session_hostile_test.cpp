// A session whose other end says what it likes: it ends the link at most, and touches nothing it was not let at.
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/session_rig.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {
namespace {

using test::Alone;
using test::Came;
using test::Frame;
using test::Guarded;
using test::Moving;
using test::said;

constexpr Bytes kib100 = 100 << 10;
constexpr Bytes most_bytes = ~Bytes{0};

std::string answer(std::uint64_t request, Bytes offset, Bytes size) {
    return said({Frame::Kind::push, request, 0, offset, size}, std::string(size, '!'));
}

std::string confirmed(std::uint64_t request, Bytes size, Bytes offset = 0) {
    return said({Frame::Kind::confirm, request, 0, offset, size});
}

std::string fault(std::uint64_t request, Bytes bytes, const std::string& words) {
    return said({Frame::Kind::fault, request, 0, bytes, words.size()}, words);
}

// One pull of 100 KiB and one push of as much are under way when the other end speaks.
class HostileEnd : public testing::Test {
protected:
    void SetUp() override {
        SIDESTEP_NEEDS_BARE_SOCKETS();
        ASSERT_TRUE(alone.session->pull(1, 0, target.size(), target.data(), pull.flight).ok());
        ASSERT_TRUE(alone.session->push(source.data(), 1, 0, source.size(), push.flight).ok());
        // By which numbers they are to be answered. Where nothing waits, the first socket is taken.
        for (int i = 0; i < 2; ++i) {
            const Came came = alone.hears();
            (came.frame.kind == Frame::Kind::pull ? pull_number : push_number) = came.frame.request;
        }
        ASSERT_NE(pull_number * push_number, 0u);
    }

    // The first byte of what was pulled, and the half of a push with all others.
    void begin_all_but_one() {
        const std::string rest = answer(pull_number, 1, kib100 - 1).substr(0, kib100 / 2);
        ASSERT_TRUE(alone.says(answer(pull_number, 0, 1) + rest, 0));
        ASSERT_TRUE(test::comes([&] { return alone.session->received() == 1; }));
    }

    void expect_end() {
        ASSERT_TRUE(alone.has_ended());
        EXPECT_EQ(alone.session->end()->code, ErrorCode::io_error) << alone.session->end()->to_string();
        ASSERT_TRUE(pull.over());
        ASSERT_TRUE(push.over());
        alone.session->link()->end(test::some_error());
        EXPECT_EQ(pull.ends, 1);
        EXPECT_EQ(push.ends, 1);
        EXPECT_TRUE(target.whole());
        EXPECT_TRUE(source.text() == Guarded(kib100, 2).text()) << "memory that was only sent";
    }

    Guarded target{kib100, 1}, source{kib100, 2};
    Moving pull, push;
    std::uint64_t pull_number = 0, push_number = 0;
    Alone alone{2};
};

struct Words {
    const char* name;
    // What is said, given the numbers of the pull and of the push.
    std::function<std::string(std::uint64_t, std::uint64_t)> bytes;
};

class HostileWords : public HostileEnd, public testing::WithParamInterface<Words> {};

TEST_P(HostileWords, EndTheLink) {
    ASSERT_TRUE(alone.says(GetParam().bytes(pull_number, push_number)));
    expect_end();
}

const Words hostile_words[] = {
    {"AnswerToNobody", [](auto, auto) { return answer(999, 0, 10); }},
    {"AnswerToZero", [](auto, auto) { return answer(0, 0, 0); }},
    {"AnswerToAPush", [](auto, auto push) { return answer(push, 0, 10); }},
    {"EmptyAnswerToAPush", [](auto, auto push) { return answer(push, 0, 0); }},
    {"AnswerTooLarge", [](auto pull, auto) { return answer(pull, 0, kib100 + 1); }},
    {"AnswerBehindTheEnd", [](auto pull, auto) { return answer(pull, kib100, 1); }},
    {"AnswerOverTheEnd", [](auto pull, auto) { return answer(pull, kib100 - 10, 11); }},
    {"AnswerFarAway", [](auto pull, auto) { return answer(pull, 1ull << 62, 1); }},
    {"AnswerThatWrapsRound", [](auto pull, auto) { return answer(pull, most_bytes - 10, 10); }},
    {"AnswerBeforeTheBegin", [](auto pull, auto) { return answer(pull, most_bytes - 255, 100); }},
    {"SamePartTwice",
     [](auto pull, auto) { return answer(pull, 0, kib100 - 10) + answer(pull, 0, kib100 - 10); }},
    {"AnswerAfterAll", [](auto pull, auto) { return answer(pull, 0, kib100) + answer(pull, 0, 1); }},
    {"ConfirmToNobody", [](auto, auto) { return confirmed(999, 10); }},
    {"ConfirmOfMore", [](auto, auto push) { return confirmed(push, kib100 + 1); }},
    {"ConfirmOfAll", [](auto, auto push) { return confirmed(push, most_bytes); }},
    {"ConfirmTwice", [](auto, auto push) { return confirmed(push, kib100) + confirmed(push, kib100); }},
    {"ConfirmOfMoreInParts",
     [](auto, auto push) { return confirmed(push, kib100 - 1) + confirmed(push, 2); }},
    {"ConfirmOfAPull", [](auto pull, auto) { return confirmed(pull, kib100); }},
    {"ConfirmBehindTheEnd", [](auto, auto push) { return confirmed(push, 1, kib100); }},
    {"ConfirmFarAway", [](auto, auto push) { return confirmed(push, 1, most_bytes); }},
    {"ConfirmOfOneByteTwice",
     [](auto, auto push) { return confirmed(push, 10, 0) + confirmed(push, 10, 9); }},
    {"AnswerOfOneByteTwice", [](auto pull, auto) { return answer(pull, 10, 10) + answer(pull, 19, 10); }},
    {"FaultToNobody", [](auto, auto) { return fault(999, 1, "\x09no"); }},
    {"FaultWithoutWords", [](auto pull, auto) { return fault(pull, 1, ""); }},
    {"FaultOfMore", [](auto pull, auto) { return fault(pull, kib100 + 1, "\x09no"); }},
    {"FaultAfterAnAnswer",
     [](auto pull, auto) { return answer(pull, 0, kib100 - 10) + fault(pull, 11, "\x09no"); }},
    {"FaultAfterAConfirm",
     [](auto, auto push) { return confirmed(push, kib100 - 10) + fault(push, 11, "\x09no"); }},
};
INSTANTIATE_TEST_SUITE_P(All, HostileWords, testing::ValuesIn(hostile_words),
                         [](const auto& one) { return std::string(one.param.name); });

// While bytes come in over one socket, the other one says that they have failed: what waits for them would go.
TEST_F(HostileEnd, NothingEndsWhileBytesLand) {
    begin_all_but_one();
    ASSERT_TRUE(alone.says(fault(pull_number, kib100 - 1, "\x09no"), 1));
    expect_end();
}

TEST_F(HostileEnd, NoPartLandsTwiceAtATime) {
    begin_all_but_one();
    // Refused before its bytes come: else more would be landing than is left.
    ASSERT_TRUE(alone.says(answer(pull_number, kib100 - 1, 1).substr(0, backend::frame_bytes), 1));
    expect_end();
}

// Who says early that all has come does not make this end give memory back that is still being sent.
TEST_F(HostileEnd, EarlyConfirmsDoNotEndAPush) {
    Guarded much(32 << 20, 3);
    Moving moving;
    ASSERT_TRUE(alone.session->push(much.data(), 1, 0, much.size(), moving.flight).ok());
    ASSERT_TRUE(alone.says(confirmed(push_number + 1, much.size()) + confirmed(push_number, kib100)));
    ASSERT_TRUE(push.over());
    EXPECT_EQ(moving.ends, 0) << "most of it cannot have been sent";
    alone.session->link()->end(test::some_error());
    EXPECT_EQ(moving.ends, 1);
}

TEST_F(HostileEnd, FaultsAreTakenAtTheirWord) {
    ASSERT_TRUE(alone.says(fault(pull_number, kib100, "\x02it is not there")));
    ASSERT_TRUE(alone.says(fault(push_number, 10, std::string(1, '\xff') + "odd")));
    ASSERT_TRUE(alone.says(confirmed(push_number, kib100 - 10)));
    ASSERT_TRUE(pull.over());
    ASSERT_TRUE(push.over());
    EXPECT_EQ(pull.code(), static_cast<int>(ErrorCode::not_found));
    EXPECT_EQ(push.code(), static_cast<int>(ErrorCode::io_error)) << "a code that there is not";
    for (const Moving* one : {&pull, &push})
        EXPECT_NE(one->flight.result().error().message.find("node7"), std::string::npos);
    EXPECT_NE(pull.flight.result().error().message.find("it is not there"), std::string::npos);
    EXPECT_FALSE(alone.session->end().has_value());
}

// A region of a third machine is reached by what is passed on to it alone, within its bounds.
TEST(HostileClient, PassesOnOnlyWhatItMay) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(kib100, 1), closed(kib100, 2);
    Alone alone, third;
    const std::uint64_t readable = alone.session->grant(test::region_of(memory, true, false));
    const std::uint64_t writable = alone.session->grant(test::region_of(closed, false, true));
    auto region = std::make_shared<Region>();
    region->size = 1000;
    region->beyond = third.session;
    region->target = 33;
    const std::uint64_t beyond = alone.session->grant(region);
    struct Case {
        Frame frame;
        ErrorCode code;
    };
    const Case cases[] = {
        {{Frame::Kind::pass, 1, readable, 0, 10, 77, 0}, ErrorCode::not_found},
        {{Frame::Kind::pass, 2, readable, 0, 10, 0, 0}, ErrorCode::not_found},
        {{Frame::Kind::pass, 3, readable, 0, 10, writable, 0}, ErrorCode::not_found},
        {{Frame::Kind::pass, 4, writable, 0, 10, beyond, 0}, ErrorCode::permission_denied},
        {{Frame::Kind::pass, 5, beyond, 0, 10, beyond, 0}, ErrorCode::permission_denied},
        {{Frame::Kind::pass, 6, 77, 0, 10, beyond, 0}, ErrorCode::not_found},
        {{Frame::Kind::pass, 7, readable, kib100 - 5, 10, beyond, 0}, ErrorCode::invalid_argument},
        {{Frame::Kind::pass, 8, readable, 0, 10, beyond, 991}, ErrorCode::invalid_argument},
        {{Frame::Kind::pass, 9, readable, 0, 10, beyond, most_bytes - 10}, ErrorCode::invalid_argument},
        {{Frame::Kind::push, 10, beyond, 0, 10}, ErrorCode::permission_denied},
        {{Frame::Kind::pull, 11, beyond, 0, 10}, ErrorCode::permission_denied},
    };
    for (const auto& [frame, code] : cases) {
        ASSERT_TRUE(alone.says(said(frame, std::string(frame.has_payload() ? frame.size : 0, '!'))));
        const Came came = alone.hears();
        EXPECT_EQ(came.frame.kind, Frame::Kind::fault) << frame.request;
        EXPECT_EQ(came.frame.request, frame.request);
        ASSERT_FALSE(came.payload.empty());
        EXPECT_EQ(static_cast<int>(came.payload[0]), static_cast<int>(code)) << frame.request;
    }
    // What it may goes there, and is confirmed when it has been there.
    ASSERT_TRUE(alone.says(said({Frame::Kind::pass, 20, readable, 100, 10, beyond, 990, 7})));
    const Came passed = third.hears();
    EXPECT_EQ(passed.frame, (Frame{Frame::Kind::push, passed.frame.request, 33, 990, 10}));
    EXPECT_EQ(passed.payload, memory.text().substr(100, 10));
    ASSERT_TRUE(third.says(confirmed(passed.frame.request, 10)));
    EXPECT_EQ(alone.hears().frame, (Frame{Frame::Kind::confirm, 20, 0, 7, 10}));
    // So is what the third machine refuses, and what it never answers.
    ASSERT_TRUE(alone.says(said({Frame::Kind::pass, 21, readable, 0, 10, beyond, 0})));
    ASSERT_TRUE(third.says(fault(third.hears().frame.request, 10, "\x09no")));
    EXPECT_EQ(alone.hears().frame.kind, Frame::Kind::fault);
    ASSERT_TRUE(alone.says(said({Frame::Kind::pass, 22, readable, 0, 10, beyond, 0})));
    EXPECT_EQ(third.hears().frame.offset, 0u);
    third.bare.clear();
    EXPECT_EQ(alone.hears().frame.request, 22u);
    EXPECT_FALSE(alone.session->end().has_value());
    EXPECT_TRUE(memory.whole() && closed.whole());
}

// What asks for what it may not have is answered by a fault; nothing is written, and the session goes on.
TEST(HostileClient, IsRefusedWhatItMayNotHave) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(kib100, 1), secret(kib100, 2);
    Alone alone;
    const std::uint64_t writable = alone.session->grant(test::region_of(memory, false, true));
    const std::uint64_t readable = alone.session->grant(test::region_of(secret, true, false));
    const std::string some(1000, '!');
    struct Case {
        Frame frame;
        ErrorCode code;
    };
    const std::vector<Case> cases = {
        {{Frame::Kind::push, 1, writable, kib100 - 999, 1000}, ErrorCode::invalid_argument},
        {{Frame::Kind::push, 2, writable, kib100 + 1, 0}, ErrorCode::invalid_argument},
        {{Frame::Kind::push, 3, writable, most_bytes - 1000, 1000}, ErrorCode::invalid_argument},
        {{Frame::Kind::push, 4, readable, 0, 1000}, ErrorCode::permission_denied},
        {{Frame::Kind::push, 5, 77, 0, 1000}, ErrorCode::not_found},
        {{Frame::Kind::push, 6, most_bytes, 0, 1000}, ErrorCode::not_found},
        {{Frame::Kind::pull, 7, writable, 0, 10}, ErrorCode::permission_denied},
        {{Frame::Kind::pull, 8, readable, 1, kib100}, ErrorCode::invalid_argument},
        {{Frame::Kind::pull, 9, readable, most_bytes - 10, 10}, ErrorCode::invalid_argument},
        {{Frame::Kind::pull, 10, 0, 0, 10}, ErrorCode::not_found},
        {{Frame::Kind::pull, most_bytes, 77, 0, 10}, ErrorCode::not_found},
    };
    for (const auto& [frame, code] : cases) {
        ASSERT_TRUE(alone.says(said(frame, some.substr(0, frame.has_payload() ? frame.size : 0))));
        const Came came = alone.hears();
        EXPECT_EQ(came.frame.kind, Frame::Kind::fault) << frame.request;
        EXPECT_EQ(came.frame.request, frame.request);
        EXPECT_EQ(came.frame.offset, frame.size) << "as many bytes as were asked for";
        ASSERT_FALSE(came.payload.empty());
        EXPECT_EQ(static_cast<int>(came.payload[0]), static_cast<int>(code)) << frame.request;
    }
    EXPECT_TRUE(memory.text() == Guarded(kib100, 1).text());
    EXPECT_TRUE(memory.whole() && secret.whole());
    // Nothing at all may be asked for, and is answered.
    ASSERT_TRUE(alone.says(said({Frame::Kind::push, 20, writable, kib100, 0, 0, 0, 3})));
    EXPECT_EQ(alone.hears().frame, (Frame{Frame::Kind::confirm, 20, 0, 3, 0}));
    ASSERT_TRUE(alone.says(said({Frame::Kind::pull, 21, readable, kib100, 0, 0, 0, 4})));
    EXPECT_EQ(alone.hears().frame, (Frame{Frame::Kind::push, 21, 0, 4, 0}));
    ASSERT_TRUE(alone.says(said({Frame::Kind::push, 22, writable, 5, 10, 0, 0, 90}, "0123456789")));
    EXPECT_EQ(alone.hears().frame, (Frame{Frame::Kind::confirm, 22, 0, 90, 10}));
    EXPECT_EQ(memory.text().substr(5, 10), "0123456789");
    EXPECT_FALSE(alone.session->end().has_value());
}

// Takes large frames later, when it is told to, and small ones at once.
class SlowLink final : public backend::Link {
public:
    Result<void> add(int, const backend::SocketKeys&) override { return {}; }
    std::size_t sockets() const override { return 1; }
    void send(const Frame& frame, const void*, std::function<void()> sent) override {
        ++frames;
        if (frame.size == backend::max_push)
            waiting.push_back(std::move(sent));
        else if (sent)
            sent();
    }
    void look() override {}
    void resume(Resume) override {}
    void close(Error) override {}
    void end(Error) override {}

    std::size_t frames = 0;
    std::vector<std::function<void()>> waiting;
};

// Many small questions wait behind large ones. They are answered one after the other, not one within the other: the stack
// would end.
TEST(HostileClient, ManyQuestionsDoNotDeepenTheStack) {
    constexpr std::size_t small = 120'000;
    Guarded memory(backend::max_push);
    const auto link = std::make_shared<SlowLink>();
    const auto session = std::make_shared<Session>("node7");
    session->use(link);
    const std::uint64_t region = session->grant(test::region_of(memory));
    std::size_t asked = 0;
    for (; link->waiting.size() == asked && asked < 10'000; ++asked)
        ASSERT_TRUE(session->arrived({Frame::Kind::pull, 1, region, 0, backend::max_push}, {}).ok());
    ASSERT_LT(asked, 10'000u) << "what is on its way has no bound";
    for (std::size_t i = 0; i < small; ++i)
        ASSERT_TRUE(session->arrived({Frame::Kind::pull, 2, region, 0, 1}, {}).ok());
    EXPECT_EQ(link->frames, link->waiting.size()) << "the small ones have to wait";
    while (!link->waiting.empty()) {
        const auto sent = std::move(link->waiting.back());
        link->waiting.pop_back();
        sent();
    }
    EXPECT_EQ(link->frames, asked + small);
}

TEST(HostileClient, ThatAsksForTooMuchIsHungUpOn) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(backend::max_push);
    Alone alone;
    const std::uint64_t region = alone.session->grant(test::region_of(memory));
    std::string questions;
    for (int i = 0; i < 1000; ++i) questions += said({Frame::Kind::pull, 1, region, 0, backend::max_push});
    int asked = 0;
    for (; asked < 1000 && !alone.session->end(); ++asked) {
        if (!alone.says(questions)) break;
    }
    EXPECT_LT(asked, 1000) << "what it may ask for has no bound";
    ASSERT_TRUE(alone.has_ended());
    EXPECT_EQ(alone.session->end()->code, ErrorCode::io_error);
}

}  // namespace
}  // namespace sidestep::wire
