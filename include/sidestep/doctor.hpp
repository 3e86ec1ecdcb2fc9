// Why a fast path is off, or slow, and what to type.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/probe_report.hpp>
#include <sidestep/result.hpp>

namespace sidestep {

enum class Verdict {
    pass,     // not the cause of anything; also where the check does not apply
    warn,     // a faster path is off or may be, or something that people usually have is not there
    fail,     // something is broken: a path that this machine has does not work as it should
    unknown,  // it cannot be seen from here; the finding says what would show it
};

enum class CheckGroup { gpu_gpu, gpu_nic, gpu_storage, host, container, versions, network };

SIDESTEP_API std::string_view to_string(Verdict verdict);   // "pass", ...
SIDESTEP_API std::string_view to_string(CheckGroup group);  // "gpu-gpu", "gpu-nic", "gpu-storage", ...

// One thing that was looked at: a file, a call or a variable, and what it said.
struct Seen {
    std::string source;  // "/proc/cmdline", "nvmlDeviceGetMigMode(gpu:0)"
    std::string value;

    bool operator==(const Seen&) const = default;
};

// What one check found.
struct Finding {
    std::string id;  // "acs-redirect": stable, the name of the page docs/doctor/ID.md
    CheckGroup group = CheckGroup::host;
    std::string title;  // "PCIe access control sends peer traffic to the host bridge"
    Verdict verdict = Verdict::unknown;
    bool applies = true;  // false: the machine lacks what the check is about, and passes
    std::string summary;  // one sentence: what is so on this machine
    std::vector<Seen> seen;
    std::optional<double> cost_gb_per_s;  // what the cause takes away, where that can be said
    std::string cost;                     // in words, where it says more
    std::string remedy;                   // what to do; empty where nothing is to be done
    std::string command;                  // the line to type; empty where there is none
    bool needs_root = false;              // the command, not the check
    std::string page;                     // "docs/doctor/acs-redirect.md"

    bool operator==(const Finding&) const = default;
};

struct SIDESTEP_API Diagnosis {
    std::string machine;
    std::vector<Finding> findings;
    std::vector<std::string> notes;  // what could not be looked at: "NVML: ..."

    int count(Verdict verdict) const;
    // The report for people: the groups with their findings, those that pass in one line each. With
    // `everything` also the evidence of what passes.
    std::string to_string(bool everything = false) const;
    // The object documented in docs/json.md.
    std::string to_json() const;
};

struct DoctorOptions {
    // "live", or the folder of a recorded machine. Empty: the environment's SIDESTEP_MACHINE, else "live".
    std::string machine;
    // What probe_pairs() found on this machine: without it the checks that need measured pairs are unknown.
    std::optional<ProbeReport> probe;
};

// Runs every check. Reads files, NVML and the CUDA driver's attributes; makes no context, allocates nothing
// on a GPU and changes nothing. Never needs root: what only root can see comes out as `unknown`, or
// inferred and marked so. ErrorCode::unsupported for built-in machines and topology files, which hold nothing
// to examine; not_found where there is no such folder.
SIDESTEP_API Result<Diagnosis> run_doctor(const DoctorOptions& options = {});

// The page of one check, as markdown; docs/doctor holds them all.
struct DoctorPage {
    std::string id;
    CheckGroup group = CheckGroup::host;
    std::string title;
    std::string text;
};
SIDESTEP_API std::vector<DoctorPage> doctor_pages();

}  // namespace sidestep
