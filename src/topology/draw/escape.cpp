#include "topology/draw/escape.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// The first character of `words` as UTF-8; empty where the bytes are none (RFC 3629).
std::string_view character(std::string_view words) {
    const auto at = [&](std::size_t i) {
        return i < words.size() ? static_cast<unsigned char>(words[i]) : 0U;
    };
    const unsigned lead = at(0);
    std::size_t length = 1;
    unsigned code = lead;
    if (lead >= 0x80) {
        length = lead >= 0xf0 && lead < 0xf5   ? 4
                 : lead >= 0xe0 && lead < 0xf0 ? 3
                 : lead >= 0xc2 && lead < 0xe0 ? 2
                                               : 0;
        if (length == 0) return {};
        code = lead & (0xffU >> (length + 1));
    }
    for (std::size_t i = 1; i < length; ++i) {
        if ((at(i) & 0xc0U) != 0x80U) return {};
        code = code << 6 | (at(i) & 0x3fU);
    }
    const bool too_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (too_long || surrogate || code > 0x10ffff || code == 0xfffe || code == 0xffff) return {};
    return words.substr(0, length);
}

// Calls `plain` for each character, and puts the replacement for each byte that is none.
template <typename Plain>
std::string each_character(std::string_view words, const Plain& plain) {
    std::string out;
    while (!words.empty()) {
        const std::string_view one = character(words);
        if (one.empty())
            out += replacement;
        else
            plain(one, out);
        words.remove_prefix(one.empty() ? 1 : one.size());
    }
    return out;
}

bool is_control(std::string_view one) {
    return one.size() == 1 && (static_cast<unsigned char>(one[0]) < 0x20 || one[0] == 0x7f);
}

}  // namespace

std::string escape_xml(std::string_view words) {
    return each_character(words, [](std::string_view one, std::string& out) {
        if (one == "&")
            out += "&amp;";
        else if (one == "<")
            out += "&lt;";
        else if (one == ">")
            out += "&gt;";
        else if (one == "\"")
            out += "&quot;";
        else if (one == "'")
            out += "&apos;";
        else if (is_control(one) && one != "\n" && one != "\t")
            out += replacement;
        else
            out += one;
    });
}

std::string escape_dot(std::string_view words) {
    return each_character(words, [](std::string_view one, std::string& out) {
        if (one == "\"" || one == "\\")
            out.append("\\").append(one);
        else if (one == "\n")
            out += "\\n";
        else if (is_control(one))
            out += replacement;
        else
            out += one;
    });
}

}  // namespace sidestep::topology::draw
