#include "topology/nccl_xml/xml_text.hpp"

#include <fmt/format.h>

namespace sidestep::topology::nccl_xml {

namespace {

// The length of the character that `text` begins with, 0 where XML has no such character.
std::size_t character(std::string_view text) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char first = byte(0);
    if (first < 0x80)
        return (first >= ' ' && first != 0x7f) || first == '\t' || first == '\n' || first == '\r';
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
    unsigned int code = first & (0x7fU >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        code = (code << 6) | (byte(i) & 0x3fU);
    }
    const bool too_long =
        (length == 3 && code < 0x800) || (length == 4 && (code < 0x10000 || code > 0x10ffff));
    const bool no_character = (code >= 0xd800 && code < 0xe000) || code == 0xfffe || code == 0xffff;
    return too_long || no_character ? 0 : length;
}

std::string escaped(std::string_view value) {
    std::string text;
    while (!value.empty()) {
        const std::size_t length = character(value);
        switch (value.front()) {
            case '&':
                text += "&amp;";
                break;
            case '<':
                text += "&lt;";
                break;
            case '>':
                text += "&gt;";
                break;
            case '"':
                text += "&quot;";
                break;
            case '\t':
            case '\n':
            case '\r':
                text += fmt::format("&#{};", static_cast<int>(value.front()));
                break;
            default:
                text += length == 0 ? "?" : value.substr(0, length);
        }
        value.remove_prefix(length == 0 ? 1 : length);
    }
    return text;
}

}  // namespace

void XmlText::finish_tag() {
    if (in_tag_) text_ += ">\n";
    in_tag_ = false;
}

void XmlText::open(std::string_view name) {
    finish_tag();
    if (!open_.empty()) open_.back().has_children = true;
    text_.append(2 * open_.size(), ' ');
    text_ += fmt::format("<{}", name);
    open_.push_back({std::string(name), false});
    in_tag_ = true;
    ++elements_;
}

void XmlText::attribute(std::string_view name, std::string_view value) {
    const std::string text = escaped(value);
    if (text.size() <= longest_nccl_value) text_ += fmt::format(" {}=\"{}\"", name, text);
}

void XmlText::attribute(std::string_view name, long value) {
    attribute(name, fmt::format("{}", value));
}

void XmlText::close() {
    const Open done = std::move(open_.back());
    open_.pop_back();
    if (!done.has_children) {
        text_ += "/>\n";
        in_tag_ = false;
        return;
    }
    text_.append(2 * open_.size(), ' ');
    text_ += fmt::format("</{}>\n", done.name);
}

}  // namespace sidestep::topology::nccl_xml
