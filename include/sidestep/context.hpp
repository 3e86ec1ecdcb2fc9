// The owner of everything else.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/load.hpp>
#include <sidestep/network.hpp>
#include <sidestep/options.hpp>
#include <sidestep/pinned.hpp>
#include <sidestep/publication.hpp>
#include <sidestep/route.hpp>
#include <sidestep/save.hpp>
#include <sidestep/topology.hpp>
#include <sidestep/transfer.hpp>

namespace sidestep {

struct ContextOptions {
    // A name that Topology::open() takes: "live", a built-in machine or a cluster of it, a topology file.
    // Empty: the environment's SIDESTEP_MACHINE, else "live".
    std::string machine = {};  // with a value, as all here, so that {.nodes = ...} alone draws no warning
    // What `sidestep doctor --probe --save FILE` wrote: pairs of GPUs that carried wrong bytes, or that are
    // slower than the way through host memory, are not used directly. Pairs are found by their bus ids; a
    // file of another machine is an error. Empty: the environment's SIDESTEP_PROBE_FILE, else none.
    std::string probe_file = {};
    // The folder in which published memory is found, shared by containers that exchange buffers. Empty: the
    // environment's SIDESTEP_PEER_FOLDER, else /run/user/UID/sidestep, else /tmp/sidestep-UID.
    std::string peer_folder = {};
    // See Context::set_relay_memory.
    Bytes relay_memory = Bytes{64} << 20;
    // Where other machines listen: NAME=HOST:PORT with commas between, the path of a file of such lines, or etcd://HOST:PORT/PREFIX;
    // a name that is there again has several addresses. Empty: the environment's SIDESTEP_NODES. Any other name of a machine is
    // asked of the resolver, and reached at port 47900.
    std::string nodes = {};
    // The key by which machines know each other. Empty: the environment's SIDESTEP_KEY_FILE, else
    // ~/.config/sidestep/key. Read at the first use of another machine.
    std::string key_file = {};
    // Bytes to and from nodes carry checksums (XXH3), both ways. What changed on its way is sent again. Also where the
    // environment's SIDESTEP_NETWORK_CHECKSUMS is 1.
    bool network_checksums = false;
    // Bytes to and from nodes are encrypted (TLS 1.3), of what this context asks for and of what it serves: over sockets, not by
    // RDMA. A node that cannot is refused with unsupported. Also where the environment's SIDESTEP_NETWORK_ENCRYPTION is 1.
    bool network_encryption = false;
};

// Whether one way to move bytes works here.
struct BackendStatus {
    std::string name;
    bool usable = false;
    std::string reason;  // why not, or what it found
    std::string remedy;  // what would make it work; may be empty
};

// One of the copies of a batch.
struct BatchItem {
    Buffer from;
    Buffer to;
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

    // Starts a copy of from.size() bytes. The sizes must agree, except that a whole-file target takes what
    // comes. A failure to start is reported by the Transfer like any other. Both buffers stay valid and
    // unchanged by others until the Transfer has ended.
    Transfer copy(const Buffer& from, const Buffer& to, const CopyOptions& options = {}) const;

    // Starts many copies as one movement with one Receipt: thousands of small ones cost little more than one
    // large one where a backend takes them in one call. Copies of one batch may run in any order and at the
    // same time: the target of one overlaps no other buffer of the batch. The first failure stops the rest;
    // its error names the position. Whole-file targets and verification are as for copy().
    Transfer copy_batch(const std::vector<BatchItem>& items, const CopyOptions& options = {}) const;

    // Starts to bring the tensors of a checkpoint to the places that the options name. Each file is read
    // once, whatever the number of places. Where a place has too little memory, out_of_memory says how much
    // is missing before anything is read; a file that has changed since it was opened, or changes while it is
    // read, is an error. docs/storage.md tells how the path is chosen.
    Loading load(const Checkpoint& checkpoint, const LoadOptions& options = {}) const;

    // Starts to write tensors to one or several safetensors files (SaveOptions::shard_bytes). Files appear
    // under their names when all are whole: the index last, the index of an earlier checkpoint taken away
    // before. The tensors stay as they are until the Transfer has ended. Fails with invalid_argument, naming
    // the tensor, for a name twice or a size that does not fit its shape.
    Transfer save(const std::vector<TensorToSave>& tensors, const std::string& path,
                  const SaveOptions& options = {}) const;

    // Lets other processes of this user on this machine reach the memory as Buffer::shared(name), as long as
    // the Publication lives. `buffer` is GPU or host memory that can be mapped elsewhere: see docs/sharing.md
    // for which. ErrorCode::invalid_argument where the name is taken by a process that is alive. ErrorCode::timed_out
    // where another process takes a name for 5 s, or the deadline passes. A name that the folder's file system makes after the
    // deadline is withdrawn at once; other names of this Context wait for that.
    Result<Publication> publish(const std::string& name, const Buffer& buffer,
                                const PublishOptions& options = {}) const;
    Result<Publication> publish(const std::string& name, const Allocation& allocation,
                                const PublishOptions& options = {}) const {
        return publish(name, allocation.buffer(), options);
    }

    // Lets other machines reach places of this one (docs/network.md). Nothing listens otherwise.
    Result<Serving> serve(const ServeOptions& options) const;

    // Connects to a machine that listens at `address` (HOST:PORT, several with commas between them), and
    // gives it the name `node` in places (node7/gpu:1). Answers the name that the machine gives itself. Not
    // needed for machines that ContextOptions::nodes or the resolver know: those are connected at their first
    // use. ErrorCode::not_found where nothing listens there, permission_denied where its key is another,
    // timed_out after 10 s.
    Result<std::string> connect(const std::string& node, const std::string& address) const;

    // Sends the program that serves at the node a text of up to longest_notification bytes
    // (Serving::next_notification). It arrives once, even if the connection is lost meanwhile. Waits until
    // the node has it. A copy that has ended has its bytes in place, so a notification after it tells the
    // other end so. ErrorCode::unsupported where the node takes none, out_of_memory where as many wait there
    // as it keeps, invalid_argument for a longer text.
    Result<void> notify(const std::string& node, std::string_view text) const;

    // Opens plain sockets to a node, to compare copies with; 0: as many as a large copy to it uses, 16 at most.
    // out_of_memory, end_of_file or io_error where the node takes no more.
    Result<NetworkProbe> probe_network(const std::string& node, std::size_t sockets = 0) const;

    // The size of a buffer in bytes: of a whole file, or of published memory, as its owner reports it. May
    // block.
    Result<Bytes> size(const Buffer& buffer) const;

    // Page-locks ordinary host memory, so that GPUs copy from and to it without staging. A range that is
    // pinned already costs a look-up. ErrorCode::unsupported where no GPU backend is usable.
    Result<Pinned> pin(const Buffer& buffer) const;

    // Upper bound of the memory of one GPU that copies between other places may hold as a relay, 64 MiB at
    // first (ContextOptions::relay_memory); 0 takes the GPU out of such routes. Memory in use stays until its
    // copy ends. ErrorCode::not_found where there is no such GPU.
    Result<void> set_relay_memory(const Place& gpu, Bytes bytes) const;

private:
    friend struct ContextAccess;  // what is declared in other headers: streams, groups, loads, saves
    struct Impl;
    explicit Context(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

}  // namespace sidestep
