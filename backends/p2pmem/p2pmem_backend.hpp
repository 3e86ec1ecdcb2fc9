// PCI peer-to-peer memory: files read into it and written from it by the drive itself.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.hpp"

namespace sidestep::backends::p2pmem {

struct P2pmemOptions {
    // Put before every path of /sys: empty for this machine, or the folder of a made-up one.
    std::string root = {};
    // For tests without a drive: any file counts as one whose bytes a drive moves.
    bool any_file = false;
};

// Moves bytes between files and peer-to-peer memory by O_DIRECT, the drive's DMA going to the other device,
// and between that memory and host memory by the CPU. docs/p2pmem.md.
std::unique_ptr<backend::Backend> create(P2pmemOptions options);

}  // namespace sidestep::backends::p2pmem
