// What `sidestep tune` makes of measurements: the figures by which groups choose their algorithms.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/collective/plan.hpp"

namespace sidestep::bench::collective {

// The algorithms of all_reduce, as CollectivePlan names them.
inline constexpr const char* tuned_algorithms[] = {"one-shot packets", "two-phase packets", "lines",
                                                   "slices"};
// Measured too, of floats: where it pays, it is taken instead.
inline constexpr const char* lamport_algorithm = "one-shot Lamport";
// Measured too, for their rates; the price decides where they take over from slices.
inline constexpr const char* pushed_algorithm = "pushed slices";
inline constexpr const char* ring_algorithm = "ring";

// Text of a file for SIDESTEP_TUNING with which groups take the algorithm wherever it can carry all_reduce.
std::string forcing(const std::string& algorithm);

// Microseconds of all_reduce by algorithm and size.
using TuneTimes = std::map<std::string, std::map<Bytes, double>>;
// Adds the lower quartiles, which other work on the machine hardly enters, of the lines whose path is that
// algorithm: above what it can carry a group takes another one.
void add_times(TuneTimes& times, const std::string& algorithm, const std::vector<Line>& lines);

struct Tuned {
    double launch_us = 0;
    double hop_us = 0;
    double packet_gb_per_s = 0;
    double link_gb_per_s = 0;
    double push_gb_per_s = 0;  // 0: slices were not pushed
    std::optional<double>
        ring_gb_per_s;  // nothing: there was no ring, as between two ranks that reach each other
    Bytes one_shot_max = 0;
    Bytes lamport_min = 0;
    Bytes lamport_max = 0;
    Bytes packets_max = 0;
    Bytes lines_max = 0;

    // For SIDESTEP_TUNING.
    std::string to_json(const std::string& machine) const;
    // What all_reduce takes by it, in words.
    std::string to_string() const;
};

// The sizes up to which packets and lines pay, and of floats Lamport, are those with which all measured sizes
// together lose least against the quickest algorithm of each; the rates follow from the smallest and the
// largest sizes by the prices of src/collective/prices.cpp. Fails with unsupported where an algorithm has
// fewer than two sizes, but for lines, which not every machine has.
Result<Tuned> tuned_from(const TuneTimes& times, int ranks);

// A row for each size, the quickest marked.
std::string times_text(const TuneTimes& times);

}  // namespace sidestep::bench::collective
