#include "backends/p2pmem/p2pmem_backend.hpp"

#include <cstring>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "backend/blocking_pieces.hpp"
#include "backend/file_piece.hpp"
#include "backends/p2pmem/direct_file.hpp"
#include "base/try.hpp"
#include "driver/memory_map.hpp"
#include "driver/p2pmem.hpp"
#include "driver/store_fence.hpp"

namespace sidestep::backends::p2pmem {
namespace {

using backend::Capability;
using backend::Reach;
using backend::Support;
using driver::PeerMemory;

// More than a drive needs to be busy with the pieces of a copy.
constexpr std::size_t max_threads = 8;

// Contract: copies of up to this size may be done on the spot.
constexpr Bytes on_the_spot = 64_KiB;

// Prices, not measurements: what a drive on four lanes of PCIe gen3 can carry, posted writes of a processor
// without caches, and its reads, each of 64 bytes waiting for a round trip of 0.6 microseconds. They put the
// drive's own path before any other.
constexpr double drive_gb_per_s = 3;
constexpr double store_gb_per_s = 1;
constexpr double load_gb_per_s = 0.1;
constexpr double drive_latency_us = 80;
constexpr double map_latency_us = 1;

// Of capabilities().
constexpr std::pair<PlaceKind, PlaceKind> ends_of[] = {{PlaceKind::file, PlaceKind::p2pmem},
                                                       {PlaceKind::p2pmem, PlaceKind::file},
                                                       {PlaceKind::host, PlaceKind::p2pmem},
                                                       {PlaceKind::p2pmem, PlaceKind::host}};

// The memory that this backend gave out and that is not freed yet. Thread-safe. Held by every Allocation, so it outlives
// the backend.
class PeerAllocations : public std::enable_shared_from_this<PeerAllocations> {
public:
    // Takes the map over. The Allocation has the requested size.
    Allocation give(driver::PeerMap map, const Place& place, Bytes bytes) {
        const auto begin = reinterpret_cast<std::uintptr_t>(map.address());
        const Buffer buffer = Buffer::memory(place, map.address(), bytes);
        const std::lock_guard giving(mutex_);
        given_.emplace(begin, Given{std::move(map), place, next_++});
        return Allocation(buffer, MemoryKind::p2pmem, [self = shared_from_this(), begin] {
            std::unique_lock lock(self->mutex_);
            const auto gone = self->given_.extract(begin);
            // Forgotten first: the address may be given out again as soon as it is unmapped.
            lock.unlock();
        });
    }

    // The identity of the allocation that holds all of the buffer, never given twice.
    std::optional<std::uint64_t> find(const Buffer& buffer) const {
        const auto begin = reinterpret_cast<std::uintptr_t>(buffer.address());
        const std::lock_guard lock(mutex_);
        auto next = given_.upper_bound(begin);
        if (next == given_.begin()) return std::nullopt;
        const auto& [first, given] = *--next;
        const Bytes offset = begin - first, size = given.map.length();
        if (given.place != buffer.place() || offset > size || buffer.size() > size - offset)
            return std::nullopt;
        return given.identity;
    }

private:
    struct Given {
        driver::PeerMap map;  // whole pages
        Place place;
        std::uint64_t identity = 0;
    };
    mutable std::mutex mutex_;
    std::map<std::uintptr_t, Given> given_;  // by address
    std::uint64_t next_ = 1;
};

Error invalid(std::string message, std::string where) {
    return {ErrorCode::invalid_argument, std::move(message), std::move(where)};
}

class P2pmemBackend final : public backend::Backend, public backend::Allocator {
public:
    explicit P2pmemBackend(P2pmemOptions options) : options_(std::move(options)), files_(options_.root) {}
    // A call that hangs has all that it uses, but its file and memory, which whoever started it keeps.
    ~P2pmemBackend() override {
        (void)drive_.end();
        (void)copies_.end();
    }

    std::string_view name() const override { return "p2pmem"; }

