// Trials: one block between a file and a GPU, with cuFile's own counters looked at before and after.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "backend/support.hpp"
#include "backends/cufile/direct_gpus.hpp"
#include "driver/cufile.hpp"

namespace sidestep::backends::cufile {

// Remembers, for each device below a file system, GPU and direction, that a trial has succeeded. One that
// failed is made again when it is asked for again. Safe to use from several threads, which take turns.
class Prover {
public:
    Prover(std::shared_ptr<const driver::Cufile> cufile, DirectGpus& gpus)
        : cufile_(std::move(cufile)), gpus_(gpus) {}

    // Whether reading the file at `path` into the GPU is direct: reads its first block. May block.
    backend::Support reads(const std::string& path, int gpu);
    // Whether writing a file at `path` from the GPU is direct: writes a block to a file of its own, beside
    // it, which is removed at once. May block.
    backend::Support writes(const std::string& path, int gpu);

private:
    using Key = std::tuple<std::uint64_t, int, bool>;  // device, GPU, write

    Result<void> try_read(const std::string& path, DirectGpu& gpu);
    Result<void> try_write(const std::string& folder, DirectGpu& gpu);
    Result<void> count(DirectGpu& gpu, bool write, const driver::Fd& fd);
    Result<void> same_bytes(DirectGpu& gpu, const driver::Fd& fd, const std::string& path);
    bool known(const Key& key);
    backend::Support remember(const Key& key, const Result<void>& trial);

    const std::shared_ptr<const driver::Cufile> cufile_;
    DirectGpus& gpus_;
    std::mutex trial_;  // held during a trial
    std::mutex mutex_;  // guards what follows
    std::set<Key> proven_;
};

}  // namespace sidestep::backends::cufile
