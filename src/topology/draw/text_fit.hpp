// How much room words take, without a font: widths of DejaVu Sans, wider than the fonts a drawing asks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/draw/scene.hpp"

namespace sidestep::topology::draw {

double text_width(std::string_view words, double size, bool bold = false);

// The words, or as many as fit with an ellipsis after them; whole characters of UTF-8.
std::string fit(std::string_view words, double width, double size, bool bold = false);

// Broken at blanks into at most `max` lines that fit; the last one is cut with an ellipsis.
std::vector<std::string> wrap(std::string_view words, double width, double size, std::size_t max);

// The room a text takes, for tests and for layout.
Rect extent(const Text& text);

// "H100 80GB HBM3" of "NVIDIA H100 80GB HBM3": drawings have no room for the vendor.
std::string short_model(std::string_view model);

}  // namespace sidestep::topology::draw
