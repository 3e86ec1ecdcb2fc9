// PCI peer-to-peer memory: files read into it and written from it by the drive itself.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.hpp"
#include "base/environment.hpp"
#include "driver/file_io_engine.hpp"

namespace sidestep::backends::p2pmem {

struct P2pmemOptions {
    // Put before every path of /sys: empty for this machine, or the folder of a made-up one.
    std::string root = {};
    // automatic: io_uring, or where the kernel refuses it threads.
    base::FileIo io = base::FileIo::automatic;
    // For tests without a drive: any file counts as one whose bytes a drive moves.
    bool any_file = false;
};

// Moves bytes between files and peer-to-peer memory by O_DIRECT, the drive's DMA going to the other device,
// and between that memory and host memory by the CPU. docs/p2pmem.md.
std::unique_ptr<backend::Backend> create(P2pmemOptions options);

// The same over an engine of the caller's, for tests of what kernels and devices refuse.
std::unique_ptr<backend::Backend> create(P2pmemOptions options, std::unique_ptr<driver::FileIoEngine> engine);

}  // namespace sidestep::backends::p2pmem
