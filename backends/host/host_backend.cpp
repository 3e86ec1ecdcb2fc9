#include "backends/host/host_backend.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "backend/device_memory.hpp"
#include "backends/host/collective/emulated_seat.hpp"
#include "backends/host/copy_pool.hpp"
#include "backends/host/memory.hpp"
#include "base/try.hpp"
#include "driver/cpus.hpp"
#include "driver/shared_pages.hpp"

namespace sidestep::backends::host {
namespace {

using backend::Capability;
using backend::MemorySet;
using backend::Reach;

// Up to this size a copy costs less than telling a thread about it.
constexpr Bytes copied_on_the_spot = 64_KiB;

// More threads than this gain nothing on one memory controller, and take processors from others.
constexpr int max_chosen_threads = 16;
constexpr int max_threads = 256;

// What the engines are expected to reach. The planner prices routes with these.
//
// One thread's copy between buffers that fit no cache, and what a machine's memory gives to all of
// them. Measured on a Xeon of the 5th generation with 16 processors: 42 GB/s with 4 threads, 66 with 8, 94
// with 16; an EPYC of the Zen 5 kind with 2 processors: 21. So much for all, but no more than the ceiling.
constexpr double memcpy_gb_per_s_per_thread = 10;
constexpr double memcpy_gb_per_s_ceiling = 94;
constexpr double memcpy_latency_us = 0.1;

// The rest is for emulated GPUs, as measured with nvbandwidth 0.8 on four NVIDIA H200 behind NVSwitch, driver
// 580.159.04. A kernel's share of what a copy engine reaches over NVLink:
constexpr double nvlink_kernel = 376.0 / 396.0;
// Inside one GPU, every byte counted once.
constexpr double local_copy_gb_per_s = 2093;
// From the call to the first byte, links left out.
constexpr double copy_engine_latency_us = 2.2;
constexpr double kernel_latency_us = 2.0;

// Memory made ready.
class HostRegistration final : public backend::Registration {
public:
    HostRegistration(const Buffer& of, MemoryKind memory, CopyPool* copied_by)
        : Registration(of), kind(memory), pool(copied_by) {}
    char* at(Bytes offset) const { return static_cast<char*>(buffer().address()) + offset; }

