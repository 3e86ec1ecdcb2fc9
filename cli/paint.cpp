#include "paint.hpp"

#include <unistd.h>

#include <cstdlib>

namespace sidestep::cli {
namespace {

const char* code_of(Style style) {
    switch (style) {
        case Style::plain:
            return "";
        case Style::bold:
            return "\x1b[1m";
        case Style::dim:
            return "\x1b[2m";
        case Style::red:
            return "\x1b[1;31m";
        case Style::green:
            return "\x1b[32m";
        case Style::yellow:
            return "\x1b[33m";
        case Style::cyan:
            return "\x1b[36m";
    }
    return "";
}

bool fits(std::string_view word, std::string_view pattern) {
    if (!pattern.ends_with('#')) return word == pattern;
    pattern.remove_suffix(1);
    return word.starts_with(pattern) && word.size() > pattern.size() &&
           word.find_first_not_of("0123456789", pattern.size()) == std::string_view::npos;
}

Style style_of(std::string_view word, std::initializer_list<WordStyle> styles) {
    for (const WordStyle& one : styles)
        if (fits(word, one.word)) return one.style;
    return Style::plain;
}

}  // namespace

bool has_color(Color color, int descriptor) {
    if (color != Color::automatic) return color == Color::always;
    const char* no = std::getenv("NO_COLOR");
    const char* terminal = std::getenv("TERM");
    const bool can = terminal == nullptr || std::string_view(terminal) != "dumb";
    return can && (no == nullptr || *no == '\0') && ::isatty(descriptor) != 0;
}

Color color_asked(int argc, const char* const* argv) {
    Color color = Color::automatic;
    for (int i = 1; i < argc; ++i) {
        std::string_view word = argv[i];
        if (word == "--color" && i + 1 < argc)
            word = argv[i + 1];
        else if (word.starts_with("--color="))
            word.remove_prefix(8);
        else
            continue;
        color = word == "always" ? Color::always : word == "never" ? Color::never : Color::automatic;
    }
    return color;
}

std::string painted(std::string_view text, Style style) {
    if (style == Style::plain) return std::string(text);
    return std::string(code_of(style)).append(text).append("\x1b[0m");
}

std::string paint_words(std::string_view text, std::initializer_list<WordStyle> styles, bool first) {
    std::string out;
    bool begun = false;  // a word of this line was seen
    for (std::size_t at = 0; at < text.size();) {
        if (text[at] == ' ' || text[at] == '\n') {
            begun = begun && text[at] != '\n';
            out += text[at++];
            continue;
        }
        const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
        const std::string_view word = text.substr(at, end - at);
        out += first && begun ? std::string(word) : painted(word, style_of(word, styles));
        begun = true;
        at = end;
    }
    return out;
}

std::string paint_headings(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = text.substr(at, end - at);
        const bool heading = !line.empty() && line.front() != ' ' && line.ends_with(':');
        out += heading ? painted(line, Style::bold) : std::string(line);
        if (end < text.size()) out += '\n';
        at = end + 1;
    }
    return out;
}

}  // namespace sidestep::cli
