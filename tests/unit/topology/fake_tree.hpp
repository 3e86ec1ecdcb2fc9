// A made-up /sys in a folder of its own, as Linux lays it out.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sidestep::topology {

struct PciFiles {
    std::string device_class;
    std::string vendor = "0x10de";
    std::string device = "0x2335";
    std::string numa_node = "-1";
    std::string max_speed = "32.0 GT/s PCIe";
    std::string max_width = "16";
    std::string now_speed = "32.0 GT/s PCIe";
    std::string now_width = "16";
};

class FakeTree {
public:
    FakeTree() {
        // In memory where that can be: hundreds of small files take seconds on a busy disk.
        const bool in_memory = ::access("/dev/shm", W_OK) == 0;
        const std::filesystem::path where = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
        std::string folder = (where / "sidestep-tree-XXXXXX").string();
        root_ = ::mkdtemp(folder.data());
    }
    FakeTree(const FakeTree&) = delete;
    FakeTree& operator=(const FakeTree&) = delete;
    ~FakeTree() {
        std::error_code ignored;
        std::filesystem::remove_all(root_, ignored);
    }

    const std::string& root() const { return root_; }

    void write(const std::string& path, const std::string& text) {
        const std::filesystem::path full = root_ + path;
        std::filesystem::create_directories(full.parent_path());
        std::ofstream(full) << text << "\n";
    }
    void folder(const std::string& path) { std::filesystem::create_directories(root_ + path); }

    void node(int number, unsigned long long kib) {
        const std::string n = std::to_string(number);
        write("/sys/devices/system/node/node" + n + "/meminfo",
              "Node " + n + " MemTotal:       " + std::to_string(kib) + " kB\nNode " + n + " MemFree: 1 kB");
    }

    // `walk` is the real place below /sys/devices, such as "pci0000:15/0000:15:01.0/0000:16:00.0"; its last
    // part is the bus id.
    void pci(const std::string& walk, const PciFiles& files) {
        const std::string at = "/sys/devices/" + walk;
        write(at + "/class", files.device_class);
        write(at + "/vendor", files.vendor);
        write(at + "/device", files.device);
        write(at + "/numa_node", files.numa_node);
        if (!files.max_speed.empty()) {
            write(at + "/max_link_speed", files.max_speed);
            write(at + "/max_link_width", files.max_width);
            write(at + "/current_link_speed", files.now_speed);
            write(at + "/current_link_width", files.now_width);
        }
        folder("/sys/bus/pci/devices");
        std::filesystem::create_symlink("../../../devices/" + walk,
                                        root_ + "/sys/bus/pci/devices/" + walk.substr(walk.rfind('/') + 1));
    }

private:
    std::string root_;
};

constexpr const char* gpu_class = "0x030200";
constexpr const char* bridge_class = "0x060400";
constexpr const char* nic_class = "0x020700";
constexpr const char* nvme_class = "0x010802";
constexpr const char* nvswitch_class = "0x068000";

inline bool has_note(const std::vector<std::string>& notes, const std::string& part) {
    for (const std::string& note : notes) {
        if (note.find(part) != std::string::npos) return true;
    }
    return false;
}

}  // namespace sidestep::topology