    Support probe(const Topology& topology) override {
        std::string found;
        std::string closed;
        for (const PeerMemory& memory : driver::list_peer_memory(files_)) {
            const std::string words = fmt::format("p2pmem:{} {}", memory.bus_id, format_bytes(memory.size));
            const bool open =
                memory.allocatable && driver::may_write(driver::peer_memory_file(files_, memory.bus_id));
            std::string& list = open ? found : closed;
            list += (list.empty() ? "" : ", ") + words;
            if (!open) list += memory.allocatable ? "" : " (the kernel lets no program map it)";
        }
        if (!found.empty()) return Support::yes(found);
        if (!closed.empty())
            return Support::no(
                fmt::format("this process may not map the peer-to-peer memory of this machine: {}", closed),
                "run as root, on Linux 6.2 or newer");
        const auto kernel = topology.parts().properties.find("kernel_p2pdma");
        if (kernel != topology.parts().properties.end() && kernel->second == "no")
            return Support::no("the kernel is built without peer-to-peer DMA (CONFIG_PCI_P2PDMA)",
                               "use a kernel built with it; Debian's have it from 6.13.7 on");
        return Support::no(
            "no PCI device publishes peer-to-peer memory",
            "it takes a device with such memory, as an NVMe drive with a controller memory buffer, and "
            "CONFIG_PCI_P2PDMA in the kernel");
    }

    std::vector<Capability> capabilities() const override {
        Capability read =
            backend::reads_files(PlaceKind::p2pmem, {MemoryKind::p2pmem}, Reach::storage_gpu, "drive DMA");
        read.max_gb_per_s = drive_gb_per_s;
        read.latency_us = drive_latency_us;
        read.reason = "read with O_DIRECT, no byte in host memory";
        Capability write = backend::reversed(read);
        write.reason = "written with O_DIRECT, no byte in host memory";
        Capability store;
        store.from = PlaceKind::host;
        store.to = PlaceKind::p2pmem;
        store.from_memory = {MemoryKind::pageable, MemoryKind::pinned};
        store.to_memory = {MemoryKind::p2pmem};
        store.reach = Reach::device_map;
        store.engine = "memcpy";
        store.max_gb_per_s = store_gb_per_s;
        store.latency_us = map_latency_us;
        store.reason = "stores of the processor through a mapping";
        Capability load = backend::reversed(store);
        load.max_gb_per_s = load_gb_per_s;
        load.reason = "loads of the processor through a mapping, each waiting for the bus";
        return {read, write, store, load};
    }

    backend::Allocator* allocator() override { return this; }
    backend::MemorySet allocates(PlaceKind kind) const override {
        return kind == PlaceKind::p2pmem ? backend::MemorySet{MemoryKind::p2pmem} : backend::MemorySet{};
    }

    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        if (!buffer.place().is_p2pmem()) return std::optional<backend::Description>{};
        const auto identity = allocations_->find(buffer);
        if (!identity)
            return invalid(fmt::format("the address is not within memory of {} that was allocated here",
                                       buffer.place().to_string()),
                           buffer.to_string());
        return std::optional(
            backend::Description{buffer.place(), MemoryKind::p2pmem, buffer.size(), *identity});
    }

    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) override {
        if (kind != MemoryKind::p2pmem)
            return Error{ErrorCode::unsupported,
                         fmt::format("there is no {} memory at {}", to_string(kind), place.to_string()),
                         "p2pmem backend"};
        SIDESTEP_TRY(const PeerMemory memory, memory_at(place));
        const Error full{
            ErrorCode::out_of_memory,
            fmt::format("{} were asked for, {} of {} are free in {}", format_bytes(bytes),
                        format_bytes(memory.available), format_bytes(memory.size), place.to_string()),
            place.to_string(), "ask for less (--size), or end the programs that hold it"};
        if (bytes > memory.available) return full;
        auto map = driver::PeerMap::open(driver::peer_memory_file(files_, memory.bus_id), bytes);
        if (map) return allocations_->give(std::move(*map), place, bytes);
        // Free, but not in one run.
        if (map.error().code == ErrorCode::out_of_memory) return full;
        return map.error();
    }

