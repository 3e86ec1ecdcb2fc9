// Colour on terminals.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace sidestep::cli {

enum class Color { automatic, always, never };

enum class Style { plain, bold, dim, red, green, yellow, cyan };

// Whether what goes to that descriptor (1 or 2) has colour: with `automatic` where it is a terminal that can, and
// NO_COLOR is not set.
bool has_color(Color color, int descriptor);

// "auto", "always" or "never" behind --color; the last one counts. Errors of the command line are coloured too, so
// this is read before the rest.
Color color_asked(int argc, const char* const* argv);

std::string painted(std::string_view text, Style style);

struct WordStyle {
    std::string_view word;  // "NV#": with a number behind it
    Style style;
};

// The words of `text` in their styles; with `first`, only the first word of each line.
std::string paint_words(std::string_view text, std::initializer_list<WordStyle> styles, bool first);

// Lines that end in ":" and are not indented.
std::string paint_headings(std::string_view text);

}  // namespace sidestep::cli
