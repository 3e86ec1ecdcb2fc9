#include "checkpoint/json_events.hpp"

#include <iterator>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

// Walks over text and keeps for others how far it has come.
class Cursor {
public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    Cursor(const char* at, const char** seen) : at_(at), seen_(seen) {}
    reference operator*() const { return *at_; }
    pointer operator->() const { return at_; }
    Cursor& operator++() {
        *seen_ = ++at_;
        return *this;
    }
    Cursor operator++(int) {
        Cursor before = *this;
        ++*this;
        return before;
    }
    bool operator==(const Cursor& other) const { return at_ == other.at_; }
    bool operator!=(const Cursor& other) const { return at_ != other.at_; }

private:
    const char* at_;
    const char** seen_;
};

// The JSON library's own words, without its numbers and without the text it last read, which may be long.
std::string words_of(const std::exception& error) {
    std::string words = error.what();
    if (const auto at = words.find("] "); words.starts_with('[') && at != std::string::npos)
        words.erase(0, at + 2);
    if (const auto at = words.find(": syntax error"); at != std::string::npos) words.erase(0, at + 2);
    if (const auto at = words.find("; last read"); at != std::string::npos) {
        const auto rest = words.rfind("'; expected");
        words = rest != std::string::npos && rest > at ? words.substr(0, at) + words.substr(rest + 1)
                                                       : words.substr(0, at);
    }
    constexpr std::size_t max = 200;
    if (words.size() > max) words.resize(max);
    return words;
}

}  // namespace

// The shape nlohmann's parser wants its listener to have.
class JsonEvents {
public:
    using number_integer_t = nlohmann::json::number_integer_t;
    using number_unsigned_t = nlohmann::json::number_unsigned_t;
    using number_float_t = nlohmann::json::number_float_t;
    using string_t = nlohmann::json::string_t;
    using binary_t = nlohmann::json::binary_t;

    explicit JsonEvents(JsonReader& reader) : reader_(reader) {}

    bool null() { return tell(JsonScalar::Kind::null, {}); }
    bool boolean(bool value) { return tell(JsonScalar::Kind::boolean, value ? "true" : "false"); }
    // Only numbers with a minus come here, -0 too, which serde_json takes for a fraction.
    bool number_integer(number_integer_t value) {
        return tell(JsonScalar::Kind::number, value == 0 ? std::string("-0") : std::to_string(value));
    }
    bool number_unsigned(number_unsigned_t value) {
        scalar_ = {JsonScalar::Kind::natural, value, {}};
        return reader_.scalar(scalar_);
    }
    bool number_float(number_float_t, const string_t& text) { return tell(JsonScalar::Kind::number, text); }
    bool string(string_t& text) { return tell(JsonScalar::Kind::text, std::move(text)); }
    bool binary(binary_t&) { return false; }
    bool key(string_t& name) { return reader_.key(name); }
    bool start_object(std::size_t) { return open(true); }
    bool end_object() { return close(); }
    bool start_array(std::size_t) { return open(false); }
    bool end_array() { return close(); }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) {
        return reader_.fail(fmt::format("no JSON: {}", words_of(error)));
    }

    static std::optional<Error>& failure(JsonReader& reader) { return reader.failure_; }

private:
    bool tell(JsonScalar::Kind kind, std::string text) {
        scalar_ = {kind, 0, std::move(text)};
        return reader_.scalar(scalar_);
    }
    bool open(bool object) {
        if (reader_.depth_ >= deepest_json)
            return reader_.fail(fmt::format("more than {} lists and objects in one another", deepest_json));
        if (!reader_.begin(object)) return false;
        ++reader_.depth_;
        return true;
    }
    bool close() {
        --reader_.depth_;
        return reader_.end();
    }

    JsonReader& reader_;
    JsonScalar scalar_;
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
    // The library passes over a byte order mark, and takes a zero byte for the end.
    if (text.starts_with("\xEF\xBB\xBF")) return wrong(what, "no JSON: a byte order mark", file, offset);
    if (const auto zero = text.find('\0'); zero != std::string_view::npos)
        return wrong(what, "no JSON: a zero byte", file, offset + zero);
    const char* seen = text.data();
    try {
        JsonEvents events(reader);
        const bool whole = nlohmann::json::sax_parse(Cursor(text.data(), &seen),
                                                     Cursor(text.data() + text.size(), &seen), &events);
        if (whole) return {};
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, fmt::format("there is no memory to read {}", what), file, {}};
    } catch (const std::exception& error) {
        return Error{ErrorCode::internal, fmt::format("{} cannot be read: {}", what, error.what()), file, {}};
    }
    const auto byte = offset + static_cast<Bytes>(seen - text.data());
    const auto& failure = JsonEvents::failure(reader);
    if (!failure) return Error{ErrorCode::internal, fmt::format("{} cannot be read", what), file, {}};
    return wrong(what, failure->message, file, byte, failure->hint);
}

}  // namespace sidestep::checkpoint
