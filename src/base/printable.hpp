// Text from outside, as a terminal may get it.
#pragma once

#include <string>

namespace sidestep::base {

// Makes a tab a blank, and U+FFFD of what a terminal could obey: control characters, line breaks, and the controls that take two
// bytes of UTF-8 (U+0080 to U+009F).
void make_printable(std::string& text);

}  // namespace sidestep::base
