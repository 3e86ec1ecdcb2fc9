// Words of a machine made fit for XML and DOT.
#pragma once

#include <string>
#include <string_view>

namespace sidestep::topology::draw {

// As content of an XML element or attribute: markup escaped; bytes that are no UTF-8, and characters that XML
// 1.0 forbids, become U+FFFD.
std::string escape_xml(std::string_view words);

// As the inside of a quoted DOT string. Line ends become \n; what is no UTF-8 becomes U+FFFD.
std::string escape_dot(std::string_view words);

}  // namespace sidestep::topology::draw
