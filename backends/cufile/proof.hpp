// What cuFile's own counters prove: of a trial, which moves one block between a file and a GPU, and of the requests of
// a copy.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "backend/support.hpp"
#include "backends/cufile/direct_gpus.hpp"
#include "driver/cufile.hpp"

namespace sidestep::backends::cufile {

using Counts = driver::CufileGpuCounts::Direction;

// The counts of one GPU and direction; zeros for a GPU that cuFile has not met yet.
Counts counts_of(const std::vector<driver::CufileGpuCounts>& all, const std::array<unsigned char, 16>& uuid,
                 bool write);

// Requests of one copy to cuFile, and what was counted on their GPU in the meantime.
struct Account {
    std::uint64_t requests = 0;      // of this copy
    Bytes bytes = 0;                 // that they moved
    Bytes largest = 0;               // of one request
    std::uint64_t all_requests = 0;  // of all copies of this backend, this one's included
    std::uint64_t direct = 0;        // as cuFile counted, whoever asked for it
    std::uint64_t posix = 0;
};

// How many of the requests are not shown to have been direct: one for each operation that went through host
// memory, and for each request without an operation that was direct; whoever caused it, since the counters
// are those of the whole process. So it may be too many. It is too few only where others of the process use
// cuFile on this GPU at the same time.
std::uint64_t unproven_requests(const Account& account);

// The bytes that these can have carried at most.
Bytes unproven_bytes(const Account& account);

// The same now, but looks again for some 20 ms until settled(counts): nothing says that the counters are up to date
// when a call returns.
Result<Counts> settled_counts(const driver::Cufile& cufile, const DirectGpu& gpu, bool write,
                              const std::function<bool(const Counts&)>& settled);

// Why a trial of one request on a quiet GPU is not proof; nothing where it is one.
std::optional<std::string> what_a_trial_lacks(const Counts& before, const Counts& after);

// Remembers, for each device below a file system, GPU and direction, that a trial has succeeded. One that
// failed is made again when it is asked for again. Safe to use from several threads, which take turns.
class Prover {
public:
    Prover(std::shared_ptr<const driver::Cufile> cufile, DirectGpus& gpus)
        : cufile_(std::move(cufile)), gpus_(gpus) {}

    // Whether reading the file at `path` into the GPU, or writing a file there from it, is direct. Reads its first block,
    // or writes one to a file of its own beside it, which is removed at once. May block.
    backend::Support prove(const std::string& path, int gpu, bool write);

private:
    using Key = std::tuple<std::uint64_t, int, bool>;  // device, GPU, write

    Result<void> try_read(const std::string& path, DirectGpu& gpu);
    Result<void> try_write(const std::string& folder, DirectGpu& gpu);
    Result<void> count(DirectGpu& gpu, bool write, const driver::Fd& fd);
    Result<void> same_bytes(DirectGpu& gpu, const driver::Fd& fd, const std::string& path);

    const std::shared_ptr<const driver::Cufile> cufile_;
    DirectGpus& gpus_;
    std::mutex trial_;  // held during a trial
    std::mutex mutex_;  // guards what follows
    std::set<Key> proven_;
};

}  // namespace sidestep::backends::cufile
