// What somebody who mistyped a name may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sidestep::base {

// The known name that takes the fewest changes of a letter: one in three letters at most, and three. Dashes that
// begin an option do not count as letters. Empty where no name is that near.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& known);

// "did you mean 'copy'? " before `hint`; `hint` alone where no other name is near.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known,
                         std::string_view hint);

}  // namespace sidestep::base
