// A made-up machine for the doctor's checks: files, NVML, and what the CUDA and RDMA libraries say.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/check.hpp"
#include "diagnose/evidence.hpp"
#include "tests/unit/topology/fake_nvml.hpp"
#include "tests/unit/topology/fake_tree.hpp"
#include "topology/machine_source_reader.hpp"

namespace sidestep::diagnose {

// Empty at first: no /sys, no /proc, no driver, as in a sandbox that hides everything. The Evidence reads
// the machine's files, so the Machine has to outlive it.
class Machine {
public:
    topology::FakeTree tree;
    topology::FakeNvml nvml;
    bool has_nvml = false;  // false: the Evidence has no NVML, whatever `nvml` holds
    driver::CudaFacts cuda;
    driver::VerbsFacts verbs;
    std::optional<ProbeReport> probe;

    // The bytes alone; FakeTree::write ends them with a newline.
    void raw(const std::string& path, std::string_view bytes) {
        const std::filesystem::path full = tree.root() + path;
        std::filesystem::create_directories(full.parent_path());
        std::ofstream(full, std::ios::binary) << bytes;
    }
    void remove(const std::string& path) { std::filesystem::remove_all(tree.root() + path); }
    void link(const std::string& path, const std::string& target) {
        const std::filesystem::path full = tree.root() + path;
        std::filesystem::create_directories(full.parent_path());
        std::filesystem::remove(full);
        std::filesystem::create_symlink(target, full);
    }
    // A link to another path of the made-up machine, relative as those in /sys are.
    void link_to(const std::string& path, const std::string& to) {
        const std::filesystem::path folder = std::filesystem::path(path).parent_path();
        link(path, std::filesystem::path(to).lexically_relative(folder).string());
    }

    // Where the device's files really lie; `walk` as for FakeTree::pci.
    static std::string folder(const std::string& walk) { return "/sys/devices/" + walk; }
    // /proc/self/environ of a process with these variables ("NAME=VALUE").
    void environment(const std::vector<std::string>& variables) {
        std::string text;
        for (const std::string& variable : variables) text += variable + '\0';
        raw("/proc/self/environ", text);
    }
    // The device belongs to an IOMMU group of that type ("identity", "DMA", "DMA-FQ").
    void iommu_group(const std::string& walk, int group, const std::string& type) {
        const std::string at = "/sys/kernel/iommu_groups/" + std::to_string(group);
        tree.write(at + "/type", type);
        link_to(at + "/devices/" + walk.substr(walk.rfind('/') + 1), folder(walk));
        link_to(folder(walk) + "/iommu_group", at);
    }
    // A port's configuration space as root reads it: 4096 bytes with an access control (ACS) capability.
    void acs(const std::string& walk, unsigned capability, unsigned control) {
        std::string config(4096, '\0');
        const auto put16 = [&](std::size_t at, unsigned value) {
            config[at] = static_cast<char>(value & 0xff);
            config[at + 1] = static_cast<char>(value >> 8 & 0xff);
        };
        put16(0x100, 0x000d);  // the capability's number
        put16(0x102, 0x0001);  // version 1, no further capability
        put16(0x104, capability);
        put16(0x106, control);
        raw(folder(walk) + "/config", config);
    }
    // As a process without CAP_SYS_ADMIN reads it.
    void short_config(const std::string& walk) { raw(folder(walk) + "/config", std::string(64, '\0')); }

    // Read as the doctor reads a machine.
    Evidence evidence() const {
        topology::MachineSource source{driver::MachineFiles(tree.root()), nullptr, ""};
        if (has_nvml) {
            source.nvml = std::make_shared<topology::FakeNvml>(nvml);
        } else {
            source.no_nvml = "the library libnvidia-ml.so.1 was not found";
        }
        auto machine = topology::read_topology(source);
        EXPECT_TRUE(machine.ok()) << machine.error().to_string();
        return {*machine, source.files, source.nvml, source.no_nvml, cuda, verbs, probe};
    }
};

// A process as a healthy machine starts it: limits, capabilities, CPUs and memory nodes.
inline void healthy_process(Machine& machine, const std::string& cpus, const std::string& nodes) {
    machine.raw("/proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max stack size            8388608              unlimited            bytes     \n"
                "Max open files            1048576              1048576              files     \n"
                "Max locked memory         unlimited            unlimited            bytes     \n");
    machine.environment({"PATH=/usr/bin", "HOME=/home"});
    machine.raw("/proc/self/status", "Name:\tsidestep\nCapEff:\t0000000000000000\nCpus_allowed_list:\t" +
                                         cpus + "\nMems_allowed_list:\t" + nodes + "\n");
    machine.tree.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt");
    machine.tree.write("/proc/sys/kernel/osrelease", "6.8.0-60-generic");
    machine.tree.write("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no");
}

// A bare metal server that has nothing wrong: two sockets, four H200 joined by NVSwitches that it sees, each
// GPU below a PCIe switch of its own together with room for a network card, IOMMU in pass-through.
class H200Machine : public Machine {
public:
    static constexpr int gpu_count = 4;
    // Where things are: root port, upstream port, downstream port and GPU; "b" has the place beside the GPU.
    static int socket(int gpu) { return gpu / 2; }
    static std::string root_port(int gpu) {
        const std::string bus = "0" + std::to_string(1 + 2 * gpu);
        return "pci0000:" + bus + "/0000:" + bus + ":01.0";
    }
    static std::string upstream(int gpu) { return root_port(gpu) + "/0000:" + below(gpu, 0) + ":00.0"; }
    static std::string downstream(int gpu, int port = 0) {
        return upstream(gpu) + "/0000:" + below(gpu, 1) + ":0" + std::to_string(port) + ".0";
    }
    static std::string bus_id(int gpu) { return "0000:" + below(gpu, 2) + ":00.0"; }
    static std::string gpu_walk(int gpu) { return downstream(gpu) + "/" + bus_id(gpu); }
    // The second port of the GPU's switch: for a network card or drive of the caller.
    static std::string beside(int gpu) { return downstream(gpu, 1) + "/0000:" + below(gpu, 3) + ":00.0"; }

