#include "topology/draw/text_fit.hpp"

namespace sidestep::topology::draw {

namespace {

// In units of the font size, rounded up.
double advance(unsigned char c) {
    if (c >= 0x80) return 0.7;
    switch (c) {
        case 'i':
        case 'j':
        case 'l':
        case 'I':
        case '\'':
        case '|':
            return 0.34;
        case ' ':
        case '.':
        case ',':
        case ':':
        case ';':
        case '/':
        case '-':
        case 'f':
        case 't':
        case 'r':
        case '(':
        case ')':
        case '[':
        case ']':
            return 0.42;
        case 'm':
        case 'M':
        case 'W':
        case '@':
        case '%':
            return 1.0;
        case 'w':
        case '#':
        case 'O':
        case 'Q':
        case 'D':
        case 'G':
        case 'H':
        case 'N':
        case 'U':
        case '+':
        case '<':
        case '>':
        case '=':
            return 0.84;
        default:
            return c >= 'A' && c <= 'Z' ? 0.72 : 0.64;
    }
}

// Bytes of a character of UTF-8 after the first.
bool continues(char c) {
    return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

}  // namespace

double text_width(std::string_view words, double size, bool bold) {
    double width = 0;
    for (const char c : words) width += continues(c) ? 0 : advance(static_cast<unsigned char>(c));
    return width * size * (bold ? 1.1 : 1);
}

std::string fit(std::string_view words, double width, double size, bool bold) {
    if (text_width(words, size, bold) <= width) return std::string(words);
    const std::string ellipsis = "…";
    std::size_t end = words.size();
    while (end > 0) {
        --end;
        while (end > 0 && continues(words[end])) --end;
        if (text_width(words.substr(0, end), size, bold) + text_width(ellipsis, size, bold) <= width) break;
    }
    while (end > 0 && words[end - 1] == ' ') --end;
    return end == 0 ? "" : std::string(words.substr(0, end)) + ellipsis;
}

std::vector<std::string> wrap(std::string_view words, double width, double size, std::size_t max) {
    std::vector<std::string> lines;
    while (!words.empty() && lines.size() < max) {
        const bool last = lines.size() + 1 == max;
        std::size_t end = words.size();
        while (!last && text_width(words.substr(0, end), size) > width) {
            const std::size_t blank = words.rfind(' ', end - 1);
            if (blank == std::string_view::npos || blank == 0) break;
            end = blank;
        }
        lines.push_back(fit(words.substr(0, end), width, size));
        words.remove_prefix(end);
        while (!words.empty() && words.front() == ' ') words.remove_prefix(1);
    }
    return lines;
}

Rect extent(const Text& text) {
    const double width = text_width(text.words, text.size, text.bold);
    double x = text.at.x;
    if (text.anchor == Anchor::middle) x -= width / 2;
    if (text.anchor == Anchor::end) x -= width;
    return {x, text.at.y - 0.78 * text.size, width, text.size};
}

std::string short_model(std::string_view model) {
    for (const std::string_view vendor : {"NVIDIA ", "AMD ", "Intel(R) ", "Intel ", "Tesla "}) {
        if (model.starts_with(vendor) && model.size() > vendor.size()) model.remove_prefix(vendor.size());
    }
    return std::string(model);
}

}  // namespace sidestep::topology::draw
