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
    pass,     // not the cause of anything; also where the check does not apply (Finding::applies)
    warn,     // a faster path is off or may be, or something that people usually have is not there
    fail,     // something is broken: a path that this machine has does not work as it should
    unknown,  // it cannot be seen from here; the finding says what would show it
};

enum class CheckGroup { gpu_gpu, gpu_nic, gpu_storage, host, container, versions, network, hardware };

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
    bool applies = true;  // false: the machine lacks what the check is about
    std::string summary;  // one sentence: what is so on this machine
    std::vector<Seen> seen;
    std::optional<double> cost_gb_per_s;  // what the cause takes away, where that can be said
    std::string cost;                     // in words, where it says more
    std::string remedy;                   // what to do; empty where nothing is to be done
    std::string command;                  // the line to type; empty where there is none
    bool needs_root = false;              // the command, not the check
    std::string page;                     // "docs/doctor/acs-redirect.md"
    std::string because{};  // the id of the finding that explains this one; empty: its own cause

    bool operator==(const Finding&) const = default;
};

// The answer for the machine as a whole.
enum class Health {
    well,       // nothing warns or fails
    warnings,   // something warns, nothing fails
    failures,   // something fails
    no_driver,  // GPUs are plugged in, and no driver answers: most of what matters cannot be seen
    no_gpu,     // there is no GPU
};

SIDESTEP_API std::string_view to_string(
    Health health);  // "well", "warnings", "failures", "no driver", "no GPU"

struct SIDESTEP_API Diagnosis {
    std::string machine;
    int gpus = -1;  // -1: nobody counted them
    bool driver_missing = false;
    // What is wrong comes first: failures, warnings, then what cannot be seen, each by what it costs. A finding
    // that another one explains follows it.
    std::vector<Finding> findings;
    std::vector<std::string> notes;  // what could not be looked at: "NVML: ..."

    // Of the findings that apply. Those that do not are counted by not_applicable() alone.
    int count(Verdict verdict) const;
    int not_applicable() const;
    Health health() const;
    // The report for people: causes first, with what they explain below them, then the names of the checks
    // that pass. With `everything` also a line and the evidence of each of those.
    std::string to_string(bool everything = false) const;
    // The object documented in docs/json.md.
    std::string to_json() const;
};

struct DoctorOptions {
    // Whatever Topology::open() takes. Empty: the environment's SIDESTEP_MACHINE, else "live".
    std::string machine;
    // What probe_pairs() found on this machine: without it the checks that need measured pairs are unknown.
    std::optional<ProbeReport> probe;
    // The ids of the checks to make. Empty: all.
    std::vector<std::string> checks{};
    // What the machine should be: whatever Topology::open() takes. Each difference fails. Empty: not asked.
    std::string expect{};
};

// Runs the checks. Reads files, NVML and the CUDA driver's attributes; makes no context, allocates nothing
// on a GPU and changes nothing. Never needs root: what only root can see comes out as `unknown`, or
// inferred and marked so. Of a built-in machine or a topology file, which have no files and no driver, the
// checks that need these are `unknown` too. ErrorCode::not_found where there is no such machine or check.
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