    H200Machine() {
        healthy_process(*this, "0-127", "0-1");
        tree.write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme lahf_lm");
        tree.write("/sys/devices/system/node/online", "0-1");
        for (int node = 0; node < 2; ++node) {
            tree.node(node, 1024ULL << 20);
            tree.write("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist",
                       node == 0 ? "0-63" : "64-127");
        }
        for (int gpu = 0; gpu < gpu_count; ++gpu) add_gpu(gpu);
        tree.pci("pci0000:01/0000:01:03.0/0000:70:00.0", {topology::nvswitch_class, "0x10de", "0x22a3", "0"});
        raw("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n");
        raw("/proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-caps\n");
        has_nvml = true;
        nvml.confidential = false;
        cuda.loaded = true;
        cuda.version = 13000;
    }

private:
    static std::string below(int gpu, int bus) {
        return std::to_string(gpu + 1) + std::string(1, static_cast<char>('a' + bus));
    }

    void add_gpu(int gpu) {
        const std::string node = std::to_string(socket(gpu));
        topology::PciFiles port{topology::bridge_class, "0x1000", "0xc030", node};
        for (const std::string& walk :
             {root_port(gpu), upstream(gpu), downstream(gpu, 0), downstream(gpu, 1)}) {
            tree.pci(walk, port);
            iommu_group(walk, 10 * (gpu + 1), "identity");
        }
        tree.pci(gpu_walk(gpu), {topology::gpu_class, "0x10de", "0x2335", node});
        iommu_group(gpu_walk(gpu), 10 * (gpu + 1), "identity");
        tree.write(folder(gpu_walk(gpu)) + "/resource",
                   "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
                   "0x0000380000000000 0x0000383fffffffff 0x000000000014220c");  // 256 GiB

        auto told = topology::h200(bus_id(gpu));
        told.facts.bar1 = Bytes{256} << 30;
        told.facts.pcie_generation_now = 5;
        told.facts.pcie_width_now = 16;
        told.facts.numa_node = socket(gpu);
        told.facts.mig = false;
        told.facts.virtualization = driver::NvmlVirtualization::none;
        told.fabric = driver::NvmlFabric{driver::FabricState::completed, 0, std::string(32, '0'), 0, 0};
        nvml.gpus.push_back(told);
        cuda.gpus.push_back({bus_id(gpu),
                             {{"DMA_BUF_SUPPORTED", 1},
                              {"GPU_DIRECT_RDMA_SUPPORTED", 1},
                              {"GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", 1},
                              {"HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", 1},
                              {"HANDLE_TYPE_FABRIC_SUPPORTED", 1},
                              {"VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 1}}});
    }
};

// Four H200 passed through to a virtual machine: everything on bus 00 of one root without bridges, no NUMA
// nodes of devices, no IOMMU, hidden NVSwitches.
class H200Guest : public Machine {
public:
    static std::string bus_id(int gpu) { return "0000:00:0" + std::to_string(4 + gpu) + ".0"; }
    static std::string gpu_walk(int gpu) { return "pci0000:00/" + bus_id(gpu); }

    H200Guest() {
        H200Machine metal;
        nvml = metal.nvml;
        cuda = metal.cuda;
        has_nvml = true;
        healthy_process(*this, "0-63", "0");
        tree.write("/proc/cmdline", "console=ttyS0 root=/dev/vda");
        tree.write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm");
        tree.write("/sys/class/dmi/id/sys_vendor", "QEMU");
        tree.write("/sys/devices/system/node/online", "0");
        tree.node(0, 528ULL << 20);
        tree.write("/sys/devices/system/node/node0/cpulist", "0-63");
        for (int gpu = 0; gpu < H200Machine::gpu_count; ++gpu) {
            tree.pci(gpu_walk(gpu), {topology::gpu_class});
            tree.write(folder(gpu_walk(gpu)) + "/resource",
                       "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
                       "0x0000380000000000 0x0000383fffffffff 0x000000000014220c");
            auto& told = nvml.gpus[static_cast<std::size_t>(gpu)];
            told.facts.bus_id = bus_id(gpu);
            told.facts.numa_node = -1;
            told.facts.virtualization = driver::NvmlVirtualization::passthrough;
            cuda.gpus[static_cast<std::size_t>(gpu)].bus_id = bus_id(gpu);
        }
    }
};

// What the check of that name says of a machine. Names no check: an Outcome that says so.
inline Outcome look(std::string_view id, const Evidence& evidence) {
    for (const Check& check : all_checks()) {
        if (check.id == id) return check.look(evidence);
    }
    ADD_FAILURE() << "there is no check " << id;
    return {};
}
inline Outcome see(const Machine& machine, std::string_view id) {
    return look(id, machine.evidence());
}
inline Verdict verdict(const Machine& machine, std::string_view id) {
    return see(machine, id).verdict;
}

inline void no_nvlinks(Machine& machine) {
    for (auto& gpu : machine.nvml.gpus) gpu.links.clear();
}

// Whether the outcome's evidence has a source and a value with these parts.
inline bool saw(const Outcome& outcome, std::string_view source, std::string_view value) {
    for (const Seen& seen : outcome.seen) {
        if (seen.source.find(source) != std::string::npos && seen.value.find(value) != std::string::npos)
            return true;
    }
    return false;
}

}  // namespace sidestep::diagnose
