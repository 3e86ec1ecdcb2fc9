// What a trial of every pair of GPUs found.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

// One direction of one pair, by one engine.
struct PairProbe {
    int from = 0;
    int to = 0;
    std::string from_bus_id;
    std::string to_bus_id;
    std::string engine;   // "copy engine", "kernel"
    bool direct = false;  // one hop carried the bytes; else `refusal` says why there is no direct path
    std::string refusal;
    bool intact = true;             // the bytes that arrived are those that were sent
    std::optional<Bytes> wrong_at;  // offset of the first wrong byte
    double gb_per_s = 0;            // median over the repeats; 0 where nothing went
    double expected_gb_per_s = 0;   // what the topology lets expect of the direct path
    double bounce_gb_per_s = 0;     // the same bytes through host memory; 0 where that was not tried

    bool operator==(const PairProbe&) const = default;
};

struct SIDESTEP_API ProbeReport {
    std::string machine;
    bool emulated = false;  // the rates are those of this machine's memory and say nothing
    Bytes bytes = 0;        // of one copy
    std::vector<PairProbe> pairs;

    // The report for people: a matrix of rates, then what is wrong.
    std::string to_string() const;
    // The object documented in docs/json.md: what ContextOptions::probe_file reads.
    std::string to_json() const;
    static Result<ProbeReport> load(const std::string& path);
    static Result<ProbeReport> from_json(std::string_view text, const std::string& where);
};

}  // namespace sidestep
