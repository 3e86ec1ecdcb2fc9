// Names by patterns, and files of rules.
#include "checkpoint/patterns.hpp"

#include <gtest/gtest.h>
#include <sidestep/load.hpp>

#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep::checkpoint {
namespace {

struct Case {
    const char* pattern;
    const char* name;
    bool fits;
};

TEST(Pattern, Fits) {
    const Case cases[] = {
        {"a", "a", true},
        {"a", "b", false},
        {"a", "", false},
        {"a", "aa", false},
        {"*", "", true},
        {"*", "anything.at.all", true},
        {"a*", "a", true},
        {"a*", "abc", true},
        {"a*", "ba", false},
        {"*.weight", "model.norm.weight", true},
        {"*.weight", "model.norm.weight2", false},
        {"model.*.mlp.*", "model.layers.0.mlp.up.weight", true},
        {"model.*.mlp.*", "model.layers.0.attn.up.weight", false},
        {"**a**", "bab", true},
        {"*a*b*c", "xaxbxbxc", true},
        {"*a*b*c", "xaxbxbxcx", false},
        {"*ab", "aab", true},
        {"layers.?", "layers.1", true},
        {"layers.?", "layers.12", false},
        {"layers.?", "layers.", false},
        {"[a-c]", "b", true},
        {"[a-c]", "d", false},
        {"[abx-z]9", "y9", true},
        {"[!a-c]", "d", true},
        {"[!a-c]", "b", false},
        {"[!a]", "", false},
        {"layers.[0-9].*", "layers.7.w", true},
        {"layers.[0-9].*", "layers.17.w", false},
        {"[]]", "]", true},
        {"[a-]", "-", true},
        {"[*?]", "*", true},
        {"[*?]", "a", false},
        {"[[]x", "[x", true},
        {"?", "\xE2\x82\xAC", true},
        {"[\xE2\x82\xA0-\xE2\x83\x80]", "\xE2\x82\xAC", true},
        {"\xE2\x82\xAC", "\xE2\x82\xAC", true},
        {"?", "\xE2\x82", false},
        {"A", "a", false},
        {R"(\*)", "*", true},
        {R"(\*)", "a", false},
        {R"(a\[0\]\?)", "a[0]?", true},
        {R"(\!a)", "!a", true},
        {R"(\\*)", R"(\a)", true},
        {R"(\a)", "a", true},
        {R"([\]a]b)", "]b", true},
        {R"([a\]]b)", "]b", true},
        {R"([\!a])", "!", true},
        {R"([\\-\]])", "\\", true},
        {R"([a\-c])", "b", false},
    };
    for (const Case& one : cases) {
        SCOPED_TRACE(std::string(one.pattern) + " of " + one.name);
        const auto pattern = Pattern::parse(one.pattern);
        ASSERT_TRUE(pattern.ok()) << pattern.error().message;
        EXPECT_EQ(pattern->fits(one.name), one.fits);
    }
}

TEST(Pattern, BrokenOnesAreRefused) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "is empty"},
        {"[", "without its ']'"},
        {"[]", "without its ']'"},
        {"a[bc", "without its ']'"},
        {"[!]", "without its ']'"},
        {"[c-a]", "backwards"},
        {"\xff", "no UTF-8"},
        {R"(a\)", "backslash"},
        {R"([\])", "without its ']'"},
    };
    for (const auto& [text, words] : cases) {
        SCOPED_TRACE(text);
        const auto pattern = Pattern::parse(text);
        ASSERT_FALSE(pattern.ok());
        EXPECT_EQ(pattern.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(pattern.error().message.find(words), std::string::npos) << pattern.error().message;
    }
}

