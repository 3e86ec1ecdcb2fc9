// Further made-up machines: those on which a check must not cry wolf.
#pragma once

#include <string>

#include "tests/unit/diagnose/fake_machine.hpp"

namespace sidestep::diagnose {

// Two GeForce cards at the ports of one processor, eight lanes each, idle; the driver gives no peer access.
// The IOMMU is off, as desktop boards leave it.
class GeforceBox : public Machine {
public:
    static std::string walk(int gpu) {
        return gpu == 0 ? "pci0000:00/0000:00:01.0/0000:01:00.0" : "pci0000:00/0000:00:01.1/0000:02:00.0";
    }

    GeforceBox() {
        healthy_process(*this, "0-15", "0");
        tree.write("/proc/cmdline", "root=/dev/sda1 quiet");
        tree.write("/proc/cpuinfo", "flags\t\t: fpu vme");
        tree.folder("/sys/kernel/iommu_groups");
        tree.node(0, 64ULL << 20);
        tree.write("/sys/devices/system/node/node0/cpulist", "0-15");
        for (int gpu = 0; gpu < 2; ++gpu) {
            topology::PciFiles port{topology::bridge_class, "0x8086", "0x460d"};
            port.max_width = "8";
            port.now_width = "8";
            port.now_speed = "2.5 GT/s PCIe";
            const std::string at = walk(gpu);
            tree.pci(at.substr(0, at.rfind('/')), port);
            topology::PciFiles card{"0x030000", "0x10de", "0x2684"};
            card.max_speed = "16.0 GT/s PCIe";
            card.now_width = "8";
            card.now_speed = "2.5 GT/s PCIe";
            tree.pci(at, card);
            topology::FakeNvml::Gpu told;
            told.facts.name = "NVIDIA GeForce RTX 4090";
            told.facts.bus_id = at.substr(at.rfind('/') + 1);
            told.facts.memory = Bytes{24564} << 20;
            told.facts.bar1 = Bytes{32} << 30;
            told.facts.cc_major = 8;
            told.facts.cc_minor = 9;
            nvml.gpus.push_back(told);
            cuda.gpus.push_back({told.facts.bus_id, {}});
        }
        has_nvml = true;
        cuda.loaded = true;
        for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
            for (const auto asked : {driver::P2pCapability::read, driver::P2pCapability::write})
                nvml.p2p_status[{from, to, asked}] = driver::P2pStatus::chipset_not_supported;
        }
    }
};

// A laptop with the processor's own graphics, an NVMe drive and limits as they come.
class Laptop : public Machine {
public:
    Laptop() {
        healthy_process(*this, "0-7", "0");
        raw("/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max stack size            8388608              unlimited            bytes     \n"
            "Max open files            1024                 1048576              files     \n"
            "Max locked memory         8388608              8388608              bytes     \n");
        tree.write("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes");
        tree.write("/proc/cpuinfo", "flags\t\t: fpu vme");
        tree.node(0, 16ULL << 20);
        tree.write("/sys/devices/system/node/node0/cpulist", "0-7");
        tree.pci("pci0000:00/0000:00:02.0", {"0x030000", "0x8086", "0x9a49"});
        tree.pci("pci0000:00/0000:00:06.0", {topology::bridge_class, "0x8086", "0x9a09"});
        const std::string drive = "pci0000:00/0000:00:06.0/0000:01:00.0";
        tree.pci(drive, {topology::nvme_class, "0x144d", "0xa80a"});
        tree.folder(folder(drive) + "/nvme/nvme0");
        iommu_group(drive, 14, "DMA-FQ");
    }
};

// A sandbox: the PCI tree and everything of the process is hidden, NVML and CUDA answer.
class Sandbox : public Machine {
public:
    Sandbox() {
        H200Guest guest;
        nvml = guest.nvml;
        cuda = guest.cuda;
        has_nvml = true;
    }
};

}  // namespace sidestep::diagnose
