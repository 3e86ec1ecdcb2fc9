// What CUDA and libibverbs said, as files of a recorded machine.
#pragma once

#include <string>
#include <string_view>

#include <sidestep/result.hpp>

#include "driver/cuda_facts.hpp"
#include "driver/verbs_facts.hpp"

namespace sidestep::diagnose {

constexpr const char* cuda_record = "/sidestep/cuda.json";
constexpr const char* verbs_record = "/sidestep/verbs.json";
// The lines of driver::KernelLog; missing where the log may not be read.
constexpr const char* kernel_log_record = "/sidestep/kernel_log";

std::string cuda_to_json(const driver::CudaFacts& facts);
std::string verbs_to_json(const driver::VerbsFacts& facts);

// ErrorCode::invalid_argument where the text is no such record.
Result<driver::CudaFacts> cuda_from_json(std::string_view text, const std::string& where);
Result<driver::VerbsFacts> verbs_from_json(std::string_view text, const std::string& where);

}  // namespace sidestep::diagnose
