// Messages between processes, field by field. Numbers have the machine's order of bytes; between machines src/wire makes sure
// that it is the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sidestep::base {

class MessageWriter {
public:
    template <typename Number>
    MessageWriter& put(Number number) {
        static_assert(std::is_trivially_copyable_v<Number>);
        bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
        return *this;
    }
    // Its size comes first, as a Size, which it fits into.
    template <typename Size = std::uint32_t>
    MessageWriter& put_text(std::string_view text) {
        put(static_cast<Size>(text.size()));
        bytes_.append(text);
        return *this;
    }
    std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

// Takes fields off the front. After the first that is not there, or is longer than it may be, all are zero and empty.
class MessageReader {
public:
    explicit MessageReader(std::string_view message) : rest_(message) {}

    template <typename Number>
    Number number() {
        static_assert(std::is_trivially_copyable_v<Number>);
        Number number{};
        if (rest_.size() < sizeof(number)) return fail<Number>();
        std::memcpy(&number, rest_.data(), sizeof(number));
        rest_.remove_prefix(sizeof(number));
        return number;
    }
    template <typename Size = std::uint32_t>
    std::string text(std::size_t max) {
        const auto size = number<Size>();
        if (size > max || size > rest_.size()) return fail<std::string>();
        std::string text(rest_.substr(0, size));
        rest_.remove_prefix(size);
        return text;
    }
    // Everything was there, and nothing is left.
    bool exact() const { return !failed_ && rest_.empty(); }

private:
    template <typename Value>
    Value fail() {
        failed_ = true;
        rest_ = {};
        return {};
    }
    std::string_view rest_;
    bool failed_ = false;
};

}  // namespace sidestep::base
