// Text from outside that may be no UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace sidestep::base {

// Bytes of the character that `text` begins with, 0 where it is malformed (RFC 3629, section 4: no surrogates, no long forms).
std::size_t utf8_bytes(std::string_view text);

// The same, and 0 for U+FFFE and U+FFFF, which XML 1.0 does not have.
std::size_t xml_bytes(std::string_view text);

}  // namespace sidestep::base
