// The owner of everything else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/options.hpp>
#include <sidestep/route.hpp>
#include <sidestep/topology.hpp>
#include <sidestep/transfer.hpp>

namespace sidestep {

struct ContextOptions {
    // A name that Topology::open() takes: "live", a built-in machine or a cluster of it, a topology file.
    // Empty: the environment's SIDESTEP_MACHINE, else "live".
    std::string machine;
    // What `sidestep doctor --probe --save FILE` wrote: pairs of GPUs that carried wrong bytes, or that are
    // slower than the way through host memory, are not used directly. Pairs are found by their bus ids; a
    // file of another machine is an error. Empty: the environment's SIDESTEP_PROBE_FILE, else none.
    std::string probe_file = {};  // with a value, so that {"live"} alone draws no warning
};

// Whether one way to move bytes works here.
struct BackendStatus {
    std::string name;
    bool usable = false;
    std::string reason;  // why not, or what it found
    std::string remedy;  // what would make it work; may be empty
};

// Opens the machine, finds the backends and carries out copies. Cheap to move, not copyable. All const
// methods, copy() and allocate() may be called from several threads at once. Allocations and transfers
// keep what they need alive, so a Context may be dropped before them.
class SIDESTEP_API Context {
public:
    static Result<Context> open(ContextOptions options = {});

    Context(Context&&) noexcept;
    Context& operator=(Context&&) noexcept;
    ~Context();

    const Topology& topology() const;
    const std::vector<BackendStatus>& backends() const;

    // The route a copy of `bytes` bytes between two places would take, for memory that allocate() gives.
    // Moves nothing. Fails with path_unavailable (the message holds every refusal) or not_found.
    Result<Route> route(const Place& from, const Place& to, Bytes bytes,
                        const CopyOptions& options = {}) const;
    // The route between two buffers, taking into account what kind of memory they are.
    Result<Route> route(const Buffer& from, const Buffer& to, const CopyOptions& options = {}) const;

    // Memory at a host or gpu place, aligned to at least 256 bytes (4 KiB on the host), contents
    // undefined. ErrorCode::out_of_memory names what was asked and what was free.
    Result<Allocation> allocate(const Place& place, Bytes bytes,
                                MemoryKind kind = MemoryKind::automatic) const;

    // Starts a copy of from.size() bytes. The sizes must agree, save that a whole-file target takes what
    // comes. A failure to start is reported by the Transfer like any other. Both buffers stay valid and
    // unchanged by others until the Transfer has ended.
    Transfer copy(const Buffer& from, const Buffer& to, const CopyOptions& options = {}) const;

private:
    friend struct ContextAccess;  // cuda.hpp's functions
    struct Impl;
    explicit Context(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

}  // namespace sidestep
