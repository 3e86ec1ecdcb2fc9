// What the ways from GPU memory to other PCIe devices need: for the checks of network cards, of storage and
// of versions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/evidence.hpp"
#include "topology/p2pdma_reader.hpp"

namespace sidestep::diagnose {

// Why no other device can reach the memory of this machine's GPUs, whatever is configured: there is no GPU,
// or the CUDA driver says of every one that it does not support GPUDirect RDMA (GeForce). nullopt: some can,
// or it is not told.
std::optional<std::string> no_gpu_direct(const Evidence& evidence);

// An attribute of the GPUs that CUDA lists: true where all have it, false where one lacks it, nullopt where
// CUDA did not tell. The attribute is named as in driver::CudaGpuFacts.
std::optional<bool> every_gpu_has(const Evidence& evidence, const std::string& attribute);

// Whether the GPU is joined to its CPU by NVLink-C2C, beside PCIe.
bool has_c2c(const Topology& topology, DeviceId gpu);
using topology::all_c2c;

// The numbers at the start of a version: {6, 8, 0} of "6.8.0-60-generic". Compares as versions do; empty
// where it starts with no number.
std::vector<int> version_numbers(const std::string& version);

// Whether RDMA cards register dma-buf memory: true where all do, false where one does not, nullopt where
// that was not told of one or all.
std::optional<bool> cards_take_dma_buf(const Evidence& evidence);

// A path that a variable names: a relative one counts from the working folder.
std::string path_of_variable(const std::string& value);

// NCCL's files of settings: the user's, if it can be told, and the machine's, which comes last.
std::vector<std::string> nccl_files(const driver::MachineFiles& files);

// A setting of NCCL: from this process's environment, else from NCCL's files of settings.
struct NcclSetting {
    std::string value;
    std::string source;  // "/proc/self/environ", "/etc/nccl.conf"
};
// By name; all that is in the environment, of other programs too.
std::map<std::string, NcclSetting> nccl_settings(const driver::MachineFiles& files);
std::optional<NcclSetting> nccl_setting(const driver::MachineFiles& files, const std::string& name);

// The numbers that the kernel gives the first namespaces of the machine (enum init_ns_ino of Linux).
constexpr const char* first_ipc_namespace = "ipc:[4026531839]";
constexpr const char* first_pid_namespace = "pid:[4026531836]";

// "docker", "container": the words for a container this process runs in; empty outside, and where it cannot
// be told.
std::string container_words(const Evidence& evidence);

}  // namespace sidestep::diagnose
