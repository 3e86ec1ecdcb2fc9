// Bringing a checkpoint into memory.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/checkpoint.hpp>
#include <sidestep/loaded.hpp>
#include <sidestep/options.hpp>
#include <sidestep/place.hpp>
#include <sidestep/transfer.hpp>

namespace sidestep {

enum class Layout {
    replicate,  // every tensor on every place
    by_tensor,  // each tensor on one place: the places get the same bytes, as nearly as whole tensors allow
    by_axis,    // tensors that a ShardRule names are cut along its axis, all others are on every place
};

// Tensors whose name fits the pattern (as for Checkpoint::only) are cut along an axis into as many parts as
// there are places, equal but for the remainder: place i of n gets elements [i*e/n, (i+1)*e/n) of the extent
// e. The first rule that fits counts.
struct ShardRule {
    std::string pattern;
    int axis = 0;  // negative: from the last one
};

// Reads {"rules": [{"pattern": "*.weight", "axis": 0}, ...]}. Errors name the rule.
SIDESTEP_API Result<std::vector<ShardRule>> read_shard_rules(const std::string& path);

struct LoadOptions {
    // gpu places, or host; each at most once. Never empty.
    std::vector<Place> to = {Place::gpu(0)};
    Layout layout = Layout::replicate;
    std::vector<ShardRule> rules;  // for Layout::by_axis

    // Reads every byte again from the files and from every place, and compares. ErrorCode::mismatch names
    // place, tensor and byte.
    bool verify = false;
    // A manifest that Context::save or `sidestep inspect --manifest` wrote: the bytes as they are read are
    // compared with its checksums. ErrorCode::mismatch names file and block. Empty: none.
    std::string manifest;

    // As those of CopyOptions; max_staging is pinned host memory for each place, chunk what is read at a time. The
    // deadline counts from the call and is kept while the manifest is read; opening has one of its own.
    PageCache page_cache = CopyOptions{}.page_cache;
    Bytes max_staging = CopyOptions{}.max_staging;
    Bytes chunk = CopyOptions{}.chunk;
    std::chrono::milliseconds deadline = CopyOptions{}.deadline;
    std::chrono::milliseconds stall_limit = CopyOptions{}.stall_limit;
};

// A load in flight, move-only. Runs on whether or not anybody looks; dropping it cancels the load, waits for
// the pieces in flight and frees the memory. As with Transfer, one thread at a time, cancel() from any.
class SIDESTEP_API Loading {
public:
    Loading(Loading&&) noexcept;
    Loading& operator=(Loading&&) noexcept;
    ~Loading();

    // All tensors, or an error: no partial result. Called once.
    Result<Loaded> wait();
    // Nothing if it is still running after `limit`; it goes on.
    std::optional<Result<Loaded>> wait_for(std::chrono::milliseconds limit);
    void cancel();

    // Bytes that have arrived in memory, over all places, and bytes to arrive in all.
    Bytes bytes_done() const;
    Bytes bytes_total() const;

private:
    friend struct ContextAccess;
    struct Impl;
    explicit Loading(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace sidestep
