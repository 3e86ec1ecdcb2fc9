// Why the kernel keeps a drive away from peer-to-peer memory, in words.
#pragma once

#include <string>

#include "backend/support.hpp"

namespace sidestep::backends::p2pmem {

// Whether this errno of a read or write with O_DIRECT is about the memory, and not about the file or the
// drive.
bool is_refusal(int number);

// The reason and the kernel's rule. `drive` and `memory` name the two, such as /dev/nvme0n1 and
// p2pmem:0000:03:00.0.
backend::Support refusal(int number, const std::string& drive, const std::string& memory);

}  // namespace sidestep::backends::p2pmem
