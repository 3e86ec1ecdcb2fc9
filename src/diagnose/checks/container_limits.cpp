// What a container keeps from its processes: shared memory, each other, all of the GPUs.
#include <fmt/format.h>

#include <cstdlib>

#include <sidestep/units.hpp>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/mounts.hpp"
#include "diagnose/checks/process_facts.hpp"

namespace sidestep::diagnose {

namespace {

constexpr Bytes enough_shm = 1_GiB;  // what NCCL's troubleshooting pages ask for

Bytes total_memory(const driver::MachineFiles& files) {
    const std::string key = "MemTotal:";
    const auto text = files.text("/proc/meminfo");
    const auto at = text ? text->find(key) : std::string::npos;
    if (at == std::string::npos) return 0;
    return static_cast<Bytes>(std::strtoull(text->c_str() + at + key.size(), nullptr, 10)) << 10;
}

// A tmpfs's "size=65536k"; also in MiB, GiB or percent of the memory (Linux,
// Documentation/filesystems/tmpfs.rst). Without one it is half of the memory. 0: cannot be told.
Bytes tmpfs_size(const driver::MachineFiles& files, const std::string& size) {
    if (size.empty()) return total_memory(files) / 2;
    char* end = nullptr;
    const Bytes number = std::strtoull(size.c_str(), &end, 10);
    if (number == 0) return total_memory(files);  // no bound
    switch (*end) {
        case 'k':
        case 'K':
            return number << 10;
        case 'm':
        case 'M':
            return number << 20;
        case 'g':
        case 'G':
            return number << 30;
        case '%':
            return total_memory(files) / 100 * number;
        default:
            return number;
    }
}

Outcome with_shm_remedy(Outcome outcome, bool contained) {
    if (contained) return outcome;
    outcome.remedy = "Make the file system larger; a line for /dev/shm in /etc/fstab keeps it so.";
    outcome.command = "mount -o remount,size=50% /dev/shm";
    return outcome;
}

// GPUs in the PCI tree, whether this process may use them or not.
int gpus_in_tree(const driver::MachineFiles& files) {
    int count = 0;
    for (const std::string& bus_id : files.names("/sys/bus/pci/devices")) {
        const std::string folder = "/sys/bus/pci/devices/" + bus_id;
        const long kind = files.number(folder + "/class").value_or(0) >> 8;
        if ((kind == 0x0300 || kind == 0x0302) && files.number(folder + "/vendor").value_or(0) == 0x10de)
            ++count;
    }
    return count;
}

// How many GPUs there are, how many this process is given, and how many CUDA shows it.
struct VisibleGpus {
    int there = 0;
    int given = 0;
    int shown = 0;
};

VisibleGpus counted_gpus(const Evidence& evidence) {
    VisibleGpus gpus;
    gpus.given = evidence.topology.gpu_count();
    gpus.there = std::max(gpus.given, gpus_in_tree(evidence.files));
    const bool listed = evidence.cuda.loaded && evidence.cuda.init_code == 0;
    gpus.shown = listed ? static_cast<int>(evidence.cuda.gpus.size()) : gpus.given;
    return gpus;
}

constexpr int cap_sys_ptrace = 19;

}  // namespace

Outcome look_shm(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no NVIDIA GPU");
    const bool contained = !container_words(evidence).empty();
    const auto all = mounts(evidence.files);
    if (!all) {
        Outcome outcome = unknown("the size of /dev/shm cannot be read");
        outcome.saw(mounts_path, "cannot be read");
        outcome.remedy = "Look at it yourself.";
        outcome.command = "df -h /dev/shm";
        return outcome;
    }
    const Mount* mount = mount_of(*all, "/dev/shm");
    if (mount == nullptr || mount->point != "/dev/shm") {
        Outcome outcome = warn("/dev/shm is not a file system of its own");
        outcome.saw(mounts_path, "has no /dev/shm");
        return with_shm_remedy(std::move(outcome), contained);
    }
    const std::string given = mount->option("size");
    const Bytes size = tmpfs_size(evidence.files, given);
    Outcome outcome;
    if (size == 0) {
        outcome = unknown("/dev/shm is half of the memory, which cannot be read");
        outcome.remedy = "Look at it yourself.";
        outcome.command = "df -h /dev/shm";
    } else if (size < enough_shm) {
        outcome = with_shm_remedy(warn(fmt::format("/dev/shm holds {} only", format_bytes(size))), contained);
    } else {
        outcome = pass(fmt::format("/dev/shm holds {}", format_bytes(size)));
    }
    outcome.saw(fmt::format("{}, /dev/shm", mounts_path),
                given.empty() ? "no size: half of the memory" : "size=" + given);
    return outcome;
}

Outcome look_namespaces(const Evidence& evidence) {
    const VisibleGpus gpus = counted_gpus(evidence);
    if (gpus.there < 2) return does_not_apply("fewer than two GPUs");
    const auto ipc = evidence.files.link_target("/proc/self/ns/ipc");
    const auto pid = evidence.files.link_target("/proc/self/ns/pid");
    const bool apart = (ipc && *ipc != first_ipc_namespace) || (pid && *pid != first_pid_namespace);
    Outcome outcome;
    if (gpus.shown == 1 && gpus.given > 1) {
        outcome = warn(fmt::format("CUDA shows this process one of {} GPUs", gpus.given));
        outcome.remedy =
            "Show every process all GPUs, and let it choose its own (cudaSetDevice, torch.cuda.set_device).";
        outcome.command = "unset CUDA_VISIBLE_DEVICES";
    } else if (!ipc || !pid) {
        outcome = unknown("the namespaces of this process cannot be read");
        outcome.remedy =
            "Where the processes of one job run in several containers, let these share IPC and PID "
            "namespaces.";
    } else if (apart && gpus.given < gpus.there) {
        outcome = warn(
            fmt::format("this container has {} of {} GPUs and is cut off from processes that have the others",
                        gpus.given, gpus.there));
    } else if (apart) {
        outcome =
            pass("this process has namespaces of its own, and all GPUs in them: keep a job in one container");
    } else {
        outcome = pass("processes see each other's shared memory and numbers");
    }
    outcome.saw("/proc/self/ns/ipc", ipc.value_or("cannot be read"))
        .saw("/proc/self/ns/pid", pid.value_or("cannot be read"));
    outcome.saw("GPUs", fmt::format("{} in the machine, {} given to this process, {} shown by CUDA",
                                    gpus.there, gpus.given, gpus.shown));
    return outcome;
}

Outcome look_pidfd(const Evidence& evidence) {
    if (evidence.topology.gpu_count() < 2) return does_not_apply("fewer than two GPUs");
    const std::string yama_path = "/proc/sys/kernel/yama/ptrace_scope";
    const auto capable = has_capability(evidence.files, cap_sys_ptrace);
    const long scope = evidence.files.number(yama_path).value_or(0);
    const bool filtered = process_status(evidence.files, "Seccomp").value_or("0") == "2";
    const bool contained = !container_words(evidence).empty();
    Outcome outcome;
    if (!capable) {
        outcome = unknown("the capabilities of this process cannot be read");
        outcome.remedy = "Run the doctor where /proc is shown.";
    } else if (scope >= 3) {
        outcome = warn("nobody may take file descriptors from another process (ptrace_scope 3)");
        outcome.remedy =
            "The kernel keeps this setting until it boots: take it out of /etc/sysctl.d and reboot.";
        outcome.command = "grep -r ptrace_scope /etc/sysctl.d /etc/sysctl.conf";
    } else if (*capable) {
        outcome = pass("this process may take file descriptors from others (CAP_SYS_PTRACE)");
    } else if (contained && filtered) {
        outcome = warn("the container's system call filter refuses pidfd_getfd without CAP_SYS_PTRACE");
    } else if (scope >= 1) {
        outcome = warn("processes may take file descriptors from their own children only");
        outcome.remedy =
            "Let the processes of one user reach each other, give the program CAP_SYS_PTRACE, or have the "
            "program "
            "ask for it: prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), or descriptors sent over a socket.";
        outcome.command = "sysctl kernel.yama.ptrace_scope=0";
    } else {
        outcome = pass("processes of one user may take file descriptors from each other");
    }
    const auto yama = evidence.files.line(yama_path);
    outcome.saw(yama_path, yama.value_or("does not exist"));
    outcome.saw(
        "/proc/self/status",
        fmt::format("CapEff {}, Seccomp {}", process_status(evidence.files, "CapEff").value_or("not told"),
                    process_status(evidence.files, "Seccomp").value_or("not told")));
    return outcome;
}

}  // namespace sidestep::diagnose
