// A folder with the files in which a machine shows what cuFile needs; gone with the object.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <stdlib.h>

namespace sidestep::fake_cufile {

class MachineTree {
public:
    MachineTree() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-cufile-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) std::abort();
        root_ = name;
    }
    ~MachineTree() {
        std::error_code ignored;
        std::filesystem::remove_all(root_, ignored);
    }
    MachineTree(const MachineTree&) = delete;
    MachineTree& operator=(const MachineTree&) = delete;

    const std::string& root() const { return root_; }
    void write(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        std::ofstream(root_ + path, std::ios::binary) << text << "\n";
    }
    void folder(const std::string& path) const { std::filesystem::create_directories(root_ + path); }
    void remove(const std::string& path) const { std::filesystem::remove_all(root_ + path); }

    // The NVIDIA driver with open kernel modules, udev, an NVMe drive.
    void driver() const {
        write("/proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04");
        folder("/run/udev/data");
        folder("/sys/class/nvme/nvme0");
    }
    void nvidia_fs() const {
        write("/proc/driver/nvidia-fs/version", "version: 2.28");
        write("/dev/nvidia-fs0", "");
    }
    // Everything that the kernel's own peer-to-peer DMA wants.
    void p2pdma() const {
        write("/proc/sys/kernel/osrelease", "6.8.0-60-generic");
        write("/boot/config-6.8.0-60-generic", "CONFIG_PCI_P2PDMA=y");
        write("/sys/module/nvme_core/parameters/multipath", "N");
        write("/proc/driver/nvidia/params",
              "EnableMSI: 1\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"");
        write("/etc/cufile.json", "{\n// a comment\n\"properties\": {\"use_pci_p2pdma\" : true}}");
    }

private:
    std::string root_;
};

}  // namespace sidestep::fake_cufile
