// What the name of a machine stands for: everything that --machine takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::topology {

struct MachineName {
    enum class Kind {
        live,
        record,  // a folder that `sidestep topo --record` wrote; `name` is its path
        xml,     // an NCCL topology file
        json,    // one of the own format
        text,    // what `nvidia-smi topo -m` or `lspci -vvv` printed
        model,   // a built-in machine, or a cluster of it
    };
    Kind kind = Kind::live;
    std::string name;
    std::string lender;               // "azure.xml!as=dgx-a100": who lends it NVLinks; empty: nobody
    std::vector<std::string> faults;  // "dgx-h100!acs!gpu:3.width=8": what is made wrong with it
};

// Looks for built-in machines first, then for files and folders, then among the recorded machines that came with
// the command. ErrorCode::not_found where there is nothing of that name, with what may have been meant;
// invalid_argument for a folder that is no record, and for faults of a machine that is not made up.
Result<MachineName> read_machine_name(std::string_view text);

// The recorded machines that came with the command, by the names that read_machine_name() takes.
std::vector<std::string> recorded_names();

}  // namespace sidestep::topology
