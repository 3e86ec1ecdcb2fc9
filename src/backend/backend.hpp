// The contract of a way to move bytes.
//
// A backend answers questions about the machine and about buffers, and carries out single pieces. It
// knows nothing of routes, chunks, staging or retries: `transfer` does all that, once, for every
// backend. What else some backends do is a role of its own. What each method promises is tested by
// tests/contract/ for every backend alike.
//
// Threads: all methods may be called from several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/options.hpp>
#include <sidestep/storage_bytes.hpp>
#include <sidestep/topology.hpp>
#include "backend/capability.hpp"
#include "backend/flight.hpp"
#include "backend/seat.hpp"

namespace sidestep::backend {

// What a backend knows about a buffer.
struct Description {
    Place place;  // where the bytes really are
    MemoryKind memory = MemoryKind::pageable;
    Bytes size = Buffer::whole;  // of the file or block device behind a file buffer
    // Equal for two names of one file. Of memory: changes when the memory is freed and its address given
    // out again; 0 where the backend cannot tell.
    std::uint64_t identity = 0;
    std::uint64_t version = 0;  // of files, as base::same_content() reads it; 0: nobody can tell
};

enum class Access { read, write };

struct Span {
    Bytes offset = 0;
    Bytes size = 0;
};

// A buffer made ready for one backend: an open file, pinned memory, a mapped peer. Detached by the
// destructor, after every piece that uses it has ended. One attached for writing can be read from too:
// verification reads a file before it gets its name.
class Registration {
public:
    explicit Registration(const Buffer& buffer) : buffer_(buffer) {}
    virtual ~Registration() = default;
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    const Buffer& buffer() const { return buffer_; }

    // Makes what was written final: flushes if asked to, gives a file its name. Called after the last piece
    // of a copy succeeded: once for a file, once a copy for memory that stays attached; a registration
    // destroyed without it leaves no trace of a whole-file target. May block.
    virtual Result<void> commit() { return {}; }

    // What went otherwise than asked, in plain sentences ("tmpfs refuses O_DIRECT").
    virtual std::vector<std::string> notes() const { return {}; }

    // Of a file that is read: where it has bytes, in order and relative to buffer(); between them are holes, which read
    // as zeros. Nothing where it has none, or nobody can tell. May block.
    virtual std::optional<std::vector<Span>> extents() const { return std::nullopt; }
    // Of a target: whether what is not written reads as zeros, so that holes need not be.
    virtual bool reads_as_zeros() const { return false; }

    // No piece uses it for now: it lets go of what it can open again. A save has many files, and a process few descriptors.
    virtual void rest() {}
    // No piece uses it any more, and the memory at their other ends may be freed: it keeps none of that mapped. Waits for no
    // file system.
    virtual void unmap() {}

    // How the bytes that pieces moved so far went to or from storage: empty for memory. Any thread.
    virtual StorageBytes storage_bytes() const { return {}; }

private:
    Buffer buffer_;
};

// How a buffer will be used.
struct AttachOptions {
    Access access = Access::read;
    PageCache page_cache = PageCache::automatic;  // files
    bool sync_file = false;                       // files: commit() flushes to the device
    bool strict = false;      // fail where a wish above cannot be met, instead of noting it
    Bytes expected_size = 0;  // of files, if known: bytes that will be read, or written, for early ENOSPC
    bool sparse =
        false;  // of files to be written: some of these bytes will not be, so no space is taken for them
    bool never_read =
        false;  // of files to be written: nobody reads them back, so the right to write is enough
    // What describe() said of the buffer; 0: nothing. Of files ErrorCode::io_error tells that the path leads to
    // another one by now; a whole-file target takes the place of whatever has its name.
    std::uint64_t identity = 0;
    std::uint64_t version = 0;
};

// One contiguous movement by one engine: `size` bytes between two registrations of this backend.
struct Piece {
    Registration* from = nullptr;
    Bytes from_offset = 0;  // from the start of from->buffer()
    Registration* to = nullptr;
    Bytes to_offset = 0;
    Bytes size = 0;              // above 0
    std::size_t capability = 0;  // position in capabilities(): which engine
    void* stream = nullptr;      // a caller's CUstream to enqueue on; null: the backend's own
    // Bytes before and after the target range that may be overwritten with anything: the slot it lies in. A
    // file is read around the page cache in whole blocks, so a piece that begins or ends within one needs
    // them.
    Bytes room_before = 0;
    Bytes room_after = 0;
    // Something else begins as soon as its end is seen, so that may cost whoever starts it a microsecond.
    bool awaited = false;
};

// Memory as another process can open it. The holder of `keeps` keeps it so.
struct Exported {
    std::string scheme;   // who understands the handle: "cuda-ipc", "cuda-fd", "memfd"
    std::string handle;   // opaque bytes, at most 1 KiB
    int descriptor = -1;  // goes with the handle over a Unix socket; -1: none. Belongs to `keeps`
    Place place;
    MemoryKind memory = MemoryKind::device;
    Bytes size = 0;  // of the buffer, which starts `offset` bytes into what the handle opens
    Bytes offset = 0;
    std::uint64_t identity = 0;  // of the exported memory, as Description::identity
    std::shared_ptr<void> keeps;
};

// What a call that begins a piece answers.
enum class Progress {
    pending,  // it is in flight
    done,     // it ended, well, before the call returned, and its Flight was left alone
};

// What every backend asks of memory that is attached, and of a piece.
Result<void> check_memory(const Buffer& buffer, Access access);
Result<void> check_within(const Piece& piece);

// Holds back a caller's stream until a staged copy has ended (see sidestep/cuda.hpp).
class Gate {
public:
    virtual ~Gate() = default;  // opens the gate if open() was not called
    // Whether the work that was on the stream before the gate has ended.
    virtual Result<bool> ready() = 0;
    // Lets the stream go on. Never blocks, may be called from any thread.
    virtual void open() = 0;
};

// The roles that a backend may have besides that of moving bytes. Their objects live as long as it does.

// Gives memory.
class Allocator {
public:
    virtual ~Allocator() = default;
    // The kinds of memory allocate() gives at a kind of place. Constant.
    virtual MemorySet allocates(PlaceKind) const = 0;
    // Memory of a kind that allocates() lists (never `automatic`). The Allocation frees itself and does
    // not keep the backend alive.
    virtual Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) = 0;
};

