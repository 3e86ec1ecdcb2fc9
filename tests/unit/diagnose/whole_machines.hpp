// Made-up machines with network cards, drives, mounts and namespaces, as they are found in the field.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/diagnose/other_machines.hpp"

namespace sidestep::diagnose {

// A line of /proc/self/mountinfo.
inline std::string mount_line(const std::string& device, const std::string& point, const std::string& type,
                              const std::string& source, const std::string& options) {
    return "36 25 " + device + " / " + point + " rw,relatime shared:1 - " + type + " " + source + " " +
           options + "\n";
}

// Capabilities, namespaces and memory of a process on a host without containers.
inline void host_process(Machine& machine) {
    machine.link("/proc/self/ns/ipc", "ipc:[4026531839]");
    machine.link("/proc/self/ns/pid", "pid:[4026531836]");
    machine.link("/proc/self/cwd", "/home");
    machine.raw("/proc/self/status", "Name:\tsidestep\nCapEff:\t0000000000000000\nSeccomp:\t0\n");
    machine.tree.write("/proc/sys/kernel/yama/ptrace_scope", "0");
    machine.tree.write("/proc/meminfo", "MemTotal:       2113000000 kB\nMemFree: 1 kB");
    machine.tree.folder("/sys/class/net");
}

inline void in_docker(Machine& machine) {
    machine.raw("/.dockerenv", "");
    machine.link("/proc/self/ns/ipc", "ipc:[4026533001]");
    machine.link("/proc/self/ns/pid", "pid:[4026533002]");
}

// A bare metal server with nothing wrong: beside each of four GPUs, below the same switch, a RoCE card and an
// NVMe drive; nvidia-peermem, nvidia-fs and P2PDMA mode are all there.
class HgxServer : public H200Machine {
public:
    static std::string card_name(int card) { return "mlx5_" + std::to_string(card); }
    static std::string card_bus_id(int card) { return last(beside(card)); }
    static std::string drive_walk(int drive) {
        return downstream(drive, 2) + "/0000:" + std::to_string(drive + 1) + "e:00.0";
    }
    static std::string drive_bus_id(int drive) { return last(drive_walk(drive)); }
    static std::string card_folder(int card) {
        return folder(beside(card)) + "/infiniband/" + card_name(card);
    }
    static std::string port(int card) { return card_folder(card) + "/ports/1"; }
    static std::string netdev(int card) { return "eth" + std::to_string(card); }

