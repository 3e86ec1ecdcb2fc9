// What exceptions of other libraries say, in the words that errors have.
#pragma once

#include <exception>
#include <string_view>

namespace sidestep::base {

// Without the identifier that the JSON library puts first: "[json.exception.parse_error.101] parse error at line 2 ...".
// Lives as long as the exception.
inline std::string_view words_of(const std::exception& error) {
    const std::string_view words = error.what();
    const auto end = words.find("] ");
    return words.starts_with("[json.exception.") && end != words.npos ? words.substr(end + 2) : words;
}

}  // namespace sidestep::base
