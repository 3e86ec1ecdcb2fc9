// JSON read as a row of events, without a tree of it in memory: headers have up to 100 MB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::checkpoint {

struct JsonScalar {
    enum class Kind {
        null,
        boolean,  // `text` is "true" or "false"
        natural,  // a whole number of at most 64 bits, written without sign, fraction and exponent
        number,   // any other; `text` as it is written
        text,
    };
    Kind kind = Kind::null;
    std::uint64_t natural = 0;
    std::string text;
};

// Reads one JSON text. Functions return false after fail().
class JsonReader {
public:
    virtual ~JsonReader() = default;
    virtual bool scalar(JsonScalar& value) = 0;  // `value` may be moved from
    virtual bool key(std::string& name) = 0;     // `name` may be moved from
    virtual bool begin(bool object) = 0;         // else a list; depth() is that before it
    virtual bool end() = 0;                      // depth() is that after it

    // Lists and objects that are open.
    int depth() const { return depth_; }

protected:
    // What is wrong; the place in the file is added.
    bool fail(std::string message, std::string hint = {}) {
        if (!failure_) failure_ = Error{ErrorCode::invalid_argument, std::move(message), {}, std::move(hint)};
        return false;
    }

private:
    friend class JsonEvents;
    int depth_ = 0;
    std::optional<Error> failure_;
};

// The reference's limit: serde_json stops at 128 lists and objects in one another.
constexpr int deepest_json = 127;

// Tells `reader` what is in `text`, which stands at byte `offset` of `file`. Strict as serde_json is: UTF-8
// only, no byte order mark, no comments, no numbers beyond a double, nothing but white space after the value.
// `what` stands in errors: "the header". ErrorCode::invalid_argument, with `where` = "file: byte n".
Result<void> read_json(std::string_view text, JsonReader& reader, const std::string& what,
                       const std::string& file, Bytes offset = 0);

}  // namespace sidestep::checkpoint
