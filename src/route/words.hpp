// The words of hops and ways, and the list of those that were not taken.
#pragma once

#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/route.hpp>

namespace sidestep::route {

// "cuda copy engine"; an emulated engine names its backend itself.
std::string engine_words(const Hop& hop);

// "gpu:0 -> gpu:1 by cuda copy engine"
std::string by_words(const Hop& hop);

// "gpu:0 -> host -> gpu:5".
std::string way_words(const std::vector<Hop>& hops);

// With "; " between the two where there are two.
std::string joined(const std::string& a, const std::string& b);

// Each reason against a way is kept once.
void refuse(std::vector<Refused>& list, Refused refused);

// ErrorCode::path_unavailable with all reasons; the hint is the first remedy.
Error nothing_left(std::string message, const std::vector<Refused>& refused);

}  // namespace sidestep::route
