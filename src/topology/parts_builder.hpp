// Puts the parts of a topology together, for models and readers.
#pragma once

#include <set>
#include <string>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// "gpu:3": how a device is called where nothing gives it a better name.
std::string device_name(DeviceKind kind, int index);

class PartsBuilder {
public:
    // The next free index of a kind: one above the highest there is.
    int next_index(DeviceKind kind) const;

    // Adds a device and returns where it is. An empty name becomes device_name(); a name that is taken
    // gets the index appended.
    DeviceId add(Device device);

    // Joins two devices by `lanes` PCIe lanes of a generation.
    void join_pcie(DeviceId a, DeviceId b, int generation, int lanes);
    // Joins two devices by `links` NVLinks of `gb_per_s` each.
    void join_nvlink(DeviceId a, DeviceId b, int links, double gb_per_s);
    void join(Link link);

    void note(std::string text);

    // Takes devices and the links that end at them out. DeviceIds from before are void afterwards.
    void remove(const std::set<DeviceId>& ids);

    Topology::Parts& parts() { return parts_; }
    const Topology::Parts& parts() const { return parts_; }
    Device& device(DeviceId id) { return parts_.devices[id]; }
    const Device& device(DeviceId id) const { return parts_.devices[id]; }

private:
    Topology::Parts parts_;
};

// Joins every pair of cpus by a link of kind socket.
void join_cpus(PartsBuilder& builder, double gb_per_s);

// Joins a host bridge, after everything below it was joined to it, to its cpu. The mesh of a processor
// carries what its PCIe lanes bring, so the link is as wide as all that hangs below.
void join_host_bridge(PartsBuilder& builder, DeviceId bridge, DeviceId cpu);

}  // namespace sidestep::topology
