// Small files read whole: reports, thresholds, what the kernel says about the machine.
#pragma once

#include <cstddef>
#include <string>

#include <sidestep/result.hpp>

namespace sidestep::bench {

// The text of a file. ErrorCode::not_found where it is not there, invalid_argument where it is a folder or
// holds more than `max` bytes.
Result<std::string> read_text(const std::string& path, std::size_t max);

}  // namespace sidestep::bench