// Begins many pieces in one call.
class Batcher {
public:
    virtual ~Batcher() = default;
    // Pieces of one capability, as one flight. As Backend::start().
    virtual Result<Progress> start_batch(std::span<const Piece> pieces, Flight& flight) = 0;
};

// Shares memory between processes.
class Sharer {
public:
    virtual ~Sharer() = default;
    // Makes memory openable by other processes; nothing if it is not this backend's.
    virtual Result<std::optional<Exported>> share(const Buffer& buffer) = 0;
    // Opens memory that another process shared; nothing if the scheme is not this backend's. The Allocation
    // unmaps it. The descriptor is only borrowed. May block.
    virtual Result<std::optional<Allocation>> open(const Exported& exported) = 0;
};

// What GPUs know of addresses.
class GpuAddresses {
public:
    virtual ~GpuAddresses() = default;
    // What lies at an address of unknown kind. Plain host memory is pageable memory at Place::host().
    virtual Result<Description> locate(const void* address, Bytes bytes) = 0;
    // Page-locks ordinary host memory for every GPU, from the first page that the buffer touches to the last;
    // unlocked when the last holder lets go, who may outlive the backend. Memory mapped for reading only is
    // locked for reading. ErrorCode::invalid_argument where part of it is locked already. May block.
    virtual Result<std::shared_ptr<void>> pin(const Buffer& buffer) = 0;
};

// Runs collectives on GPUs.
class Seats {
public:
    virtual ~Seats() = default;
    // A seat for one rank of a group. Loads all code that tasks need, so that no task waits for it.
    virtual Result<std::unique_ptr<Seat>> seat(const SeatRequest& request) = 0;
};

// Knows callers' streams.
class Streams {
public:
    virtual ~Streams() = default;
    virtual Result<std::unique_ptr<Gate>> gate(void* stream) = 0;
    // Tells streams apart, those too that have the same name one after the other, or on several threads; nothing where
    // the backend cannot, as while the stream is captured.
    virtual std::optional<std::uint64_t> stream_key(void* stream) = 0;
};

class Backend {
public:
    virtual ~Backend() = default;

    virtual std::string_view name() const = 0;

    // Whether this backend works on this machine; if not, why, and what would help. Called once, before
    // everything else. May block and load libraries; has no effect on the machine.
    virtual Support probe(const Topology& topology) = 0;

    // What it can move. Constant after probe().
    virtual std::vector<Capability> capabilities() const = 0;

    // Its roles, constant after probe(); null: it has not got that one.
    virtual Allocator* allocator() { return nullptr; }
    virtual Batcher* batcher() { return nullptr; }
    virtual Sharer* sharer() { return nullptr; }
    virtual GpuAddresses* gpu_addresses() { return nullptr; }
    virtual Seats* seats() { return nullptr; }
    virtual Streams* streams() { return nullptr; }
    // Its buffers are on other machines (Place::node), those of all others on this one.
    virtual bool reaches_nodes() const { return false; }

    // What the buffer is, if this backend is the one that knows; nothing if it is not. Fails where the
    // buffer cannot be what its Place claims: a file that is not there, an address of another GPU.
    virtual Result<std::optional<Description>> describe(const Buffer&) {
        return std::optional<Description>{};
    }

    // Whether bytes go between these two, a file and device memory or places of two nodes, as the capabilities with
    // Reach::storage_gpu or Reach::nodes say. Asked before a copy or route is planned, for backends where that depends on
    // the very file or nodes; may block and try it out. The memory may be no more than its place: null address, size 0.
    virtual Support reaches(const Buffer&, const Buffer&) { return Support::yes({}); }

    // Makes a buffer ready. The buffer's size is known (not `whole`) except for whole-file targets.
    virtual Result<std::unique_ptr<Registration>> attach(const Buffer& buffer,
                                                         const AttachOptions& options) = 0;

    // Begins a piece. Does not wait for it, nor for anything else; copies of up to 64 KiB may be done on
    // the spot. Fails with ErrorCode::unsupported where the two ends are out of the engine's reach. An error means
    // that nothing of the piece is in flight: what fails with a part of it under way is told at its end.
    // Flight::end() is called once the piece is over, and `flight` stays until then; after an error it is not.
    virtual Result<Progress> start(const Piece& piece, Flight& flight) = 0;

    // For backends without threads of their own, which see an end only when they look: ends the flights that are over.
    // Answers whether any are left. Never blocks; on any thread, with no lock held.
    virtual bool look() { return false; }
};

}  // namespace sidestep::backend
