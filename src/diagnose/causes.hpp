// What comes first in a diagnosis: causes before what they explain, and the dearest of them on top.
#pragma once

#include <sidestep/doctor.hpp>

namespace sidestep::diagnose {

// Fills in Finding::because and puts the findings in the order that Diagnosis promises.
void put_causes_first(Diagnosis& diagnosis);

}  // namespace sidestep::diagnose
