#include "checkpoint/patterns.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "base/utf8.hpp"
#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

Error broken(std::string_view text, const char* why) {
    return Error{ErrorCode::invalid_argument, fmt::format("the pattern {} {}", shown(text), why), {}, {}};
}

// The characters of UTF-8 text; a byte that belongs to none stands for itself, beyond all characters.
std::u32string characters(std::string_view text) {
    std::u32string found;
    found.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const auto first = static_cast<unsigned char>(text[at]);
        const std::size_t bytes = base::utf8_bytes(text.substr(at));
        if (bytes == 0) {
            found += static_cast<char32_t>(0x110000 + first);
            at += 1;
            continue;
        }
        char32_t character = bytes == 1 ? first : first & (0x7Fu >> bytes);
        for (std::size_t i = 1; i < bytes; ++i)
            character = character << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
        found += character;
        at += bytes;
    }
    return found;
}

}  // namespace

// What stands between '[' before `at` and its ']'; moves `at` behind that. Answers with what is wrong, or
// null.
const char* Pattern::parse_set(std::u32string_view text, std::size_t& at, Piece& piece) {
    piece.negated = at < text.size() && text[at] == U'!';
    if (piece.negated) ++at;
    // One member, with the backslash before it where there is one.
    const auto member = [&] {
        if (text[at] == U'\\' && at + 1 < text.size()) ++at;
        return text[at++];
    };
    const std::size_t begin = at;
    while (at < text.size()) {
        // A ']' right at the beginning is a member, as in the shell's patterns.
        if (text[at] == U']' && at > begin) return ++at, nullptr;
        const char32_t first = member();
        char32_t last = first;
        if (at + 1 < text.size() && text[at] == U'-' && text[at + 1] != U']') {
            ++at;
            last = member();
        }
        if (last < first) return "has a range that runs backwards";
        piece.ranges.emplace_back(first, last);
    }
    return "has a '[' without its ']'";
}

Result<Pattern> Pattern::parse(std::string_view text) {
    if (text.empty()) return broken(text, "is empty");
    if (first_bad_utf8(text)) return broken(text, "is no UTF-8");
    const std::u32string all = characters(text);
    Pattern pattern;
    for (std::size_t at = 0; at < all.size();) {
        Piece piece;
        const char32_t character = all[at++];
        pattern.is_name_ &= character != U'[' && character != U'*' && character != U'?';
        if (character == U'[') {
            if (const char* why = parse_set(all, at, piece); why != nullptr) return broken(text, why);
        } else if (character == U'\\') {
            if (at == all.size()) return broken(text, "ends with a backslash, behind which nothing stands");
            piece.ranges.emplace_back(all[at], all[at]);
            ++at;
        } else if (character == U'*') {
            piece.any_length = true;
        } else if (character != U'?') {
            piece.ranges.emplace_back(character, character);
        }
        const bool again = piece.any_length && !pattern.pieces_.empty() && pattern.pieces_.back().any_length;
        if (!again) pattern.pieces_.push_back(std::move(piece));
    }
    return pattern;
}

bool Pattern::fits(const Piece& piece, char32_t character) {
    if (piece.ranges.empty()) return true;
    const bool in = std::any_of(piece.ranges.begin(), piece.ranges.end(), [character](const auto& range) {
        return range.first <= character && character <= range.second;
    });
    return in != piece.negated;
}

// Only the last '*' that was passed ever takes more: what fits before it fits for good.
bool Pattern::fits(std::string_view name) const {
    const std::u32string text = characters(name);
    std::size_t at = 0;
    std::size_t piece = 0;
    std::size_t star = pieces_.size();
    std::size_t star_at = 0;
    while (at < text.size()) {
        if (piece < pieces_.size() && pieces_[piece].any_length) {
            star = piece++;
            star_at = at;
        } else if (piece < pieces_.size() && fits(pieces_[piece], text[at])) {
            ++piece;
            ++at;
        } else if (star < pieces_.size()) {
            piece = star + 1;
            at = ++star_at;
        } else {
            return false;
        }
    }
    while (piece < pieces_.size() && pieces_[piece].any_length) ++piece;
    return piece == pieces_.size();
}

Result<Patterns> Patterns::parse(const std::vector<std::string>& texts) {
    Patterns patterns;
    if (texts.empty())
        return Error{ErrorCode::invalid_argument, "there is no pattern to pick tensors by", {}, {}};
    for (const std::string& text : texts) {
        const bool out = text.starts_with('!');
        SIDESTEP_TRY(Pattern pattern, Pattern::parse(std::string_view(text).substr(out ? 1 : 0)));
        patterns.all_in_ &= out;
        patterns.list_.push_back({text, std::move(pattern), out, false});
    }
    return patterns;
}

bool Patterns::fits(std::string_view name) {
    bool in = all_in_;
    bool out = false;
    for (One& one : list_) {
        // One that has fitted before is only asked where its answer matters.
        if (one.used && (out || (in && !one.out))) continue;
        if (!one.pattern.fits(name)) continue;
        one.used = true;
        (one.out ? out : in) = true;
    }
    return in && !out;
}

std::vector<std::string> Patterns::names_without_use() const {
    std::vector<std::string> names;
    for (const One& one : list_)
        if (!one.used && !one.out && one.pattern.is_name()) names.push_back(one.text);
    return names;
}

std::vector<std::string> Patterns::others_without_use() const {
    std::vector<std::string> texts;
    for (const One& one : list_)
        if (!one.used && (one.out || !one.pattern.is_name())) texts.push_back(one.text);
    return texts;
}

}  // namespace sidestep::checkpoint
