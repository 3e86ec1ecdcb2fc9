// What somebody who mistyped a name may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sidestep::base {

// The known name that takes the fewest changes of a letter, where these are few; else empty.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& known);

// A hint: "did you mean 'acs-redirect'?", or, where none is near, "the checks are: a, b, c".
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known,
                         std::string_view list);

}  // namespace sidestep::base
