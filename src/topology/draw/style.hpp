// The colours of a drawing, for light and for dark.
#pragma once

#include <string>

#include <sidestep/drawing.hpp>

#include "topology/draw/scene.hpp"

namespace sidestep::topology::draw {

// The content of a <style> element. Rules name plain colours, not variables: several programs that show SVG
// know none.
std::string style_sheet(Theme theme);

// The class a part of the drawing has in that sheet.
const char* class_of(Role role);
const char* class_of(Ink ink);
const char* class_of(Tone tone);

}  // namespace sidestep::topology::draw
