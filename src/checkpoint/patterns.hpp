// Names by patterns: '*' any characters, '?' one, "[a-c]" one of a set, "[!a-c]" one that is not, and '\' before
// any of these for the character itself. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::checkpoint {

// One pattern. Compares in time proportional to the lengths of name and pattern multiplied, whatever they
// are.
class Pattern {
public:
    // ErrorCode::invalid_argument for an empty pattern, a set that is empty or has no end, a range that runs
    // backwards, a backslash at the end, and text that is no UTF-8.
    static Result<Pattern> parse(std::string_view text);

    bool fits(std::string_view name) const;
    // Whether it fits one name only: no '*', no '?' and no set.
    bool is_name() const { return is_name_; }

private:
    struct Piece {
        bool any_length = false;  // '*'
        bool negated = false;
        // First and last character of each range; empty: any character.
        std::vector<std::pair<char32_t, char32_t>> ranges;
    };
    static const char* parse_set(std::u32string_view text, std::size_t& at, Piece& piece);
    static bool fits(const Piece& piece, char32_t character);
    std::vector<Piece> pieces_;
    bool is_name_ = true;
};

// Several: a name is in that fits one of them and none of those that start with '!'. Where all start with
// '!', every name that fits none of them is in. A name that begins with '!' is written "\!...".
class Patterns {
public:
    static Result<Patterns> parse(const std::vector<std::string>& texts);

    // Remembers which patterns fitted.
    bool fits(std::string_view name);

    // Patterns that fitted no name so far: whole names that were asked for,
    std::vector<std::string> names_without_use() const;
    // and the rest: those with wildcards, and those that take names out.
    std::vector<std::string> others_without_use() const;

private:
    struct One {
        std::string text;
        Pattern pattern;
        bool out = false;
        bool used = false;
    };
    std::vector<One> list_;
    bool all_in_ = true;  // there are only patterns that take names out
};

}  // namespace sidestep::checkpoint
