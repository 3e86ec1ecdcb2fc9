// Whether a machine is what somebody expects it to be.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/checks/device_aspects.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

// The devices of a kind in the order in which people count them.
std::vector<DeviceId> of_kind(const Topology& topology, DeviceKind kind) {
    std::vector<DeviceId> ids;
    for (DeviceId id = 0; id < topology.devices().size(); ++id)
        if (topology.device(id).kind == kind) ids.push_back(id);
    std::sort(ids.begin(), ids.end(),
              [&](DeviceId a, DeviceId b) { return topology.device(a).index < topology.device(b).index; });
    return ids;
}

// One device against the one that should be in its place. Only what both tell is compared.
void compare(const Topology& expected, DeviceId wanted, const Topology& topology, DeviceId found,
             std::vector<Seen>& differences) {
    const std::string& name = topology.device(found).name;
    const auto differ = [&](const std::string& aspect, const std::string& own, const std::string& other) {
        if (own != other && !own.empty() && !other.empty())
            differences.push_back({name, fmt::format("{} is {}, expected {}", aspect, own, other)});
    };
    differ("model", topology.device(found).model, expected.device(wanted).model);
    const Aspects other = aspects_of(expected, wanted);
    for (const auto& [aspect, value] : aspects_of(topology, found)) {
        const auto same = other.find(aspect);
        if (same != other.end()) differ(aspect, value, same->second);
    }
}

// A device that a machine lacks moves the numbers of those after it: bus ids say which it was.
std::vector<std::string> missing_bus_ids(const Topology& expected, const Topology& topology,
                                         DeviceKind kind) {
    std::vector<std::string> missing;
    for (const DeviceId id : of_kind(expected, kind)) {
        const std::string& bus_id = expected.device(id).bus_id;
        const auto same = [&](const Device& device) {
            return device.kind == kind && device.bus_id == bus_id;
        };
        const auto& devices = topology.devices();
        if (std::none_of(devices.begin(), devices.end(), same)) missing.push_back(bus_id);
    }
    return missing;
}

void compare_kind(const Topology& expected, const Topology& topology, DeviceKind kind,
                  std::vector<Seen>& differences) {
    const auto wanted = of_kind(expected, kind);
    const auto found = of_kind(topology, kind);
    if (wanted.size() != found.size()) {
        std::string words = fmt::format("{} of {} are there", found.size(), wanted.size());
        const auto missing = missing_bus_ids(expected, topology, kind);
        // Where none is in its place, the two machines number their buses differently.
        if (!missing.empty() && missing.size() < wanted.size()) words += "; missing: " + listed(missing);
        differences.push_back({std::string(to_string(kind)), words});
    }
    for (std::size_t i = 0; i < std::min(wanted.size(), found.size()); ++i) {
        // By place where both have it, else by number.
        const std::string& bus_id = topology.device(found[i]).bus_id;
        const auto same = std::find_if(wanted.begin(), wanted.end(), [&](DeviceId id) {
            return !bus_id.empty() && expected.device(id).bus_id == bus_id;
        });
        compare(expected, same != wanted.end() ? *same : wanted[i], topology, found[i], differences);
    }
}

}  // namespace

Outcome look_expectation(const Evidence& evidence) {
    if (!evidence.expected) return does_not_apply("nobody said what this machine should be (--expect)");
    const Topology& expected = *evidence.expected;
    std::vector<Seen> differences;
    compare_kind(expected, evidence.topology, DeviceKind::gpu, differences);
    // An expectation that lists no cards or drives does not say that the machine has none.
    for (const DeviceKind kind : {DeviceKind::nic, DeviceKind::drive})
        if (!of_kind(expected, kind).empty()) compare_kind(expected, evidence.topology, kind, differences);
    if (differences.empty()) {
        Outcome outcome = pass("the machine is what was expected: " + expected.name());
        return outcome.saw(expected.name(), fmt::format("{} GPUs", expected.gpu_count()));
    }
    std::vector<std::string> words;
    for (const Seen& one : differences) words.push_back(one.source + ": " + one.value);
    Outcome outcome =
        fail(fmt::format("{} difference{} from {}: {}", differences.size(),
                         differences.size() == 1 ? "" : "s", expected.name(), listed(words, 3)));
    outcome.seen = std::move(differences);
    return outcome;
}

}  // namespace sidestep::diagnose
