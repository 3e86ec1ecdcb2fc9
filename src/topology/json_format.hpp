// The marks of the own JSON format.
#pragma once

#include <string_view>

namespace sidestep::topology {

constexpr std::string_view json_format = "sidestep-topology";
// Raised when a reader of the version before would misread a file; new members alone do not raise it.
constexpr int json_version = 1;

}  // namespace sidestep::topology