    Support reaches(const Buffer& from, const Buffer& to) override {
        const Place& file = from.place().is_file() ? from.place() : to.place();
        const Place& memory = from.place().is_file() ? to.place() : from.place();
        if (options_.any_file || !file.is_file() || !memory.is_p2pmem()) return Support::yes({});
        auto below = driver::storage_below(file.path());
        if (!below) {
            // A target that is not there yet, or the file of another machine.
            below = driver::storage_below(driver::split_path(file.path()).folder);
            if (!below) return Support::yes({});
        }
        if (!below->passes_pages)
            return Support::no(
                fmt::format("the file system of {} ({}) copies to memory by the processor, or is on no "
                            "drive of this machine",
                            file.path(), below->file_system),
                "use a file on ext4 or XFS on an NVMe drive");
        if (below->block_device.empty()) return Support::yes({});
        return try_out(below->block_device, memory);
    }

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        const Place& place = buffer.place();
        if (place.is_file()) return DirectFile::open(buffer, options, options_.any_file);
        if (!place.is_host() && !place.is_p2pmem()) return backend::cannot_reach(buffer, name());
        SIDESTEP_CHECK(backend::check_memory(buffer, options.access));
        if (place.is_p2pmem()) {
            // A wrong address would be written to by a drive.
            SIDESTEP_CHECK(describe(buffer));
        }
        return std::make_unique<backend::Registration>(buffer);
    }

    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        const Buffer& from = piece.from->buffer();
        const Buffer& to = piece.to->buffer();
        if (piece.stream != nullptr || piece.capability >= std::size(ends_of) ||
            ends_of[piece.capability] != std::pair(from.place().kind(), to.place().kind()))
            return Error{ErrorCode::unsupported,
                         fmt::format("the p2pmem backend cannot copy from {} to {} that way, nor on streams",
                                     from.place().to_string(), to.place().to_string()),
                         "p2pmem backend"};
        SIDESTEP_CHECK(backend::check_within(piece));
        if (from.place().is_file() || to.place().is_file()) {
            SIDESTEP_TRY(const DirectRange range,
                         (backend::file_piece<DirectFile, backend::Registration>(piece, name())));
            return drive_.start([range] { return range.file->move(range); }, flight);
        }
        // Mapped device memory may be write-combining: the fence lets a drive that is told next see all of it.
        const auto copy = [target = static_cast<char*>(to.address()) + piece.to_offset,
                           source = static_cast<const char*>(from.address()) + piece.from_offset,
                           bytes = piece.size]() -> Result<void> {
            std::memcpy(target, source, bytes);
            driver::store_fence();
            return {};
        };
        if (piece.size > on_the_spot)
            if (auto started = copies_.start(copy, flight)) return started;
        (void)copy();  // also where there is no thread: as quick, but whoever asked waits
        return backend::Progress::done;
    }

private:
    Result<PeerMemory> memory_at(const Place& place) const {
        if (!place.is_p2pmem())
            return invalid("only p2pmem places hold peer-to-peer memory", place.to_string());
        if (auto memory = driver::find_peer_memory(files_, place.path())) return std::move(*memory);
        std::string others;
        for (const PeerMemory& memory : driver::list_peer_memory(files_))
            others += fmt::format("{}p2pmem:{}", others.empty() ? "" : ", ", memory.bus_id);
        return Error{ErrorCode::not_found, fmt::format("{} does not exist", place.to_string()),
                     "p2pmem backend",
                     others.empty() ? "no device of this machine publishes peer-to-peer memory"
                                    : fmt::format("this machine has {}", others)};
    }

    // Whether the kernel lets the drive reach the memory: one page is read from the drive's start into a page of
    // the memory, which is given back. Where that cannot be tried the copy itself finds out.
    Support try_out(const std::string& drive, const Place& memory) const {
        const Bytes page = driver::page_size();
        const auto map = driver::PeerMap::open(driver::peer_memory_file(files_, memory.path()), page);
        if (!map) return Support::yes({});
        const int number = driver::try_direct_read(drive, map->address(), page);
        return refusal(number, drive, memory.to_string()).value_or(Support::yes({}));
    }

    const P2pmemOptions options_;
    const driver::MachineFiles files_;
    std::shared_ptr<PeerAllocations> allocations_ = std::make_shared<PeerAllocations>();
    // One thread, for copies that are too long to be made on the spot: loads from such memory wait for the bus one by
    // one, and more threads would only keep more processors waiting.
    backend::BlockingPieces copies_{1, "p2pmem backend"};
    backend::BlockingPieces drive_{max_threads, "p2pmem backend"};
};

}  // namespace

std::unique_ptr<backend::Backend> create(P2pmemOptions options) {
    return std::make_unique<P2pmemBackend>(std::move(options));
}

}  // namespace sidestep::backends::p2pmem
