// "Did you mean": the known word that is nearest to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sidestep::cli {

// The nearest of `known`; empty where none is near: more than one wrong letter in three, or more than three.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "did you mean copy?; " before `hint`; the hint alone where nothing is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known, std::string_view hint);

}  // namespace sidestep::cli
