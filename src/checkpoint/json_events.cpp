#include "checkpoint/json_events.hpp"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/exception_words.hpp"
#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {

// JSON after RFC 8259, as strict as serde_json. Our own, since headers may have 100 MB: nlohmann's parser hands each byte
// through three buffers, and took 0.9 s for them, this one 0.1 s.
class JsonEvents {
public:
    JsonEvents(std::string_view text, JsonReader& reader) : text_(text), reader_(reader) {}

    // False with failure().
    bool parse() {
        if (!value()) return false;
        while (reader_.depth_ > 0)
            if (!member()) return false;
        skip_space();
        return at_ == text_.size() || bad("text behind the value");
    }
    std::size_t at() const { return at_; }
    const std::optional<Error>& failure() const { return reader_.failure_; }

private:
    bool bad(const char* what) { return reader_.fail(fmt::format("no JSON: {}", what)); }

    char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    bool take(char c) { return next() == c && (++at_, true); }
    void skip_space() {
        while (next() == ' ' || next() == '\n' || next() == '\r' || next() == '\t') ++at_;
    }
    bool take_word(std::string_view word) {
        if (!text_.substr(at_).starts_with(word)) return bad("a word that is no value");
        at_ += word.size();
        return true;
    }

    // What comes next in the innermost list or object: another member, or its end.
    bool member() {
        const bool object = is_object_.back();
        skip_space();
        if (take(object ? '}' : ']')) return close();
        if (!std::exchange(is_empty_, false) && !take(','))
            return bad("a comma, or the end of what is open, is missing");
        if (!object) return value();
        skip_space();
        if (next() != '"') return bad("the name of a member is missing");
        if (!string(scalar_.text) || !reader_.key(scalar_.text)) return false;
        skip_space();
        return take(':') ? value() : bad("the colon behind the name of a member is missing");
    }

    bool value() {
        skip_space();
        switch (next()) {
            case '{':
            case '[':
                return open(text_[at_++] == '{');
            case '"':
                scalar_ = {JsonScalar::Kind::text, 0, {}};
                return string(scalar_.text) && reader_.scalar(scalar_);
            case 't':
                return take_word("true") && tell(JsonScalar::Kind::boolean, "true");
            case 'f':
                return take_word("false") && tell(JsonScalar::Kind::boolean, "false");
            case 'n':
                return take_word("null") && tell(JsonScalar::Kind::null, {});
            default:
                return number();
        }
    }

    bool tell(JsonScalar::Kind kind, std::string_view text) {
        scalar_ = {kind, 0, std::string(text)};
        return reader_.scalar(scalar_);
    }

    bool open(bool object) {
        if (reader_.depth_ >= deepest_json)
            return reader_.fail(fmt::format("more than {} lists and objects in one another", deepest_json));
        if (!reader_.begin(object)) return false;
        ++reader_.depth_;
        is_object_.push_back(object);
        return is_empty_ = true;
    }

    bool close() {
        --reader_.depth_;
        is_object_.pop_back();
        is_empty_ = false;
        return reader_.end();
    }

    std::size_t digits() {
        const std::size_t begin = at_;
        while (next() >= '0' && next() <= '9') ++at_;
        return at_ - begin;
    }

    bool number() {
        const std::size_t begin = at_;
        bool natural = !take('-');
        const bool zero = next() == '0';
        const std::size_t whole = digits();
        if (whole == 0) return bad(at_ == text_.size() ? "the text ends within a value" : "no value");
        if (zero && whole > 1) return bad("a number with a zero in front");
        if (take('.')) {
            natural = false;
            if (digits() == 0) return bad("a number without digits behind its point");
        }
        if (take('e') || take('E')) {
            natural = false;
            if (!take('+')) take('-');
            if (digits() == 0) return bad("a number without digits of its exponent");
        }
        const std::string_view words = text_.substr(begin, at_ - begin);
        scalar_ = {JsonScalar::Kind::natural, 0, {}};
        const char* const end = words.data() + words.size();
        if (natural && std::from_chars(words.data(), end, scalar_.natural).ec == std::errc())
            return reader_.scalar(scalar_);
        double value = 0;
        // What is too small for one is 0.
        if (std::from_chars(words.data(), end, value).ec != std::errc() &&
            std::isinf(std::strtod(std::string(words).c_str(), nullptr)))
            return bad("a number beyond a double");
        return tell(JsonScalar::Kind::number, words);
    }

