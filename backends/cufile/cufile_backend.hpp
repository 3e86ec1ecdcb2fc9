// Files and GPU memory joined by NVIDIA's cuFile, where that is truly direct.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"

namespace sidestep::backends::cufile {

struct CufileOptions {
    bool off = false;                         // SIDESTEP_CUFILE=off: the library is not even loaded
    std::string root = {};                    // of the files that show the machine; empty: this one's
    std::vector<std::string> libraries = {};  // as driver::Cufile::load
};

// Moves bytes between files and GPU memory without host memory. Usable where cuFile can be direct at all;
// whether it is for one file and GPU is proven by its own counters before the first byte, and counted after
// the last.
std::unique_ptr<backend::Backend> create(CufileOptions options = {});

}  // namespace sidestep::backends::cufile
