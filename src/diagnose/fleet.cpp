#include <sidestep/fleet.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include <sidestep/doctor.hpp>
#include <sidestep/topology.hpp>

#include "base/try.hpp"
#include "diagnose/checks/device_aspects.hpp"
#include "diagnose/diagnose.hpp"
#include "driver/machine_files.hpp"

namespace sidestep {

namespace {

using diagnose::Aspects;

constexpr std::size_t fewest = 3;

// What is compared of one machine: "gpu:3", "machine", "check" -> aspects.
using Parts = std::map<std::string, Aspects>;

Result<Parts> parts_of(const std::string& path) {
    SIDESTEP_TRY(const diagnose::Evidence evidence, diagnose::evidence_of(path));
    const Topology& topology = evidence.topology;
    Parts parts;
    std::map<DeviceKind, int> counted;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        const Device& device = topology.device(id);
        ++counted[device.kind];
        if (!diagnose::has_aspects(device)) continue;
        Aspects& aspects = parts[device.name];
        aspects = diagnose::aspects_of(topology, id);
        if (!device.model.empty()) aspects["model"] = device.model;
    }
    Aspects& machine = parts["machine"];
    for (const auto& [kind, count] : counted)
        machine[fmt::format("number of {}s", sidestep::to_string(kind))] = std::to_string(count);
    for (const char* name : {"kernel", "nvidia_driver", "nvidia_driver_kind", "iommu"})
        if (const auto told = topology.parts().properties.find(name);
            told != topology.parts().properties.end())
            machine[name] = told->second;
    for (const Finding& finding : diagnose::examine_all(evidence).findings)
        parts["check"][finding.id] =
            finding.applies ? std::string(to_string(finding.verdict)) : "does not apply";
    return parts;
}

void compare_part(const std::vector<std::pair<std::string, Parts>>& machines, const std::string& what,
                  std::vector<OddMachine>& odd) {
    std::vector<Aspects> alike;
    for (const auto& [name, parts] : machines) {
        const auto found = parts.find(what);
        alike.push_back(found == parts.end() ? Aspects{{"there", "no"}} : found->second);
        if (found != parts.end()) alike.back()["there"] = "yes";
    }
    for (const diagnose::OddOne& one : diagnose::odd_ones(alike))
        odd.push_back({machines[one.index].first, what, one.aspect, one.own, one.others});
}

std::string words_of(const OddMachine& odd) {
    if (odd.aspect == "there") return fmt::format("{} is {}there", odd.what, odd.own == "no" ? "not " : "");
    return fmt::format("{}: {} {} instead of {}", odd.what, odd.aspect, odd.own, odd.others);
}

}  // namespace

Result<Fleet> compare_machines(const std::string& folder,
                               const std::function<bool(int done, int all)>& progress) {
    if (std::error_code ignored; !std::filesystem::is_directory(folder, ignored))
        return Error{ErrorCode::not_found, fmt::format("the folder {} does not exist", folder), "doctor", {}};
    Fleet fleet;
    std::vector<std::pair<std::string, Parts>> machines;
    const std::vector<std::string> names = driver::MachineFiles(folder).names("/");
    for (int done = 0; const std::string& name : names) {
        if (progress && !progress(done++, static_cast<int>(names.size())))
            return Error{ErrorCode::cancelled, "interrupted: not all machines were looked at", "doctor"};
        auto parts = parts_of(folder + "/" + name);
        if (parts) {
            machines.emplace_back(name, std::move(*parts));
        } else {
            fleet.notes.push_back(fmt::format("{} is left out: {}", name, parts.error().to_string()));
        }
    }
    if (machines.size() < fewest) {
        std::string hint = "put folders that sidestep topo --record wrote into it, a folder a machine";
        if (!fleet.notes.empty()) hint += "; " + fleet.notes.front();
        if (fleet.notes.size() > 1) hint += fmt::format("; and {} more are left out", fleet.notes.size() - 1);
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} holds {} machines, and it takes {} to tell which is the odd one", folder,
                                 machines.size(), fewest),
                     "doctor", hint};
    }
    fleet.machines = static_cast<int>(machines.size());
    std::set<std::string> all;
    for (const auto& [name, parts] : machines)
        for (const auto& [what, aspects] : parts) all.insert(what);
    for (const std::string& what : all) compare_part(machines, what, fleet.odd);
    std::stable_sort(fleet.odd.begin(), fleet.odd.end(),
                     [](const OddMachine& a, const OddMachine& b) { return a.machine < b.machine; });
    return fleet;
}

std::string Fleet::to_string() const {
    std::string text;
    std::string last;
    for (const OddMachine& one : odd) {
        if (one.machine != last)
            text += fmt::format("{} differs from most of the other {}\n", one.machine, machines - 1);
        last = one.machine;
        text += fmt::format("  {}\n", words_of(one));
    }
    if (odd.empty()) text = fmt::format("{} machines are alike\n", machines);
    for (const std::string& note : notes) text += note + "\n";
    return text;
}

std::string Fleet::to_json() const {
    nlohmann::ordered_json json = {
        {"version", 1}, {"machines", machines}, {"odd", nlohmann::ordered_json::array()}};
    for (const OddMachine& one : odd)
        json["odd"].push_back({{"machine", one.machine},
                               {"what", one.what},
                               {"aspect", one.aspect},
                               {"own", one.own},
                               {"others", one.others}});
    json["notes"] = notes;
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sidestep