    bool string(std::string& text) {
        text.clear();
        ++at_;
        for (;;) {
            const std::size_t plain = at_;
            while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
            text.append(text_, plain, at_ - plain);
            if (at_ == text_.size()) return bad("the text ends within a string");
            if (take('"')) return true;
            if (!take('\\')) return bad("a control character in a string");
            if (!escape(text)) return false;
        }
    }

    static bool is_plain(char c) { return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20; }

    bool escape(std::string& text) {
        constexpr std::string_view letters = "\"\\/bfnrt";
        constexpr std::string_view meant = "\"\\/\b\f\n\r\t";
        if (const auto found = letters.find(next()); at_ < text_.size() && found != std::string_view::npos) {
            ++at_;
            text += meant[found];
            return true;
        }
        std::uint32_t point = 0, low = 0;
        if (!unit(point)) return false;
        if (point >= 0xDC00 && point < 0xE000) return bad("half a surrogate pair");
        if (point >= 0xD800 && point < 0xDC00) {
            if (!take('\\') || !unit(low) || low < 0xDC00 || low >= 0xE000)
                return bad("half a surrogate pair");
            point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(text, point);
        return true;
    }

    // "u" and four hexadecimal digits.
    bool unit(std::uint32_t& point) {
        if (!take('u') || text_.size() - at_ < 4) return bad("an escape that means nothing");
        const char* const end = text_.data() + at_ + 4;
        if (std::from_chars(text_.data() + at_, end, point, 16).ptr != end)
            return bad("an escape that means nothing");
        at_ += 4;
        return true;
    }

    static void append_utf8(std::string& text, std::uint32_t point) {
        const auto add = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
        if (point < 0x80) return add(point);
        if (point < 0x800) {
            add(0xC0 | point >> 6);
        } else {
            if (point < 0x10000) {
                add(0xE0 | point >> 12);
            } else {
                add(0xF0 | point >> 18);
                add(0x80 | (point >> 12 & 0x3F));
            }
            add(0x80 | (point >> 6 & 0x3F));
        }
        add(0x80 | (point & 0x3F));
    }

    const std::string_view text_;
    JsonReader& reader_;
    std::size_t at_ = 0;
    JsonScalar scalar_;
    std::vector<bool> is_object_;  // what is open, outermost first
    bool is_empty_ = false;        // the innermost has no member yet
};

namespace {

Error wrong(const std::string& what, const std::string& message, const std::string& file, Bytes byte,
            std::string hint = {}) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}: {}", what, message),
                 fmt::format("{}: byte {}", file, byte), std::move(hint)};
}

}  // namespace

Result<void> read_json(std::string_view text, JsonReader& reader, const std::string& what,
                       const std::string& file, Bytes offset) {
    if (const auto bad = first_bad_utf8(text)) return wrong(what, "no UTF-8", file, offset + *bad);
    if (text.starts_with("\xEF\xBB\xBF")) return wrong(what, "no JSON: a byte order mark", file, offset);
    if (const auto zero = text.find('\0'); zero != std::string_view::npos)
        return wrong(what, "no JSON: a zero byte", file, offset + zero);
    try {
        JsonEvents events(text, reader);
        if (events.parse()) return {};
        const auto& failure = events.failure();
        if (!failure) return Error{ErrorCode::internal, fmt::format("{} cannot be read", what), file, {}};
        return wrong(what, failure->message, file, offset + events.at(), failure->hint);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, fmt::format("there is no memory to read {}", what), file, {}};
    } catch (const std::exception& error) {
        return Error{
            ErrorCode::internal, fmt::format("{} cannot be read: {}", what, base::words_of(error)), file, {}};
    }
}

}  // namespace sidestep::checkpoint
