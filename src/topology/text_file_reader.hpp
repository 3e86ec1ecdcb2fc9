// Small files as text.
#pragma once

#include <cstddef>
#include <string>

#include <sidestep/result.hpp>

namespace sidestep::topology {

// What a file is called in errors, and what to do where there is none.
struct TextFileKind {
    const char* name;
    const char* absent;
};
inline constexpr TextFileKind topology_file{
    "topology file", "give the path of a topology file, or the name of a built-in machine"};

// The whole of a regular file. ErrorCode::not_found, permission_denied or io_error with the path; a file
// larger than `max` bytes, and what is not a regular file, is an invalid_argument.
Result<std::string> read_text_file(const std::string& path, std::size_t max,
                                   const TextFileKind& kind = topology_file);

// The error with the file before the place in it. `where` empty: the error itself.
Error at_file(Error error, const std::string& where);

}  // namespace sidestep::topology
