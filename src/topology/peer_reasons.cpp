#include "topology/peer_reasons.hpp"

namespace sidestep::topology {

namespace {

using driver::P2pStatus;

// What makes the driver answer so is read in its source, p2p_caps.c of the open kernel modules: MIG first,
// then NVLink, on NVSwitch machines with no way back to PCIe, then PCIe with its own conditions.
PeerAccess refusal(P2pStatus status) {
    switch (status) {
        case P2pStatus::chipset_not_supported:
            return {
                false, false,
                "the driver does not trust this chipset with peer traffic over PCIe (chipset not supported)",
                "put both GPUs below one PCIe switch, or copy through host memory"};
        case P2pStatus::gpu_not_supported:
            return {
                false, false,
                "the driver refuses these GPUs: their architectures differ, or the product has peer access "
                "switched off, as GeForce has (GPU not supported)",
                "use two GPUs of the same data centre or workstation product"};
        case P2pStatus::ioh_topology_not_supported:
            return {false, false,
                    "the two GPUs sit below different Intel root complexes, which forward no peer traffic "
                    "(topology not supported)",
                    "move both GPUs to slots of one socket and root complex"};
        case P2pStatus::disabled_by_regkey:
            return {false, false,
                    "a setting of the NVIDIA driver switches peer access off (disabled by registry key)",
                    "look for RegistryDwords in /proc/driver/nvidia/params and below /etc/modprobe.d"};
        case P2pStatus::not_supported:
            return {
                false, false,
                "the driver supports no peer access here: MIG is on, or NVLink to the NVSwitches is not up, "
                "or "
                "the virtual machine keeps the GPUs apart (not supported)",
                "where MIG is on: nvidia-smi -mig 0; with NVSwitches: see that nvidia-fabricmanager runs"};
        case P2pStatus::ok:
        case P2pStatus::unknown:
            break;
    }
    return {false, false, "the driver refuses peer access and does not say why",
            "nvidia-smi topo -p2p r shows its view"};
}

}  // namespace

PeerAccess peer_access_of(P2pStatus reads, P2pStatus writes, bool atomics) {
    if (reads == P2pStatus::ok && writes == P2pStatus::ok) return {true, atomics, "", ""};
    return refusal(reads != P2pStatus::ok ? reads : writes);
}

}  // namespace sidestep::topology
