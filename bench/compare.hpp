// What changed between two reports beyond noise.
#pragma once

#include <string>
#include <vector>

#include "bench/report.hpp"

namespace sidestep::bench {

enum class Change {
    same,  // within the noise of the samples
    better,
    worse,
    unclear,  // too few samples to know the noise
};

// One figure that both reports have.
struct FigureChange {
    std::string key;  // of the case
    std::string what;
    Bytes bytes = 0;
    std::string unit;
    double before = 0;  // medians
    double after = 0;
    double percent = 0;        // of the median before, 0 where that is 0
    double noise_percent = 0;  // by which the median may differ without a change
    Change change = Change::same;
};

struct Comparison {
    std::vector<FigureChange> figures;
    std::vector<std::string> only_before;  // "case: figure, size"
    std::vector<std::string> only_after;
    std::vector<std::string> failed_after;  // "case: why", of those that did not fail before
    std::vector<std::string> notes;         // that the machines differ, and how

    int count(Change change) const;
    bool regressed() const { return count(Change::worse) > 0 || !failed_after.empty(); }
    // Lines for people: what changed, and how much did not; with `everything` also what did not.
    std::string to_text(bool everything) const;
    // The object documented in docs/bench-format.md.
    std::string to_json() const;
};

// Figures are the same where case, name, size and unit are. A figure changed when all of this holds:
// - the medians differ by more than 3 standard deviations of their difference, each deviation estimated as
//   1.4826 times the median distance of the samples from their median (the MAD; P. J. Rousseeuw and C. Croux,
//   "Alternatives to the Median Absolute Deviation", 1993), which single outliers do not move;
// - the middle halves of the samples do not overlap, for samples that fall into two heaps;
// - the medians differ by more than 2 %, since runs differ by more than the samples within one run.
// With fewer than 5 samples on either side a difference is unclear, or the same where it is below 2 %.
Comparison compare(const Report& before, const Report& after);

}  // namespace sidestep::bench
