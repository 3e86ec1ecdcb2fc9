// The files of rules by which tensors are cut: {"rules": [{"pattern": "*.weight", "axis": 0}, ...]}.
#include <charconv>

#include <fmt/format.h>

#include <sidestep/load.hpp>

#include "base/try.hpp"
#include "checkpoint/files_reader.hpp"
#include "checkpoint/json_events.hpp"
#include "checkpoint/names.hpp"
#include "checkpoint/patterns.hpp"

namespace sidestep {
namespace {

using checkpoint::JsonScalar;

constexpr Bytes largest_file = Bytes{1} << 20;
// More than any tensor has.
constexpr int max_axes = 1000;

class RulesReader : public checkpoint::JsonReader {
public:
    std::vector<ShardRule> rules;
    bool had_rules = false;

    bool key(std::string& name) override {
        if (depth() == 1) {
            if (name != "rules")
                return fail(fmt::format("has a member {}, which no such file has", checkpoint::shown(name)));
            return !std::exchange(had_rules, true) || fail("has two members rules");
        }
        member_ = std::move(name);
        if (member_ != "pattern" && member_ != "axis")
            return fail_rule(
                fmt::format("has a member {}; pattern and axis are known", checkpoint::shown(member_)));
        bool& had = member_ == "axis" ? had_axis_ : had_pattern_;
        return !std::exchange(had, true) || fail_rule(fmt::format("has two members {}", member_));
    }

    bool begin(bool object) override {
        if (depth() == 0) return object || fail("holds a list, where an object is expected");
        if (depth() == 1) return !object || fail("rules is not a list");
        if (depth() > 2 || !object)
            return fail_rule(depth() > 2 ? member_ + " is not a plain value" : "is not an object");
        rule_ = {};
        had_pattern_ = had_axis_ = false;
        return true;
    }

    bool end() override {
        if (depth() != 2) return true;
        if (!had_pattern_ || !had_axis_) return fail_rule(had_axis_ ? "has no pattern" : "has no axis");
        rules.push_back(std::move(rule_));
        return true;
    }

    bool scalar(JsonScalar& value) override {
        if (depth() == 0) return fail("holds no object");
        if (depth() == 1) return fail("rules is not a list");
        if (depth() == 2) return fail_rule("is not an object");
        return member_ == "axis" ? axis(value) : pattern(value);
    }

private:
    bool axis(const JsonScalar& value) {
        int number = max_axes;
        if (value.kind == JsonScalar::Kind::natural && value.natural < max_axes)
            number = static_cast<int>(value.natural);
        if (value.kind == JsonScalar::Kind::number) {
            const char* end = value.text.data() + value.text.size();
            const auto read = std::from_chars(value.text.data(), end, number);
            if (read.ec != std::errc() || read.ptr != end) number = max_axes;
        }
        if (number <= -max_axes || number >= max_axes) return fail_rule("has an invalid axis");
        rule_.axis = number;
        return true;
    }

    bool pattern(JsonScalar& value) {
        if (value.kind != JsonScalar::Kind::text) return fail_rule("has a pattern that is not a string");
        if (value.text.starts_with('!'))
            return fail_rule("takes names out with '!', which only a choice of tensors can");
        const auto parsed = checkpoint::Pattern::parse(value.text);
        if (!parsed) return fail_rule(fmt::format("is broken: {}", parsed.error().message));
        rule_.pattern = std::move(value.text);
        return true;
    }

    bool fail_rule(const std::string& message) {
        return fail(fmt::format("rule {} {}", rules.size() + 1, message));
    }

    ShardRule rule_;
    std::string member_;
    bool had_pattern_ = false;
    bool had_axis_ = false;
};

}  // namespace

Result<std::vector<ShardRule>> read_shard_rules(const std::string& path) {
    SIDESTEP_TRY(const std::string text, checkpoint::read_whole(path, largest_file, "a file of rules"));
    RulesReader reader;
    SIDESTEP_CHECK(checkpoint::read_json(text, reader, "the rules", path));
    if (!reader.had_rules) {
        return Error{ErrorCode::invalid_argument, "the rules: there is no member rules", path,
                     R"(write {"rules": [{"pattern": "*.weight", "axis": 0}]})"};
    }
    return std::move(reader.rules);
}

}  // namespace sidestep
