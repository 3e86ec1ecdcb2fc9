// The checks run over one machine's evidence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sidestep/doctor.hpp>

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// One check: what it found, with the words of the check where it did not pass.
Finding examine(const Check& check, const Evidence& evidence);

// Whether a command that a look made up for one machine needs root, by the programs in it.
bool needs_root(std::string_view command);

// The checks, with causes first.
Diagnosis examine_all(const Evidence& evidence, const std::vector<Check>& checks = all_checks());

// What `machine` names, as Topology::open takes it, with what the checks look at; not empty.
Result<Evidence> evidence_of(const std::string& machine);

// The checks of these ids; all where none is named. ErrorCode::not_found says which it could be.
Result<std::vector<Check>> checks_called(const std::vector<std::string>& ids);

}  // namespace sidestep::diagnose
