#include "topology/draw/escape.hpp"

#include "base/utf8.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// Calls `plain` for each character, and puts the replacement for each byte that is none.
template <typename Plain>
std::string each_character(std::string_view words, const Plain& plain) {
    std::string out;
    while (!words.empty()) {
        const std::size_t length = base::xml_bytes(words);
        if (length == 0)
            out += replacement;
        else
            plain(words.substr(0, length), out);
        words.remove_prefix(length == 0 ? 1 : length);
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
