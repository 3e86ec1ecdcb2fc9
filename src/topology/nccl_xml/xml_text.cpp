#include "topology/nccl_xml/xml_text.hpp"

#include <fmt/format.h>

#include "base/utf8.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

bool is_control(char one) {
    return (static_cast<unsigned char>(one) < ' ' || one == 0x7f) && one != '\t' && one != '\n' &&
           one != '\r';
}

std::string escaped(std::string_view value) {
    std::string text;
    while (!value.empty()) {
        const std::size_t length = is_control(value.front()) ? 0 : base::xml_bytes(value);
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

bool fits(std::string_view value) {
    constexpr std::size_t longest_escape = std::string_view("&quot;").size();
    return value.size() <= longest_value / longest_escape || escaped(value).size() <= longest_value;
}

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
    if (text.size() <= longest_value) text_ += fmt::format(" {}=\"{}\"", name, text);
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
