#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include <sidestep/doctor.hpp>

#include "base/environment.hpp"
#include "base/nearest_name.hpp"
#include "base/try.hpp"
#include "diagnose/causes.hpp"
#include "diagnose/check.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/diagnose.hpp"
#include "diagnose/topology_evidence.hpp"
#include "topology/machine_name_reader.hpp"

namespace sidestep {

namespace diagnose {

bool needs_root(std::string_view command) {
    // Programs that change the machine, or read what only root may.
    constexpr std::array programs = {"setpci ",           "modprobe ",        "rmmod ",
                                     "sysctl ",           "mount ",           "mkfs",
                                     "tune2fs ",          "apt-get ",         "systemctl start",
                                     "systemctl restart", "systemctl enable", "chmod ",
                                     "docker ",           "udevadm ",         "sudo ",
                                     "mlxconfig ",        "lspci -s",         "lspci -vv",
                                     "nv-fabricmanager ", "cma_roce_tos ",    "ip link set",
                                     "nvidia-smi -mig"};
    const bool listed = std::any_of(programs.begin(), programs.end(), [&](const char* program) {
        const auto at = command.find(program);
        // At the start of the line, or of a part of it.
        return at == 0 || (at != std::string_view::npos && command[at - 1] == ' ');
    });
    return listed ||
           (command.starts_with("nvidia-smi -i") && command.find(" -mig ") != std::string_view::npos);
}

namespace {

// What a topology alone does not tell is alike for all checks, so that a report can say it once.
Outcome topology_tells_nothing() {
    Outcome outcome = unknown("a topology alone does not tell: this takes the machine's files and drivers");
    outcome.remedy =
        "Run the doctor on the machine itself, or on a record of it that `sidestep topo --record` wrote.";
    outcome.command = "sidestep topo --record FOLDER";
    return outcome;
}

Outcome look(const Check& check, const Evidence& evidence) {
    if (!evidence.from_topology) return check.look(evidence);
    if (!check.by_topology) return topology_tells_nothing();
    Outcome outcome = check.look(evidence);
    return outcome.verdict == Verdict::unknown ? topology_tells_nothing() : outcome;
}

}  // namespace

Finding examine(const Check& check, const Evidence& evidence) {
    Outcome outcome = look(check, evidence);
    Finding finding;
    finding.id = check.id;
    finding.group = check.group;
    finding.title = check.title;
    finding.page = fmt::format("docs/doctor/{}.md", check.id);
    finding.verdict = outcome.verdict;
    finding.applies = outcome.applies;
    finding.summary = std::move(outcome.summary);
    finding.seen = std::move(outcome.seen);
    if (outcome.verdict == Verdict::pass) return finding;
    finding.cost_gb_per_s = outcome.cost_gb_per_s;
    finding.cost = check.cost;
    finding.remedy = outcome.remedy.empty() ? check.remedy : std::move(outcome.remedy);
    const bool own = outcome.command.empty();
    finding.command = own ? check.command : std::move(outcome.command);
    finding.needs_root = !finding.command.empty() && (own ? check.needs_root : needs_root(finding.command));
    return finding;
}

Diagnosis examine_all(const Evidence& evidence, const std::vector<Check>& checks) {
    Diagnosis diagnosis;
    diagnosis.machine = evidence.topology.name();
    if (evidence.from_topology) {
        // What the file does not tell, and what could lend it.
        for (const std::string& note : evidence.topology.notes())
            diagnosis.notes.push_back("topology: " + note);
    } else {
        if (!evidence.nvml) diagnosis.notes.push_back("NVML: " + evidence.no_nvml);
        if (!evidence.cuda.loaded) diagnosis.notes.push_back("CUDA driver: " + evidence.cuda.reason);
        if (!evidence.verbs.loaded) diagnosis.notes.push_back("RDMA verbs: " + evidence.verbs.reason);
    }
    diagnosis.gpus = evidence.topology.gpu_count();
    diagnosis.driver_missing = !evidence.nvml && look_driver_mismatch(evidence).verdict == Verdict::fail;
    for (const Check& check : checks) diagnosis.findings.push_back(examine(check, evidence));
    put_causes_first(diagnosis);
    return diagnosis;
}

Result<std::vector<Check>> checks_called(const std::vector<std::string>& ids) {
    std::vector<Check> all = all_checks();
    if (ids.empty()) return all;
    std::vector<std::string> known;
    for (const Check& check : all) known.emplace_back(check.id);
    std::vector<Check> chosen;
    for (const std::string& id : ids) {
        const auto found = std::find(known.begin(), known.end(), id);
        if (found == known.end()) {
            const std::string nearest = base::nearest_name(id, known);
            return Error{ErrorCode::not_found, fmt::format("there is no check '{}'", id), "doctor",
                         nearest.empty() ? fmt::format("the checks are: {}", fmt::join(known, ", "))
                                         : fmt::format("did you mean '{}'?", nearest)};
        }
        chosen.push_back(all[static_cast<std::size_t>(found - known.begin())]);
    }
    return chosen;
}

Result<Evidence> evidence_of(const std::string& machine) {
    SIDESTEP_TRY(const topology::MachineName name, topology::read_machine_name(machine));
    if (name.kind == topology::MachineName::Kind::live) return gather(std::string());
    if (name.kind == topology::MachineName::Kind::record) return gather(name.name);
    SIDESTEP_TRY(Topology topology, Topology::open(machine));
    // Pairs of GPUs are looked at one by one; a rack of NVL72 has 72.
    constexpr int most = 256;
    if (topology.gpu_count() > most)
        return Error{ErrorCode::unsupported,
                     fmt::format("{} has {} GPUs, and the doctor looks at {} at most", machine,
                                 topology.gpu_count(), most),
                     "doctor", "look at one machine of the cluster"};
    return evidence_of(std::move(topology));
}

}  // namespace diagnose

Result<Diagnosis> run_doctor(const DoctorOptions& options) {
    SIDESTEP_TRY(const std::vector<diagnose::Check> checks, diagnose::checks_called(options.checks));
    std::string machine = options.machine;
    if (machine.empty()) {
        SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
        machine = environment.machine;
    }
    SIDESTEP_TRY(diagnose::Evidence evidence, diagnose::evidence_of(machine));
    evidence.probe = options.probe;
    if (!options.expect.empty()) {
        SIDESTEP_TRY(evidence.expected, Topology::open(options.expect));
    }
    Diagnosis diagnosis = diagnose::examine_all(evidence, checks);
    // A file says of itself what it was called where it was written.
    if (evidence.from_topology) diagnosis.machine = machine;
    return diagnosis;
}

std::string_view to_string(Verdict verdict) {
    switch (verdict) {
        case Verdict::pass:
            return "pass";
        case Verdict::warn:
            return "warn";
        case Verdict::fail:
            return "fail";
        case Verdict::unknown:
            return "unknown";
    }
    return "unknown";
}

std::string_view to_string(Health health) {
    switch (health) {
        case Health::well:
            return "well";
        case Health::warnings:
            return "warnings";
        case Health::failures:
            return "failures";
        case Health::no_driver:
            return "no driver";
        case Health::no_gpu:
            return "no GPU";
    }
    return "unknown";
}

std::string_view to_string(CheckGroup group) {
    switch (group) {
        case CheckGroup::gpu_gpu:
            return "gpu-gpu";
        case CheckGroup::gpu_nic:
            return "gpu-nic";
        case CheckGroup::gpu_storage:
            return "gpu-storage";
        case CheckGroup::host:
            return "host";
        case CheckGroup::container:
            return "container";
        case CheckGroup::versions:
            return "versions";
        case CheckGroup::network:
            return "network";
        case CheckGroup::hardware:
            return "hardware";
    }
    return "unknown";
}

int Diagnosis::count(Verdict verdict) const {
    return static_cast<int>(std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) {
        return finding.applies && finding.verdict == verdict;
    }));
}

int Diagnosis::not_applicable() const {
    return static_cast<int>(std::count_if(findings.begin(), findings.end(),
                                          [](const Finding& finding) { return !finding.applies; }));
}

Health Diagnosis::health() const {
    if (driver_missing) return Health::no_driver;
    if (gpus == 0) return Health::no_gpu;
    if (count(Verdict::fail) > 0) return Health::failures;
    return count(Verdict::warn) > 0 ? Health::warnings : Health::well;
}

}  // namespace sidestep
