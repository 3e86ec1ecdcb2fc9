// errno as an Error.
#pragma once

#include <string>

#include <sidestep/result.hpp>

namespace sidestep::driver {

// "message: No space left on device", with the ErrorCode that belongs to `number` (an errno value, above
// 0) and, where there is a general one, a hint. `where` names the call or the place.
Error system_error(int number, std::string message, std::string where, std::string hint = {});

// The words for an errno value: "No space left on device".
std::string system_words(int number);

}  // namespace sidestep::driver
