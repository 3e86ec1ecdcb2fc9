// Many machines that should be alike, and those that are not.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/result.hpp>

namespace sidestep {

// One thing in which a machine differs from more than half of all.
struct OddMachine {
    std::string machine;  // "node17": the name of its record
    std::string what;     // "gpu:3"; "machine"; "check": what the doctor says
    std::string aspect;   // "lanes"; of a check its id
    std::string own;      // "x8"; empty: not told
    std::string others;   // "x16"

    bool operator==(const OddMachine&) const = default;
};

struct SIDESTEP_API Fleet {
    int machines = 0;
    std::vector<OddMachine> odd;     // by machine
    std::vector<std::string> notes;  // what could not be read, and why

    // "node17 differs from the other 31: gpu:3: lanes x8 instead of x16".
    std::string to_string() const;
    // The object documented in docs/json.md.
    std::string to_json() const;
};

// Compares the records and topology files in a folder, and what the doctor says of each. It takes three to tell
// which is the odd one: ErrorCode::invalid_argument where there are fewer. `progress` hears before each machine how many
// were looked at; where it says false the rest is left, and the answer is ErrorCode::cancelled.
SIDESTEP_API Result<Fleet> compare_machines(const std::string& folder,
                                            const std::function<bool(int done, int all)>& progress = {});

}  // namespace sidestep
