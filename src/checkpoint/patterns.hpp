// Names by patterns: '*' any characters, '?' one, "[a-c]" one of a set, "[!a-c]" one that is not. Pure.
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
    // backwards, and text that is no UTF-8.
    static Result<Pattern> parse(std::string_view text);

    bool fits(std::string_view name) const;

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
};

// Several: a name is in that fits one of them and none of those that start with '!'. Where all start with
// '!', every name that fits none of them is in.
class Patterns {
public:
    static Result<Patterns> parse(const std::vector<std::string>& texts);

    bool fits(std::string_view name) const;

private:
    std::vector<Pattern> in_;
    std::vector<Pattern> out_;
};

}  // namespace sidestep::checkpoint