    const int gpu = buffer().place().is_gpu() ? buffer().place().index() : -1;  // -1: host memory
    const MemoryKind kind;
    CopyPool* const pool;  // of the NUMA node, for copies into this memory; null for a GPU
};

std::pair<const HostRegistration&, const HostRegistration&> ends_of(const backend::Piece& piece) {
    return {static_cast<const HostRegistration&>(*piece.from),
            static_cast<const HostRegistration&>(*piece.to)};
}

// What a copy engine brings lies in the GPU's memory afterwards and not in the processor's caches, where the
// staging slots are of more use.
constexpr Bytes brought_around_caches_from = 64_KiB;

// The copy engines of one emulated GPU, a thread each.
struct GpuEngines {
    CopyPool inbound{1, {}, brought_around_caches_from};  // from the host
    CopyPool outbound{1, {}};                             // to the host, to peers, and within the GPU
};

Capability memcpy_capability(int threads) {
    Capability copy;
    copy.from_memory = copy.to_memory = {MemoryKind::pageable, MemoryKind::pinned};
    copy.reach = Reach::host_memory;
    copy.engine = "memcpy";
    copy.max_gb_per_s = std::min(memcpy_gb_per_s_per_thread * threads, memcpy_gb_per_s_ceiling);
    copy.latency_us = memcpy_latency_us;
    copy.at_once = copied_on_the_spot;
    copy.reason = "copied by the CPU's own threads";
    return copy;
}

Capability gpu_capability(PlaceKind from, PlaceKind to, Reach reach, bool kernel) {
    const auto memory = [](PlaceKind kind) {
        return kind == PlaceKind::gpu ? MemorySet{MemoryKind::device} : MemorySet{MemoryKind::pinned};
    };
    Capability copy;
    copy.from = from;
    copy.to = to;
    copy.from_memory = memory(from);
    copy.to_memory = memory(to);
    copy.reach = reach;
    copy.engine = kernel ? "host-emulated kernel" : "host-emulated copy engine";
    copy.meets = kernel ? Prefer::kernel : Prefer::copy_engine;
    copy.latency_us = kernel ? kernel_latency_us : copy_engine_latency_us;
    copy.reason = kernel ? "loads and stores of an emulated kernel" : "DMA of an emulated GPU";
    if (reach == Reach::peer_access && kernel) copy.efficiency = nvlink_kernel;
    if (reach == Reach::same_gpu) copy.max_gb_per_s = local_copy_gb_per_s;
    return copy;
}

Error invalid(std::string message, std::string where) {
    return {ErrorCode::invalid_argument, std::move(message), std::move(where)};
}

Error out_of_reach(std::string message, std::string hint = {}) {
    return {ErrorCode::unsupported, std::move(message), "host backend", std::move(hint)};
}

class HostBackend final : public backend::Backend,
                          public backend::Allocator,
                          public backend::Batcher,
                          public backend::Sharer,
                          public backend::Seats,
                          public backend::DmaBufs {
public:
    explicit HostBackend(HostOptions options) : options_(options) {}

    std::string_view name() const override { return "host"; }

    backend::Support probe(const Topology& topology) override {
        const int usable = driver::usable_cpu_count();
        threads_ = options_.threads > 0 ? std::min(options_.threads, max_threads)
                                        : std::min(usable, max_chosen_threads);
        pool_ = std::make_unique<CopyPool>(threads_, std::vector<int>{});
        capabilities_.push_back(memcpy_capability(threads_));
        if (topology.emulated()) emulate(topology);
        const std::string found = fmt::format("{} thread{} for copies", threads_, threads_ == 1 ? "" : "s");
        if (!emulates_gpus()) return backend::Support::yes(found);
        const int gpus = topology.gpu_count();
        return backend::Support::yes(fmt::format("{}, {} emulated GPU{}", found, gpus, gpus == 1 ? "" : "s"));
    }

    std::vector<Capability> capabilities() const override { return capabilities_; }
    backend::Allocator* allocator() override { return this; }
    backend::Batcher* batcher() override { return this; }
    backend::Sharer* sharer() override { return this; }
    backend::GpuAddresses* gpu_addresses() override { return emulated_.get(); }
    backend::Seats* seats() override { return emulates_gpus() ? this : nullptr; }

    MemorySet allocates(PlaceKind kind) const override {
        if (kind == PlaceKind::host && emulated_) return {MemoryKind::pageable, MemoryKind::pinned};
        if (kind == PlaceKind::host) return {MemoryKind::pageable};
        if (kind == PlaceKind::gpu && emulates_gpus()) return {MemoryKind::device};
        return {};
    }

    // On the real machine what lies at an address is known to the driver of the GPUs, not here.
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        if (!emulated_ || buffer.place().is_file()) return std::optional<backend::Description>{};
        SIDESTEP_TRY(const auto description, emulated_->describe(buffer));
        return std::optional(description);
    }

    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) override {
        if (!allocates(place.kind()).has(kind)) {
            return out_of_reach(fmt::format("the host backend allocates no {} memory at {}", to_string(kind),
                                            place.to_string()));
        }
        if (place.is_gpu()) {
            SIDESTEP_CHECK(emulated_->describe(Buffer::memory(place, nullptr, 0)));  // is that GPU there
            return emulated_->allocate(place, bytes, kind);
        }
        SIDESTEP_TRY(const int node, node_to_bind(place));
        if (kind == MemoryKind::pinned) return emulated_->allocate(place, bytes, kind);
        SIDESTEP_TRY(auto memory, machine_->take(bytes, node, "of host memory"));
        const Buffer buffer = Buffer::memory(place, memory->address(), bytes);
        return Allocation(buffer, kind, [memory]() mutable { memory.reset(); });
    }

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        const Place& place = buffer.place();
        if (place.is_file() || (place.is_gpu() && !emulates_gpus())) {
            return out_of_reach(fmt::format("the host backend cannot reach {}", place.to_string()));
        }
        SIDESTEP_CHECK(backend::check_memory(buffer, options.access));
        MemoryKind kind = MemoryKind::pageable;
        if (emulated_) {
            SIDESTEP_TRY(const auto description, emulated_->describe(buffer));
            kind = description.memory;
        }
        CopyPool* pool = nullptr;
        if (place.is_host()) {
            SIDESTEP_TRY(pool, pool_for(place));
        }
        return std::unique_ptr<backend::Registration>(std::make_unique<HostRegistration>(buffer, kind, pool));
    }

    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        SIDESTEP_TRY(const CopySpan span, span_of(piece));
        const auto& [from, to] = ends_of(piece);
        if (piece.size <= copied_on_the_spot && to.gpu < 0 && from.gpu < 0) {
            std::memcpy(span.to, span.from, span.bytes);
            return backend::Progress::done;
        }
        return start_batch({&piece, 1}, flight);
    }

    // By the copy engine of the first piece's GPU, or the threads of its target's memory.
    Result<backend::Progress> start_batch(std::span<const backend::Piece> pieces,
                                          backend::Flight& flight) override {
        std::vector<CopySpan> spans;
        spans.reserve(pieces.size());
        Bytes bytes = 0;
        for (const backend::Piece& piece : pieces) {
            SIDESTEP_TRY(const CopySpan span, span_of(piece));
            spans.push_back(span);
            bytes += piece.size;
        }
        if (bytes == 0) return backend::Progress::done;
        const auto& [from, to] = ends_of(pieces.front());
        CopyPool* pool = to.pool;
        if (from.gpu >= 0 || to.gpu >= 0) {
            const std::lock_guard lock(mutex_);
            pool = from.gpu >= 0 ? &engines_[from.gpu].outbound : &engines_[to.gpu].inbound;
        }
        SIDESTEP_CHECK(pool->copy(std::move(spans), bytes, flight));
        return backend::Progress::pending;
    }

    Result<std::optional<backend::Exported>> share(const Buffer& buffer) override {
        if (!buffer.place().is_host() && !buffer.place().is_gpu()) return std::optional<backend::Exported>();
        backend::Description known{buffer.place(), MemoryKind::pageable};
        if (emulated_) {
            SIDESTEP_TRY(known, emulated_->describe(buffer));
        }
        SIDESTEP_TRY(auto exported, machine_->share(buffer.address(), buffer.size()));
        if (exported) {
            exported->place = known.place;
            exported->memory = known.memory;
        }
        return exported;
    }

    Result<std::optional<Allocation>> open(const backend::Exported& exported) override {
        if (exported.scheme != memfd_scheme) return std::optional<Allocation>();
        Place place = exported.place;
        if (place.is_gpu()) {
            if (!emulated_)
                return out_of_reach(
                    fmt::format("the memory is that of an emulated {}, and this machine is real",
                                place.to_string()),
                    "open the machine that the publisher emulates (SIDESTEP_MACHINE)");
            SIDESTEP_CHECK(emulated_->describe(Buffer::memory(place, nullptr, 0)));  // is that GPU there
        } else if (!node_to_bind(place)) {
            place = Place::host();  // a node of another model
        }
        SIDESTEP_TRY(auto map, driver::SharedMap::open(exported.descriptor, exported.offset + exported.size));
        auto held = std::make_shared<const driver::SharedMap>(std::move(map));
        const Buffer buffer = Buffer::memory(place, held->address(), held->length());
        if (emulated_ && exported.memory != MemoryKind::pageable)
            return std::optional(emulated_->hold(buffer, exported.memory, held));
        return std::optional(Allocation(buffer, MemoryKind::pageable, [held]() mutable { held.reset(); }));
    }

    Result<std::unique_ptr<backend::Seat>> seat(const backend::SeatRequest& request) override {
        if (!request.place.is_gpu())
            return invalid("a rank of a group sits on a GPU", request.place.to_string());
        SIDESTEP_CHECK(emulated_->describe(Buffer::memory(request.place, nullptr, 0)));  // is that GPU there
        return make_seat(request, {emulated_, machine_shown_, this, multicast_});
    }

    // Memory of emulated GPUs is pages of the host: there is none, and a card takes it by its address.
    Result<backend::DmaBuf> dma_buf(const Buffer& memory) override {
        return Error{ErrorCode::unsupported, "memory of an emulated GPU has no dma-buf",
                     memory.place().to_string()};
    }
    Result<void> see_writes(const Place&) override { return {}; }
    Result<Allocation> scratch(const Place& gpu, Bytes bytes) override {
        return allocate(gpu, bytes, MemoryKind::device);
    }
    Result<void> copy_in(const Buffer& scratch, const void* from) override {
        std::memcpy(scratch.address(), from, scratch.size());
        return {};
    }
    Result<void> copy_out(const Buffer& scratch, void* to) override {
        std::memcpy(to, scratch.address(), scratch.size());
        return {};
    }

