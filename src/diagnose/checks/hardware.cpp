// Hardware that fails, or is about to: the words. What looks for it is in lost_gpus.cpp, odd_devices.cpp,
// error_counters.cpp and expectation.cpp.
#include "diagnose/checks/looks.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Check expectation = {
    "expectation",
    CheckGroup::hardware,
    "The machine is not what was expected",
    "A rented or repaired machine has fewer GPUs, slower cards or less memory than its neighbours.",
    "Where `--expect` names a built-in machine, a topology file or a record: the number of GPUs, network "
    "cards and "
    "drives, and the model, memory, PCIe link, NVLinks and port of each. A device is compared with the one "
    "of the "
    "same bus id, else with the one of the same number; what one of the two does not tell is left out.",
    "What the evidence names.",
    "See for each difference what the other checks say of that device. Where the machine was changed on "
    "purpose, "
    "make a new record of it.",
    "sidestep topo diff EXPECTED live",
    false,
    "The built-in machines (docs/machines.md) follow the vendors' user guides.",
    look_expectation,
    true};

constexpr Check gpu_lost = {
    "gpu-lost",
    CheckGroup::hardware,
    "The driver has lost a GPU",
    "A machine of eight GPUs shows seven; `nvidia-smi` prints `Unable to determine the device handle` or "
    "`GPU is "
    "lost`; the log has Xid 79.",
    "The GPUs of the PCI tree that the NVIDIA driver has taken, against those that NVML lists and opens. A "
    "container or a job of a scheduler that was given some of the GPUs is not blamed.",
    "The whole GPU, and every job that wants all of them.",
    "See what the log says of it (check xid). A GPU that fell off the bus comes back with a start of the "
    "machine "
    "only; where it falls again, look at its power and seat, and give it to the vendor.",
    "dmesg | grep -i 'NVRM: Xid'",
    true,
    "NVIDIA Xid catalog (79); NVIDIA GPU debug guidelines; Llama Team, The Llama 3 Herd of Models, table 5.",
    look_lost_gpus,
    true};

constexpr Check xid = {"xid",
                       CheckGroup::hardware,
                       "The driver logged errors of the hardware (Xid)",
                       "Programs die with `CUDA error: an illegal memory access`, `unspecified launch "
                       "failure` or `device-side assert`, "
                       "on one machine and not on others.",
                       "The kernel's log of this boot: lines `NVRM: Xid`. Those that a program causes by "
                       "itself (13, 31, 43, 45) are "
                       "no fault. Many systems show the log to root alone.",
                       "The GPU that is named, until it is reset or replaced.",
                       "Look each number up in NVIDIA's Xid catalog. Take the GPU out of use, reset it, and "
                       "run the vendor's test; "
                       "what comes again is a case for the vendor.",
                       "dcgmi diag -r 2",
                       false,
                       "NVIDIA Xid catalog; NVIDIA GPU debug guidelines.",
                       look_xid};

constexpr Check odd_one_out = {
    "odd-one-out",
    CheckGroup::hardware,
    "One device is not like the others of its kind",
    "One rank of a job is slower than all others, and so is the whole job.",
    "GPUs, network cards and drives of one product, three or more: lanes of the PCIe link, memory, BAR1, "
    "active "
    "NVLinks, rate and state of the port, MIG. What more than half of them have is taken to be right.",
    "The difference between the rates of the links, for everything that goes by this device; jobs wait for "
    "the "
    "slowest.",
    "Seat the device and its cables again, look for a slot with fewer lanes or a split one in the BIOS, and "
    "compare "
    "its settings with those of a neighbour.",
    "sidestep topo",
    false,
    "Azure/azurehpc-health-checks; NVIDIA/DCGM (PCIe width checks).",
    look_odd_devices,
    true};

constexpr Check pcie_errors = {
    "pcie-errors",
    CheckGroup::hardware,
    "A PCIe link makes errors",
    "Copies from and to a device are slower than on its neighbours, and differ from run to run.",
    "The replay counter of each GPU by NVML, and the error reports (AER) of each port between a device and "
    "the "
    "processor. 1,000 corrected errors count, and any that was not corrected, except unsupported requests, "
    "which "
    "are asked on purpose.",
    "Every packet that is sent again; with errors that are not corrected the device is about to fall off the "
    "bus.",
    "Seat the card and its riser or cable again. Watch whether the counter rises under load: one that rises "
    "is a "
    "bad contact, and a case for the vendor.",
    "grep TOTAL /sys/bus/pci/devices/*/aer_dev_*; nvidia-smi --query-gpu=index,pcie.replay_counter "
    "--format=csv",
    false,
    "Linux, Documentation/PCI/pcieaer-howto.rst and ABI/testing/sysfs-bus-pci-devices-aer_stats; NVML's "
    "reference "
    "(nvmlDeviceGetPcieReplayCounter).",
    look_pcie_errors,
    true};

constexpr Check nvlink_errors = {
    "nvlink-errors",
    CheckGroup::hardware,
    "NVLinks make errors",
    "Collectives are slow on one machine, or stop with Xid 74.",
    "CRC errors, replays and recoveries over all NVLinks of each GPU, as NVML counts them. 1,000 errors "
    "count, and "
    "any recovery.",
    "Every packet that is sent again; a link that recovers stops its traffic meanwhile.",
    "Look which link it is, and whether the counter rises under load. Seat the board or the bridge again; a "
    "link "
    "that goes on is a case for the vendor.",
    "nvidia-smi nvlink -e",
    false,
    "NVML's reference (nvmlDeviceGetNvLinkErrorCounter); NVIDIA/nccl#2329.",
    look_nvlink_errors};

constexpr Check gpu_memory_errors = {
    "gpu-memory-errors",
    CheckGroup::hardware,
    "The memory of a GPU makes errors",
    "Programs die with an ECC error, or Xid 48, 63, 64, 94 or 95.",
    "Errors that were not corrected since the driver was loaded, and rows that were replaced, wait to be, or "
    "cannot "
    "be, as NVML tells them. Corrected errors are no fault.",
    "The programs that use that memory; with no spare row left, the GPU.",
    "Take the GPU out of use and reset it; where errors come again, or no spare row is left, it is a case "
    "for the "
    "vendor.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER",
    false,
    "NVIDIA GPU memory error management; NVML's reference (nvmlDeviceGetRemappedRows).",
    look_gpu_memory};

constexpr Check throttling = {
    "throttling",
    CheckGroup::hardware,
    "Heat or a power brake slows a GPU down",
    "A GPU computes at a fraction of its clock, some time after a job has started.",
    "Why the clocks are lowered at this moment, as NVML tells it: hardware slowdown, temperature, power "
    "brake. The "
    "limit of power alone is how a busy GPU works, and does not count. Look while a job runs.",
    "Half of the clock or more, for as long as it lasts; copies suffer less than computation.",
    "Look at fans, filters and the air in front of the machine, and at its power supplies: a power brake "
    "comes "
    "from outside of the GPU.",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
    false,
    "NVML's reference (nvmlClocksEventReasons).",
    look_throttling};

}  // namespace

std::vector<Check> hardware_checks() {
    return {expectation,   gpu_lost,          xid,       odd_one_out, pcie_errors,
            nvlink_errors, gpu_memory_errors, throttling};
}

}  // namespace sidestep::diagnose
