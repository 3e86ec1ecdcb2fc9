// The machine this process runs on.
#include <sidestep/topology.hpp>

#include "driver/machine_files.hpp"
#include "driver/nvml.hpp"
#include "topology/nvml_reader.hpp"
#include "topology/sysfs_reader.hpp"

namespace sidestep {

Result<Topology> Topology::live(const std::string& root) {
    topology::PartsBuilder builder = topology::read_sysfs(driver::MachineFiles(root));
    builder.parts().name = root.empty() ? "live" : "recorded";
    builder.parts().emulated = !root.empty();
    if (root.empty()) {
        const auto nvml = driver::load_nvml();
        if (nvml.ok()) {
            topology::merge_nvml(builder, **nvml);
        } else {
            builder.note(nvml.error().message);
        }
    } else {
        builder.note("read from " + root + ": NVML speaks for this machine only and is not asked");
    }
    return create(std::move(builder.parts()));
}

}  // namespace sidestep
