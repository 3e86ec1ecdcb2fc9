// cuFile's own settings, as far as they decide whether it can be direct.
#pragma once

#include <string_view>

namespace sidestep::backends::cufile {

// Whether the text of a cufile.json, which may have comments, switches `use_pci_p2pdma` on. Every key of that
// name counts: some releases want it among the properties, some below block.nvme.
bool asks_for_p2pdma(std::string_view json);

}  // namespace sidestep::backends::cufile
