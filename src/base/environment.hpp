// The SIDESTEP_ variables that the library reads, parsed once for each context. docs/environment.md is written
// from this. Variables of launchers and of CUDA are read where they matter (src/collective/launcher.cpp).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::base {

enum class FileIo { automatic, uring, threads };
enum class Cufile { automatic, off };
enum class Network { automatic, verbs, ncclnet, tcp };

struct Environment {
    // SIDESTEP_MACHINE: the machine of contexts that name none: live, a built-in name, or a file.
    std::string machine = "live";
    // SIDESTEP_PROBE_FILE: what sidestep doctor --probe --save wrote, for contexts that name none.
    std::string probe_file;
    // SIDESTEP_PEER_FOLDER: where published memory is found, for contexts that name no folder; empty: the
    // default.
    std::string peer_folder;
    // SIDESTEP_NODES: where nodes listen: NAME=HOST:PORT with commas between, a file of such lines, or etcd://HOST:PORT/PREFIX.
    std::string nodes;
    // SIDESTEP_KEY_FILE: the key of nodes, for contexts and for `sidestep serve`.
    std::string key_file;
    // SIDESTEP_NETWORK: auto, verbs, ncclnet or tcp: what carries bytes between machines; auto: RDMA where both have a card for
    // it, else a network plugin of NCCL where one is named.
    Network network = Network::automatic;
    // SIDESTEP_NCCL_NET: that plugin, a path or a name; empty: the one that NCCL would load, and only for ncclnet.
    std::string nccl_net;
    // SIDESTEP_NETWORK_CHECKSUMS: 0 or 1: whether bytes to and from nodes carry checksums, for contexts that leave it out.
    bool network_checksums = false;
    // SIDESTEP_NETWORK_ENCRYPTION: 0 or 1: whether bytes to and from nodes are encrypted, for contexts that leave it out.
    bool network_encryption = false;
    // SIDESTEP_LOG: error, warn, info or debug; lines of at least that weight go to standard error. Only checked
    // here: log() reads it itself, since there are lines before and after any context.
    std::string log = "warn";
    // SIDESTEP_HOST_THREADS: threads of the host backend's copy pool; 0: chosen from the cores.
    int host_threads = 0;
    // SIDESTEP_FILE_IO: auto, uring or threads: how files are read and written.
    FileIo file_io = FileIo::automatic;
    // SIDESTEP_CUFILE: auto or off: whether NVIDIA's cuFile library may be loaded.
    Cufile cufile = Cufile::automatic;
    // SIDESTEP_EMULATED_GPU_MEMORY: bytes each emulated GPU may hand out; 0: the model's own size.
    Bytes emulated_gpu_memory = 0;
    // SIDESTEP_PINNED_POOL: most pinned memory that the staging pool of one NUMA node keeps; 0: no pool.
    Bytes pinned_pool = Bytes{1} << 30;
    // SIDESTEP_PINNED_CACHE: most memory of Context::allocate that stays page-locked after its last Pinned.
    Bytes pinned_cache = Bytes{1} << 30;
    // SIDESTEP_RELAY_MEMORY: ContextOptions::relay_memory of contexts that leave it at its default.
    Bytes relay_memory = Bytes{64} << 20;
    // SIDESTEP_GROUP_TIMEOUT: GroupOptions::timeout of groups that leave it at its default, in seconds; 0:
    // none.
    std::optional<std::chrono::milliseconds> group_timeout;
    // SIDESTEP_TUNING: what `sidestep tune` stored, for the groups whose rank 0 this process is.
    std::string tuning;
    // SIDESTEP_GROUP_ID, SIDESTEP_RANK, SIDESTEP_RANKS: who this process is in the group that `sidestep run`
    // started; empty and -1 where it did not.
    std::string group_id;
    int rank = -1;
    int ranks = -1;

    // Reads the process's environment. A value that cannot be read is an error naming the variable.
    static Result<Environment> read();
};

}  // namespace sidestep::base
