#include "backends/p2pmem/refusals.hpp"

#include <cerrno>

#include <fmt/format.h>

namespace sidestep::backends::p2pmem {

bool is_refusal(int number) {
    return number == EINVAL || number == EREMOTEIO || number == EFAULT || number == EOPNOTSUPP;
}

// What a kernel answers was seen with Linux 7.2 in a virtual machine (tests/vm/jobs/nvme_p2p), and is read in
// drivers/pci/p2pdma.c (calc_map_type_and_dist) and mm/gup.c.
backend::Support refusal(int number, const std::string& drive, const std::string& memory) {
    using backend::Support;
    if (number == EFAULT)
        return Support::no(
            fmt::format("the kernel refuses to hold pages of {} for long, as registered buffers are "
                        "(EFAULT)",
                        memory),
            "use plain reads and writes, not registered buffers");
    if (number == EOPNOTSUPP)
        return Support::no(fmt::format("{} does no direct I/O on these bytes (EOPNOTSUPP)", drive),
                           "use a file on ext4 or XFS on an NVMe drive");
    if (number == EREMOTEIO)
        return Support::no(
            fmt::format("the driver of {} takes no pages of {} (EREMOTEIO)", drive, memory),
            "use a file on a PCIe NVMe drive; before Linux 6.17 this is also the answer where the two "
            "are not below one PCIe switch");
    return Support::no(
        fmt::format("the kernel does not let {} reach {} (EINVAL): they share no PCIe switch, and no host "
                    "bridge that is known to pass such traffic on",
                    drive, memory),
        "put both below one PCIe switch without ACS redirection; AMD Zen processors and the Intel "
        "server host bridges on the kernel's list need none. The kernel's log names the two");
}

}  // namespace sidestep::backends::p2pmem
