// The checks run over one machine's evidence.
#pragma once

#include <string_view>

#include <sidestep/doctor.hpp>

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// One check: what it found, with the words of the check where it did not pass.
Finding examine(const Check& check, const Evidence& evidence);

// Whether a command that a look made up for one machine needs root, by the programs in it.
bool needs_root(std::string_view command);

// Every check, in the order of the groups.
Diagnosis examine_all(const Evidence& evidence);

}  // namespace sidestep::diagnose
