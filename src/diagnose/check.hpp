// One cause of a path that is off or slow: what is known about it, and the function that looks for it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/doctor.hpp>

#include "diagnose/evidence.hpp"

namespace sidestep::diagnose {

// What a check found on one machine. The rest of a Finding comes from the check itself.
struct Outcome {
    Verdict verdict = Verdict::unknown;
    bool applies = true;
    std::string summary;
    std::vector<Seen> seen;
    std::optional<double> cost_gb_per_s;
    std::string remedy;   // empty: the check's own
    std::string command;  // empty: the check's own; only shown where the verdict is not pass

    Outcome& saw(std::string source, std::string value) {
        seen.push_back({std::move(source), std::move(value)});
        return *this;
    }
};

Outcome pass(std::string summary);
Outcome warn(std::string summary);
Outcome fail(std::string summary);
Outcome unknown(std::string summary);
// A machine without what the check is about.
Outcome does_not_apply(std::string summary);

// A cause, in words that hold for every machine. The page of the check is made of them.
struct Check {
    const char* id;  // stable; letters, digits and '-'
    CheckGroup group;
    const char* title;     // the cause in one line
    const char* symptom;   // what users see
    const char* looks_at;  // how the check sees it, and what it cannot see
    const char* cost;      // what it takes away
    const char* remedy;    // what to do
    const char* command;   // the exact command; placeholders in capitals; may be empty
    bool needs_root;       // for the command
    const char* sources;   // where the facts come from: documents, issue numbers
    Outcome (*look)(const Evidence& evidence);
    bool by_topology = false;  // it finds out something of a topology without files and drivers too
};

// The tables of the groups, in src/diagnose/checks/.
std::vector<Check> gpu_gpu_checks();
std::vector<Check> gpu_nic_checks();
std::vector<Check> gpu_storage_checks();
std::vector<Check> hardware_checks();
std::vector<Check> host_checks();
std::vector<Check> container_checks();
std::vector<Check> version_checks();

// All of them, in the order of the groups.
std::vector<Check> all_checks();

}  // namespace sidestep::diagnose
