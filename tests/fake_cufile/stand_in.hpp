// The cufile backend over the made-up library and driver.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>

#include <sidestep/topology.hpp>
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cufile/cufile_backend.hpp"
#include "tests/unit/cufile/machine_tree.hpp"

namespace sidestep::fake_cufile {

// FAKE_CUFILE for as long as it lives.
class Faults {
public:
    explicit Faults(const std::string& words) { ::setenv("FAKE_CUFILE", words.c_str(), 1); }
    ~Faults() { ::unsetenv("FAKE_CUFILE"); }
    Faults(const Faults&) = delete;
    Faults& operator=(const Faults&) = delete;
};

// On a machine on which nvidia-fs is loaded.
inline std::unique_ptr<backend::Backend> make() {
    struct WithNvidiaFs : MachineTree {
        WithNvidiaFs() {
            driver();
            nvidia_fs();
        }
    };
    static const WithNvidiaFs tree;
    return backends::cufile::create({.off = false, .root = tree.root(), .libraries = {SIDESTEP_FAKE_CUFILE}});
}

// Why none of this can run here; empty where it can.
inline std::string missing() {
    const auto topology = Topology::live();
    if (!topology) return topology.error().to_string();
    const auto support = backends::cuda::create()->probe(*topology);
    if (!support.usable) return support.reason;
    // On a real GPU the made-up library would write to memory that is not the process's own. A symbol tells
    // the two drivers apart.
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver != nullptr && ::dlsym(driver, "_ZN8sidestep9fake_cuda7Machine3getEv") != nullptr) return {};
    return "the GPUs here are real; the made-up libcufile is for the made-up driver of tests/fake_cuda";
}

}  // namespace sidestep::fake_cufile
