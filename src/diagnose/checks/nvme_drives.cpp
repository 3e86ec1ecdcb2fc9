#include "diagnose/checks/nvme_drives.hpp"

#include <fmt/format.h>

namespace sidestep::diagnose {

std::vector<NvmeDrive> nvme_drives(const driver::MachineFiles& files) {
    std::vector<NvmeDrive> drives;
    for (const std::string& name : files.names(nvme_folder)) {
        const std::string folder = fmt::format("{}/{}", nvme_folder, name);
        NvmeDrive drive{name, files.line(folder + "/transport").value_or("pcie"), ""};
        if (drive.transport == "pcie") {
            const std::string place = files.real_path(folder + "/device");
            drive.bus_id = place.substr(place.rfind('/') + 1);
        }
        drives.push_back(std::move(drive));
    }
    return drives;
}

}  // namespace sidestep::diagnose
