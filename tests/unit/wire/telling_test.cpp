// What a node tells of itself: texts in parts, facts by name.
#include <gtest/gtest.h>

#include "tests/contents.hpp"
#include "wire/messages.hpp"
#include "wire/telling.hpp"

namespace sidestep::wire {
namespace {

// A node that tells one text, asked over messages.
class Node {
public:
    explicit Node(std::string text) : text_(std::move(text)) {}

    Result<std::string> ask(const std::string& body) {
        ++questions;
        auto answer = telling_.answer([this](Subject, int) { return Result<std::string>(text_); }, body, -1);
        if (answer) longest = std::max(longest, to_message({Word::answer, 1, to_answer(answer)}).size());
        return answer;
    }
    Result<std::string> all() {
        return ask_for(Subject::topology, [this](const std::string& body) { return ask(body); });
    }
    void change(std::string text) { text_ = std::move(text); }

    int questions = 0;
    std::size_t longest = 0;

private:
    std::string text_;
    Telling telling_;
};

TEST(Telling, ATextOfAnySizeComesWhole) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, telling_part - 1,
                                   std::size_t{telling_part}, telling_part + 1, 5 * telling_part + 17}) {
        const std::string text = test::text_of(size, 3);
        Node node(text);
        const auto came = node.all();
        ASSERT_TRUE(came) << came.error().to_string();
        EXPECT_TRUE(*came == text) << size;
        EXPECT_EQ(node.questions,
                  std::max<int>(1, static_cast<int>((size + telling_part - 1) / telling_part)));
        EXPECT_LE(node.longest, longest_message);
    }
}

TEST(Telling, ATextStaysAsItWasWhenItsFirstPartWasTold) {
    const std::string text = test::text_of(3 * telling_part, 4);
    Node node(text);
    std::string came;
    while (came.size() < text.size()) {
        const auto answer = node.ask(to_body(TellRequest{Subject::topology, came.size()}));
        ASSERT_TRUE(answer) << answer.error().to_string();
        came += parse_told(*answer)->part;
        node.change("another text");
    }
    EXPECT_TRUE(came == text);
}

// Two threads of one client ask, and one is through before the other.
TEST(Telling, TwoWhoAskDoNotDisturbEachOther) {
    const std::string text = test::text_of(3 * telling_part, 5);
    Node node(text);
    std::string came = parse_told(*node.ask(to_body(TellRequest{})))->part;
    EXPECT_TRUE(*node.all() == text);
    while (came.size() < text.size()) {
        const auto answer = node.ask(to_body(TellRequest{Subject::topology, came.size()}));
        ASSERT_TRUE(answer) << answer.error().to_string();
        came += parse_told(*answer)->part;
    }
    EXPECT_TRUE(came == text);
}

TEST(Telling, WhatIsTooLongIsRefusedByBothEnds) {
    Node node(std::string(longest_telling + 1, 'x'));
    EXPECT_EQ(node.ask(to_body(TellRequest{})).error().code, ErrorCode::unsupported);
    const auto far = ask_for(Subject::topology, [](const std::string&) {
        return Result<std::string>(to_body(Told{longest_telling + 1, "x"}));
    });
    EXPECT_EQ(far.error().code, ErrorCode::unsupported);
}

TEST(Telling, PartsThatAreNotThereAreRefused) {
    Node node("abc");
    EXPECT_EQ(node.ask(to_body(TellRequest{Subject::topology, 4})).error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(node.all());
    for (const std::string& body : {std::string(), std::string("\0\0\0\0\0\0\0\0\0", 9),
                                    std::string("\4\0\0\0\0\0\0\0\0", 9), std::string(10, '\1')})
        EXPECT_EQ(node.ask(body).error().code, ErrorCode::io_error);
    Telling silent;
    EXPECT_EQ(silent.answer(nullptr, to_body(TellRequest{}), -1).error().code, ErrorCode::unsupported);
}

// Each would have the asker go on for ever, or take in more than it was told of.
TEST(Telling, AnswersThatMakeNoSenseEndTheQuestion) {
    const auto ask = [](std::vector<Told> answers) {
        std::size_t next = 0;
        return ask_for(Subject::facts, [&](const std::string&) -> Result<std::string> {
            if (next == answers.size()) return Error{ErrorCode::internal, "asked once too often", "test", {}};
            return to_body(answers[next++]);
        });
    };
    EXPECT_EQ(ask({{3, ""}}).error().code, ErrorCode::io_error);
    EXPECT_EQ(ask({{3, "ab"}, {3, ""}}).error().code, ErrorCode::io_error);
    EXPECT_EQ(ask({{3, "abcd"}}).error().code, ErrorCode::io_error);
    EXPECT_EQ(ask({{3, "ab"}, {4, "cd"}}).error().code, ErrorCode::io_error);
    EXPECT_EQ(*ask({{3, "ab"}, {3, "c"}}), "abc");
    EXPECT_EQ(parse_told("").error().code, ErrorCode::io_error);
}

TEST(Facts, ComeBackByName) {
    const Facts facts{{"kernel", "Linux 6.12"}, {"engine.verbs", "a=b"}, {"empty", ""}};
    EXPECT_EQ(parse_facts(to_text(facts)), facts);
    EXPECT_EQ(parse_facts("no sign\n\nkernel=1"), (Facts{{"kernel", "1"}}));
}

TEST(Facts, HoldNothingThatATerminalObeys) {
    const Facts told = parse_facts("na\x1bme=\x1b]0;title\x07\nb=caf\xc3\xa9\n");
    EXPECT_EQ(told, (Facts{{"na?me", "?]0;title?"}, {"b", "caf??"}}));
    // A value cannot add a line.
    EXPECT_EQ(parse_facts(to_text({{"a", "1\nkernel=x"}})), (Facts{{"a", "1?kernel=x"}}));
}

}  // namespace
}  // namespace sidestep::wire