private:
    void emulate(const Topology& topology) {
        machine_shown_ = &topology;
        std::map<int, Bytes> gpu_bytes;
        bool reduces = false;  // NVSwitches do since those that join GPUs of compute capability 9.0
        for (const Device& device : topology.devices()) {
            if (device.kind == DeviceKind::cpu) model_nodes_.push_back(device.index);
            if (device.kind == DeviceKind::nvswitch) multicast_ = true;
            if (device.kind == DeviceKind::gpu)
                gpu_bytes[device.index] =
                    options_.emulated_gpu_memory != 0 ? options_.emulated_gpu_memory : device.memory;
            const auto cc = device.properties.find("cc");
            if (device.kind == DeviceKind::gpu && cc != device.properties.end())
                reduces |= std::strtol(cc->second.c_str(), nullptr, 10) >= 9;
        }
        multicast_ &= reduces;
        emulated_ = std::make_shared<EmulatedMemory>(std::move(gpu_bytes), machine_);
        if (!emulates_gpus()) return;
        constexpr auto on_host = PlaceKind::host;
        constexpr auto on_gpu = PlaceKind::gpu;
        capabilities_.push_back(gpu_capability(on_host, on_gpu, Reach::host_link, false));
        capabilities_.push_back(gpu_capability(on_gpu, on_host, Reach::host_link, false));
        for (const bool kernel : {false, true}) {
            capabilities_.push_back(gpu_capability(on_gpu, on_gpu, Reach::same_gpu, kernel));
            capabilities_.push_back(gpu_capability(on_gpu, on_gpu, Reach::peer_access, kernel));
        }
    }

    bool emulates_gpus() const { return machine_shown_ != nullptr && machine_shown_->gpu_count() > 0; }

    // The node to bind memory to, -1 for none. A model's nodes are not this machine's: its memory comes from
    // anywhere, once the node is known to be in the model.
    Result<int> node_to_bind(const Place& place) const {
        const int node = place.index();
        if (node < 0) return -1;
        if (emulated_) {
            if (std::ranges::find(model_nodes_, node) != model_nodes_.end()) return -1;
            return Error{ErrorCode::not_found, fmt::format("the modelled machine has no NUMA node {}", node),
                         place.to_string(), "use a node that is there, or plain `host`"};
        }
        SIDESTEP_CHECK(driver::node_cpus(node));
        return node;
    }

    Result<CopyPool*> pool_for(const Place& place) {
        if (place.index() < 0) return pool_.get();
        const std::lock_guard lock(mutex_);
        const auto found = node_pools_.find(place.index());
        if (found != node_pools_.end()) return found->second.get();
        SIDESTEP_TRY(const int node, node_to_bind(place));
        if (node < 0) return pool_.get();
        SIDESTEP_TRY(auto cpus, driver::node_cpus(node));
        // A node with memory alone is served by all processors.
        const int count = cpus.empty() ? threads_ : std::min(threads_, static_cast<int>(cpus.size()));
        auto& pool = node_pools_[node] = std::make_unique<CopyPool>(count, std::move(cpus));
        return pool.get();
    }

    Result<void> check_reach(const Capability& by, const HostRegistration& from,
                             const HostRegistration& to) const {
        const auto fits = [](PlaceKind kind, const MemorySet& memory, const HostRegistration& end) {
            return (kind == PlaceKind::gpu) == (end.gpu >= 0) && memory.has(end.kind);
        };
        if (!fits(by.from, by.from_memory, from) || !fits(by.to, by.to_memory, to)) {
            return out_of_reach(fmt::format("{} cannot copy from {} ({}) to {} ({})", by.engine,
                                            from.buffer().place().to_string(), to_string(from.kind),
                                            to.buffer().place().to_string(), to_string(to.kind)));
        }
        if (by.reach == Reach::same_gpu && from.gpu != to.gpu) {
            return out_of_reach(fmt::format("gpu:{} and gpu:{} are two GPUs", from.gpu, to.gpu));
        }
        if (by.reach != Reach::peer_access) return {};
        if (from.gpu == to.gpu) return out_of_reach(fmt::format("both ends lie in gpu:{}", to.gpu));
        const PeerAccess access = machine_shown_->peer_access(from.gpu, to.gpu);
        if (access.allowed) return {};
        return out_of_reach(fmt::format("gpu:{} cannot reach gpu:{}: {}", from.gpu, to.gpu, access.reason),
                            access.remedy);
    }

    // What a piece comes to, once it is known to be sensible and within reach.
    Result<CopySpan> span_of(const backend::Piece& piece) const {
        const auto& [from, to] = ends_of(piece);
        SIDESTEP_CHECK(backend::check_within(piece));
        char* const target = to.at(piece.to_offset);
        const char* const source = from.at(piece.from_offset);
        if (target < source + piece.size && source < target + piece.size) {
            return invalid("source and target of a piece overlap", to.buffer().to_string());
        }
        if (piece.stream != nullptr) return out_of_reach("the host backend knows no streams");
        if (piece.capability >= capabilities_.size())
            return invalid("there is no such engine", "host backend");
        SIDESTEP_CHECK(check_reach(capabilities_[piece.capability], from, to));
        return CopySpan{target, source, piece.size};
    }

    // Constant after probe().
    const HostOptions options_;
    int threads_ = 1;
    std::vector<Capability> capabilities_;
    // The emulated machine, null on the real one. It is asked about pairs as they come: a table of them would
    // grow with the square of the GPUs.
    const Topology* machine_shown_ = nullptr;
    bool multicast_ = false;        // of the machine, as backend::Seat's
    std::vector<int> model_nodes_;  // NUMA nodes of an emulated machine
    const std::shared_ptr<MachineMemory> machine_ = std::make_shared<MachineMemory>();
    std::shared_ptr<EmulatedMemory> emulated_;  // null on the real machine

    std::mutex mutex_;  // guards what follows
    std::map<int, std::unique_ptr<CopyPool>> node_pools_;

    // After everything their threads use: destroyed first.
    std::unique_ptr<CopyPool> pool_;
    std::map<int, GpuEngines> engines_;  // by GPU, made at the first copy; guarded by mutex_
};

}  // namespace

std::unique_ptr<backend::Backend> create(HostOptions options) {
    return std::make_unique<HostBackend>(options);
}

}  // namespace sidestep::backends::host
