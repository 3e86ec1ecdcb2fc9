#include "base/utf8.hpp"

namespace sidestep::base {

std::size_t utf8_bytes(std::string_view text) {
    const auto at = [text](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    const auto tail = [&](std::size_t i) { return (at(i) & 0xC0u) == 0x80u; };
    const unsigned first = at(0);
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
    if (first >= 0xE0 && first <= 0xEF) {
        const bool is_long = first == 0xE0 && at(1) < 0xA0;
        const bool surrogate = first == 0xED && at(1) > 0x9F;
        return tail(1) && tail(2) && !is_long && !surrogate ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        const bool is_long = first == 0xF0 && at(1) < 0x90;
        const bool beyond = first == 0xF4 && at(1) > 0x8F;
        return tail(1) && tail(2) && tail(3) && !is_long && !beyond ? 4 : 0;
    }
    return 0;
}

std::size_t xml_bytes(std::string_view text) {
    return text.starts_with("\xef\xbf\xbe") || text.starts_with("\xef\xbf\xbf") ? 0 : utf8_bytes(text);
}

}  // namespace sidestep::base
