// The words of hops and ways, and the list of those that were not taken.
#pragma once

#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/route.hpp>

namespace sidestep::route {

// A place as a terminal may get it: the name of a file may hold anything.
std::string shown(const Place& place);

// "gpu:0 -> host -> gpu:5".
std::string arrows(const std::vector<Place>& places);
std::string arrows(const std::vector<Hop>& hops);

// "cuda copy engine"; an emulated engine names its backend itself.
std::string engine_words(const Hop& hop);
// "gpu:0 -> gpu:1 by cuda copy engine".
std::string hop_words(const Hop& hop);

// With "; " between the two where there are two.
std::string joined(const std::string& a, const std::string& b);

// Whether, and how many times longer a way takes than the one taken: "no faster than the path taken".
std::string slower_words(double seconds, double best_seconds, const char* taken);

// Each reason against a way is kept once.
void refuse(std::vector<Refused>& list, std::string path, std::string reason, std::string remedy = {},
            double gb_per_s = 0);

// ErrorCode::path_unavailable with all reasons; the hint is the first remedy.
Error nothing_left(std::string message, const std::vector<Refused>& refused);

}  // namespace sidestep::route