    HgxServer() {
        host_process(*this);
        tree.write("/proc/kallsyms", "0000000000000000 d p2pdma_pgmap_ops");
        tree.write("/sys/module/nvidia_peermem/version", "580.159.04");
        tree.write("/proc/driver/nvidia-fs/version", "version: 2.28");
        tree.write("/proc/driver/nvidia-fs/modules", "nvme: 1");
        tree.write("/proc/driver/nvidia-fs/stats", "Bar1-map\t\t\t: n=12 ok=12 err=0 free=3 callbacks=0");
        tree.write("/sys/module/nvme_core/parameters/multipath", "N");
        tree.write("/proc/driver/nvidia/params",
                   "EnableMSI: 1\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"");
        tree.write("/etc/cufile.json",
                   "{\n// a comment, as NVIDIA ships them\n\"properties\": {\"use_pci_p2pdma\": true}}");
        verbs.loaded = true;
        for (int i = 0; i < gpu_count; ++i) {
            add_card(i);
            add_drive(i);
        }
        tree.write(
            "/proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" + routes_);
        mounts_ = mount_line("8:1", "/", "ext4", "/dev/sda1", "rw") +
                  mount_line("0:24", "/dev/shm", "tmpfs", "tmpfs", "rw,inode64") + mounts_;
        raw("/proc/self/mountinfo", mounts_);
        tree.write("/run/udev/data/b8:1", "E:ID_FS_USAGE=filesystem");
    }

    // The configuration space of a card as root reads it, with a PCI Express capability at 0x60.
    void card_config(int card, unsigned device_control) {
        std::string config(256, '\0');
        config[0x34] = 0x60;
        config[0x60] = 0x10;
        config[0x68] = static_cast<char>(device_control & 0xff);
        config[0x69] = static_cast<char>(device_control >> 8 & 0xff);
        raw(folder(beside(card)) + "/config", config);
    }
    void without_cards() {
        for (int card = 0; card < gpu_count; ++card) {
            remove("/sys/bus/pci/devices/" + card_bus_id(card));
            remove("/sys/class/infiniband/" + card_name(card));
        }
        verbs.devices.clear();
    }
    void without_drives() {
        for (int drive = 0; drive < gpu_count; ++drive) {
            remove("/sys/bus/pci/devices/" + drive_bus_id(drive));
            remove("/sys/class/nvme/nvme" + std::to_string(drive));
        }
    }
    void gid(int card, int index, const std::string& address, const std::string& type) {
        tree.write(port(card) + "/gids/" + std::to_string(index), address);
        tree.write(port(card) + "/gid_attrs/types/" + std::to_string(index), type);
        tree.write(port(card) + "/gid_attrs/ndevs/" + std::to_string(index), netdev(card));
    }
    const std::string& healthy_mounts() const { return mounts_; }

private:
    static std::string last(const std::string& walk) { return walk.substr(walk.rfind('/') + 1); }

    void add_card(int card) {
        const std::string number = std::to_string(card);
        tree.pci(beside(card), {"0x020000", "0x15b3", "0x1021", std::to_string(socket(card))});
        link_to("/sys/class/infiniband/" + card_name(card), card_folder(card));
        tree.folder(card_folder(card));
        link_to(card_folder(card) + "/device", folder(beside(card)));
        tree.folder(folder(beside(card)) + "/net/" + netdev(card));
        tree.write(port(card) + "/state", "4: ACTIVE");
        tree.write(port(card) + "/phys_state", "5: LinkUp");
        tree.write(port(card) + "/link_layer", "Ethernet");
        tree.write(port(card) + "/counters/port_rcv_packets", "900000000");
        for (const char* counter :
             {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"})
            tree.write(port(card) + "/hw_counters/" + counter, "3");
        gid(card, 0, "fe80:0000:0000:0000:0a00:27ff:fe00:000" + number, "IB/RoCE v1");
        gid(card, 1, "fe80:0000:0000:0000:0a00:27ff:fe00:000" + number, "RoCE v2");
        gid(card, 2, "0000:0000:0000:0000:0000:ffff:0a00:000" + number, "IB/RoCE v1");
        gid(card, 3, "0000:0000:0000:0000:0000:ffff:0a00:000" + number, "RoCE v2");
        gid(card, 4, "0000:0000:0000:0000:0000:0000:0000:0000", "");
        tree.write("/sys/class/infiniband_verbs/uverbs" + number + "/ibdev", card_name(card));
        tree.write("/dev/infiniband/uverbs" + number, "");
        verbs.devices.push_back(
            {card_name(card), true, "", true, "ibv_reg_dmabuf_mr(fd -1): EBADF, it would take a real one"});
        card_config(card, 0x2910 | 0x10);
        routes_ += netdev(card) + "\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";  // 10.0.0.0/24
    }

    void add_drive(int drive) {
        const std::string name = "nvme" + std::to_string(drive);
        tree.pci(downstream(drive, 2),
                 {topology::bridge_class, "0x1000", "0xc030", std::to_string(socket(drive))});
        tree.pci(drive_walk(drive),
                 {topology::nvme_class, "0x144d", "0xa80a", std::to_string(socket(drive))});
        const std::string at = folder(drive_walk(drive)) + "/nvme/" + name;
        tree.write(at + "/transport", "pcie");
        link_to(at + "/device", folder(drive_walk(drive)));
        link_to("/sys/class/nvme/" + name, at);
        tree.folder(at + "/" + name + "n1");
        const std::string device = "259:" + std::to_string(drive);
        link_to("/sys/dev/block/" + device, at + "/" + name + "n1");
        mounts_ +=
            mount_line(device, "/data" + std::to_string(drive), "xfs", "/dev/" + name + "n1", "rw,attr2");
        tree.write("/run/udev/data/b" + device, "E:ID_FS_USAGE=filesystem");
    }

    std::string mounts_;
    std::string routes_;
};

// Four H200 in a virtual machine, as a cloud lends them: a virtio disk and network card, no udev, a kernel
// without PCI peer-to-peer DMA, everything run by root.
class CloudGuest : public H200Guest {
public:
    CloudGuest() {
        host_process(*this);
        raw("/proc/self/status", "Name:\tsidestep\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n");
        remove("/proc/sys/kernel/yama");
        tree.write("/proc/sys/kernel/osrelease", "6.18.5");
        tree.write("/boot/config-6.18.5", "CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set");
        raw("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n");
        tree.write("/proc/driver/nvidia/params", "RegistryDwords: \"\"");
        tree.pci("pci0000:00/0000:00:02.0", {"0x020000", "0x1af4", "0x1041"});
        tree.pci("pci0000:00/0000:00:03.0", {"0x018000", "0x1af4", "0x1042"});
        tree.folder(folder("pci0000:00/0000:00:03.0") + "/virtio1/block/vda");
        link_to("/sys/block/vda", folder("pci0000:00/0000:00:03.0") + "/virtio1/block/vda");
        link_to("/sys/dev/block/254:0", folder("pci0000:00/0000:00:03.0") + "/virtio1/block/vda");
        raw("/proc/self/mountinfo", mount_line("254:0", "/", "ext4", "/dev/vda", "rw") +
                                        mount_line("0:20", "/dev/shm", "tmpfs", "tmpfs", "rw"));
        verbs.loaded = true;
        verbs.reason = "ibv_get_device_list failed: Function not implemented";
    }
};

}  // namespace sidestep::diagnose
