// NVML's answers as a file, so that a recorded machine can answer the same questions again.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>
#include "driver/nvml.hpp"

namespace sidestep::topology {

// Everything the interface can be asked, answers and refusals alike. UUIDs are left out: they name a machine.
std::string nvml_to_json(const driver::Nvml& nvml);

// An Nvml that gives the recorded answers; ErrorCode::invalid_argument where the text is no such record.
Result<std::unique_ptr<driver::Nvml>> nvml_from_json(std::string_view text, const std::string& where);

}  // namespace sidestep::topology