TEST(Pattern, ManyStarsTakeNoTime) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "*a";
    const auto pattern = Pattern::parse(text + "b");
    ASSERT_TRUE(pattern.ok());
    // 2^50 steps for one who tries every way.
    EXPECT_FALSE(pattern->fits(std::string(10'000, 'a')));
    EXPECT_TRUE(pattern->fits(std::string(10'000, 'a') + "b"));
}

TEST(Patterns, TakeInAndOut) {
    const auto fits = [](const std::vector<std::string>& texts, const char* name) {
        auto patterns = Patterns::parse(texts);
        return patterns.ok() && patterns->fits(name);
    };
    EXPECT_TRUE(fits({"a*", "b*"}, "bx"));
    EXPECT_FALSE(fits({"a*", "b*"}, "cx"));
    EXPECT_FALSE(fits({"a*", "!*x"}, "ax"));
    EXPECT_FALSE(fits({"!*x", "a*"}, "ax")) << "wherever it stands";
    EXPECT_TRUE(fits({"!*x"}, "a")) << "out of all names";
    EXPECT_FALSE(fits({"!*x"}, "ax"));
    EXPECT_TRUE(fits({R"(\!x)"}, "!x"));
    EXPECT_FALSE(fits({R"(\!x)"}, "a"));
    EXPECT_FALSE(fits({R"(!\!x)"}, "!x"));
    EXPECT_FALSE(Patterns::parse({}).ok());
    EXPECT_FALSE(Patterns::parse({"a", "!"}).ok());
}

TEST(Patterns, KnowWhichFittedNothing) {
    using Texts = std::vector<std::string>;
    auto patterns = Patterns::parse({"a", "b*", "typo", R"(esc\*)", "c?", "[d]", "!e", "!f*", "a*"});
    ASSERT_TRUE(patterns.ok());
    EXPECT_TRUE(patterns->fits("a"));
    EXPECT_TRUE(patterns->fits("bx"));
    EXPECT_FALSE(patterns->fits("fx"));
    EXPECT_TRUE(patterns->fits("aa"));
    EXPECT_FALSE(patterns->fits("escx"));
    EXPECT_EQ(patterns->names_without_use(), (Texts{"typo", R"(esc\*)"}));
    EXPECT_EQ(patterns->others_without_use(), (Texts{"c?", "[d]", "!e"}));
}

TEST(ShardRules, AreRead) {
    const Folder folder;
    const auto rules = read_shard_rules(folder.write(
        "r.json", R"({"rules": [{"pattern": "*.weight", "axis": 0}, {"axis": -1, "pattern": "b?"}]})"));
    ASSERT_TRUE(rules.ok()) << rules.error().to_string();
    ASSERT_EQ(rules->size(), 2U);
    EXPECT_EQ((*rules)[0].pattern, "*.weight");
    EXPECT_EQ((*rules)[0].axis, 0);
    EXPECT_EQ((*rules)[1].pattern, "b?");
    EXPECT_EQ((*rules)[1].axis, -1);
    EXPECT_TRUE(read_shard_rules(folder.write("none.json", R"({"rules": []})"))->empty());
}

TEST(ShardRules, ErrorsNameTheRule) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "no JSON"},
        {"[]", "holds a list"},
        {"1", "holds no object"},
        {"{}", "no member rules"},
        {R"({"rule": []})", "a member \"rule\""},
        {R"({"rules": {}})", "rules is not a list"},
        {R"({"rules": 1})", "rules is not a list"},
        {R"({"rules": [], "rules": []})", "two members rules"},
        {R"({"rules": [1]})", "rule 1 is not an object"},
        {R"({"rules": [[]]})", "rule 1 is not an object"},
        {R"({"rules": [{"pattern": "a", "axis": 0}, {"axis": 0}]})", "rule 2 has no pattern"},
        {R"({"rules": [{"pattern": "a"}]})", "rule 1 has no axis"},
        {R"({"rules": [{"pattern": "a", "axis": 0, "dim": 1}]})", "rule 1 has a member \"dim\""},
        {R"({"rules": [{"pattern": "a", "axis": 0, "axis": 1}]})", "rule 1 has two members axis"},
        {R"({"rules": [{"pattern": "a", "axis": "0"}]})", "rule 1 has an invalid axis"},
        {R"({"rules": [{"pattern": "a", "axis": 0.5}]})", "rule 1 has an invalid axis"},
        {R"({"rules": [{"pattern": "a", "axis": 99999999999999999999}]})", "rule 1 has an invalid axis"},
        {R"({"rules": [{"pattern": "a", "axis": -5000}]})", "rule 1 has an invalid axis"},
        {R"({"rules": [{"pattern": "a", "axis": []}]})", "rule 1 axis is not a plain value"},
        {R"({"rules": [{"pattern": 1, "axis": 0}]})", "rule 1 has a pattern that is not a string"},
        {R"({"rules": [{"pattern": "[", "axis": 0}]})", "rule 1 is broken"},
        {R"({"rules": [{"pattern": "!a", "axis": 0}]})", "rule 1 takes names out"},
    };
    const Folder folder;
    for (const auto& [text, words] : cases) {
        SCOPED_TRACE(text);
        const std::string path = folder.write("r.json", text);
        const auto rules = read_shard_rules(path);
        ASSERT_FALSE(rules.ok());
        EXPECT_EQ(rules.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(rules.error().message.find(words), std::string::npos) << rules.error().to_string();
        EXPECT_TRUE(rules.error().where.starts_with(path)) << rules.error().where;
    }
    EXPECT_EQ(read_shard_rules(folder / "absent").error().code, ErrorCode::not_found);
    EXPECT_EQ(read_shard_rules(folder.path()).error().code, ErrorCode::invalid_argument);
    const auto large = read_shard_rules(folder.write("large.json", std::string(2'000'000, ' ')));
    EXPECT_NE(large.error().message.find("at most 1 MiB"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::checkpoint
