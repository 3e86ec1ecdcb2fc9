#include <sidestep/machines.hpp>

#include <fmt/format.h>

#include <map>

#include <sidestep/topology.hpp>

#include "base/try.hpp"
#include "topology/machine_name_reader.hpp"

namespace sidestep {

namespace {

// "2 x NVIDIA H200, below kvm"
std::string words_of(const Topology& topology) {
    const auto& properties = topology.parts().properties;
    if (const auto told = properties.find("description"); told != properties.end()) return told->second;
    std::map<std::string, int> gpus;
    for (const Device& device : topology.devices())
        if (device.kind == DeviceKind::gpu) ++gpus[device.model.empty() ? "GPU" : device.model];
    std::string words;
    for (const auto& [model, count] : gpus)
        words += fmt::format("{}{} x {}", words.empty() ? "" : ", ", count, model);
    if (const auto guest = properties.find("hypervisor");
        guest != properties.end() && guest->second != "none")
        words += ", in a virtual machine";
    return words.empty() ? "no GPU" : words;
}

}  // namespace

Result<std::vector<KnownMachine>> known_machines() {
    std::vector<KnownMachine> machines;
    for (const std::string& name : Topology::model_names()) {
        SIDESTEP_TRY(const Topology topology, Topology::model(name));
        machines.push_back({name, false, words_of(topology)});
    }
    for (const std::string& name : topology::recorded_names()) {
        SIDESTEP_TRY(const Topology topology, Topology::open(name));
        machines.push_back({name, true, words_of(topology)});
    }
    return machines;
}

}  // namespace sidestep
