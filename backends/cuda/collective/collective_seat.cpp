#include "backends/cuda/collective/collective_seat.hpp"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backends/cuda/allocate.hpp"
#include "backends/cuda/collective/host_arena.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

using protocol::CollectiveTask;
using protocol::Shape;

// How long tasks may take to notice an abort: a look at the host's words every 16384 polls takes some 10 ms.
constexpr std::chrono::seconds max_for_an_abort{5};

}  // namespace

Result<std::unique_ptr<CollectiveSeat>> CollectiveSeat::create(
    Seats& seats, Gpu& gpu, std::shared_ptr<const CollectiveKernels> kernels,
    const backend::SeatRequest& request) {
    std::unique_ptr<CollectiveSeat> seat(new CollectiveSeat(seats, gpu, request));
    SIDESTEP_CHECK(seat->set_up(std::move(kernels), request.deadline_ns));
    return seat;
}

Result<void> CollectiveSeat::set_up(std::shared_ptr<const CollectiveKernels> kernels,
                                    std::uint64_t deadline_ns) {
    SIDESTEP_TRY(void* const words, seats_.pages.take());
    static_assert(sizeof(Slot) <= 128);
    slot_ = new (words) Slot{};
    slot_->failed = failed_by_host;
    set_deadline(deadline_ns);
    auto held = std::make_unique<Held>();
    held->kernels = std::move(kernels);
    // Mappings, since freeing them waits for nothing; other processes open the arena by a descriptor.
    const protocol::ArenaLayout layout{ranks_};
    const Bytes bytes = layout.bytes();
    SIDESTEP_TRY(held->arena, allocate_on_gpu(gpu_, bytes, MemoryKind::vmm));
    SIDESTEP_TRY(held->control, allocate_on_gpu(gpu_, sizeof(SeatControl), MemoryKind::vmm));
    driver::ScopedCudaContext current(*gpu_.context());
    SIDESTEP_TRY(auto stream, driver::CudaStream::create(gpu_.context()));
    stream_.emplace(std::move(stream));
    SIDESTEP_TRY(order_, TaskOrder::create(seats_.gpus.cuda()));
    // From here on the destructor waits for what the stream holds.
    held_ = std::move(held);
    CUdeviceptr on_gpu = 0;
    CUresult status = cuda().cuMemHostGetDevicePointer(&on_gpu, slot_, 0);
    SIDESTEP_CHECK(cuda().check(status, "cuMemHostGetDevicePointer"));
    words_on_gpu_ = reinterpret_cast<HostWords*>(on_gpu + offsetof(Slot, words));
    const auto arena = reinterpret_cast<CUdeviceptr>(held_->arena.address());
    SIDESTEP_CHECK(cuda().check(cuda().cuMemsetD8Async(arena, 0, bytes, stream_->get()), "cuMemsetD8Async"));
    const CUdeviceptr empty = arena + layout.lamport(0, 0);
    status =
        cuda().cuMemsetD8Async(empty, protocol::lamport_empty & 0xff, layout.lamport_bytes(), stream_->get());
    SIDESTEP_CHECK(cuda().check(status, "cuMemsetD8Async"));
    status = cuda().cuMemsetD8Async(control(), 0, sizeof(SeatControl), stream_->get());
    SIDESTEP_CHECK(cuda().check(status, "cuMemsetD8Async"));
    return cuda().check(cuda().cuStreamSynchronize(stream_->get()), "cuStreamSynchronize");
}

CollectiveSeat::~CollectiveSeat() {
    if (!held_) {
        if (slot_) seats_.pages.give_back(slot_);
        return;
    }
    abort();
    const Rest left = rest();
    halt();
    if (left == Rest::none) {
        seats_.pages.give_back(slot_);
        return;
    }
    if (left == Rest::running)
        base::log(
            base::LogLevel::warn,
            fmt::format("gpu:{}: tasks of rank {} have not ended {} s after their abort; {} stay allocated",
                        gpu_.index(), rank_, max_for_an_abort.count(), format_bytes(held_->arena.size())));
    static_cast<void>(held_.release());
    if (left == Rest::running) return;
    // Their destructors would call a context that is gone.
    static_cast<void>(new std::optional(std::move(stream_)));
    stream_.reset();
    static_cast<void>(order_.release());
}

// Whether a task is still in flight, some seconds after the abort.
CollectiveSeat::Rest CollectiveSeat::rest() noexcept {
    driver::ScopedCudaContext current(*gpu_.context());
    const auto end = std::chrono::steady_clock::now() + max_for_an_abort;
    for (bool doubted = false;;) {
        if (copies()) copies()->look();
        CUresult status = order_->anywhere();
        if (status == CUDA_SUCCESS) status = cuda().cuStreamQuery(stream_->get());
        const bool copying = (copies() && copies()->busy()) || !seats_.shared_streams.settled();
        if (status == CUDA_SUCCESS && (copying || order_->lost())) status = CUDA_ERROR_NOT_READY;
        if (status == CUDA_SUCCESS) return Rest::none;
        if (status == CUDA_ERROR_CONTEXT_IS_DESTROYED || status == CUDA_ERROR_DEINITIALIZED ||
            status == CUDA_ERROR_INVALID_HANDLE)
            return Rest::no_context;
        // One question that fails tells nothing. Where nothing runs in the context any more, all do.
        const bool failed = status != CUDA_ERROR_NOT_READY;
        if (std::exchange(doubted, failed) && failed) return Rest::none;
        if (std::chrono::steady_clock::now() > end) return Rest::running;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

// Of one allocation or mapping; a growing segment has several, within the addresses that were reserved for it.
Result<backend::Extent> CollectiveSeat::look_up_extent(CUdeviceptr address, std::uint64_t id) {
    const auto refuse = [&](const char* why) {
        return Error{ErrorCode::invalid_argument, why, fmt::format("0x{:x}", address),
                     fmt::format("give memory of gpu:{}", gpu_.index())};
    };
    CUmemorytype type = {};
    int ordinal = -1;
    unsigned managed = 0;
    CUdeviceptr reserved = 0;
    std::size_t reserved_size = 0;
    std::array names{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                     CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                     CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, names.size()> values{&type, &ordinal, &managed, &reserved, &reserved_size};
    CUresult status = cuda().cuPointerGetAttributes(names.size(), names.data(), values.data(), address);
    SIDESTEP_CHECK(cuda().check(status, "cuPointerGetAttributes"));
    const bool host = managed == 0 && type == CU_MEMORYTYPE_HOST;  // that the driver knows: pinned
    if (managed == 0 && type != CU_MEMORYTYPE_DEVICE && !host)
        return refuse("this is neither GPU memory nor pinned");
    if (managed == 0 && !host && seats_.gpus.index_of(ordinal) != gpu_.index())
        return refuse("this is memory of another GPU");
    CUdeviceptr base = 0;
    std::size_t size = 0;
    status = cuda().cuMemGetAddressRange(&base, &size, address);
    SIDESTEP_CHECK(cuda().check(status, "cuMemGetAddressRange"));
    backend::Extent found{Buffer::gpu(gpu_.index(), reinterpret_cast<void*>(base), size), id};
    if (host) found.never_lent = "it is host memory";
    found.goes_on = reserved + reserved_size > base + size;
    return found;
}

Result<backend::Extent> CollectiveSeat::extent(const void* address) {
    driver::ScopedCudaContext current(*gpu_.context());
    const auto at = reinterpret_cast<CUdeviceptr>(address);
    // The number tells an allocation from one that had the same address before.
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    unsigned long long id = 0;
    void* value = &id;
    CUresult status = cuda().cuPointerGetAttributes(1, &name, &value, at);
    SIDESTEP_CHECK(cuda().check(status, "cuPointerGetAttributes"));
    std::lock_guard lock(extents_);
    if (id != 0) {
        for (const Known& known : known_) {
            const auto base = reinterpret_cast<CUdeviceptr>(known.extent.whole.address());
            if (known.id == id && at >= base && at - base < known.extent.whole.size()) return known.extent;
        }
    }
    SIDESTEP_TRY(auto found, look_up_extent(at, id));
    if (id != 0) known_[next_known_++ % known_.size()] = {id, found};
    return found;
}

// Asks the driver without a context on the other GPU; nothing is known of one that this process does not see.
Result<void> CollectiveSeat::check_access(const Place& place) const {
    const int other = place.index();
    if (!place.is_gpu() || other == gpu_.index()) return {};
    const int ordinal = seats_.gpus.ordinal_of(other);
    CUdevice device = 0;
    if (ordinal < 0) return {};
    SIDESTEP_CHECK(cuda().check(cuda().cuDeviceGet(&device, ordinal), "cuDeviceGet"));
    int allowed = 0;
    const CUresult status = cuda().cuDeviceCanAccessPeer(&allowed, gpu_.context()->device(), device);
    SIDESTEP_CHECK(cuda().check(status, "cuDeviceCanAccessPeer"));
    if (allowed) return {};
    return Error{ErrorCode::unsupported,
                 fmt::format("gpu:{} cannot access the memory of gpu:{}", gpu_.index(), other),
                 "cuDeviceCanAccessPeer", "see `nvidia-smi topo -p2p rw`"};
}

Result<Allocation> CollectiveSeat::open(const backend::Exported& exported) {
    if (exported.scheme == host_arena_scheme) return open_host_arena(gpu_, exported);
    SIDESTEP_CHECK(check_access(exported.place));
    auto opened = seats_.ipc.open(exported, &gpu_);
    // Of a GPU that this process does not see only the attempt can tell.
    if (!opened && exported.place.is_gpu() && !seats_.gpus.check(exported.place.index()) &&
        opened.error().code != ErrorCode::out_of_memory)
        return Error{ErrorCode::unsupported,
                     fmt::format("gpu:{} cannot map the memory of {}: {}", gpu_.index(),
                                 exported.place.to_string(), opened.error().message),
                     opened.error().where, opened.error().hint};
    if (!opened) return opened.error();
    if (*opened) return std::move(**opened);
    return Error{ErrorCode::unsupported,
                 fmt::format("memory shared by '{}' is no GPU's", exported.scheme),
                 "cuda",
                 {}};
}

bool CollectiveSeat::multicast() const {
    int supported = 0;
    const CUresult status = cuda().cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
                                                        gpu_.context()->device());
    return status == CUDA_SUCCESS && supported != 0;
}

std::string CollectiveSeat::gpu_id() const {
    CUuuid uuid{};
    if (cuda().cuDeviceGetUuid(&uuid, gpu_.context()->device()) != CUDA_SUCCESS) return {};
    return std::string(uuid.bytes, sizeof(uuid.bytes));
}

unsigned CollectiveSeat::multiprocessors() const {
    int count = 0;
    const CUresult status = cuda().cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                                        gpu_.context()->device());
    return status == CUDA_SUCCESS ? static_cast<unsigned>(count) : 0;
}

Result<std::shared_ptr<const backend::Exported>> CollectiveSeat::move_arena_to_host() {
    SIDESTEP_TRY(HostArena made, make_host_arena(gpu_, held_->arena.size()));
    held_->arena = std::move(made.memory);
    const protocol::ArenaLayout layout{ranks_};
    std::memset(static_cast<char*>(held_->arena.address()) + layout.lamport(0, 0),
                protocol::lamport_empty & 0xff, layout.lamport_bytes());
    return std::move(made.exported);
}

Result<void> CollectiveSeat::admit(const Buffer& memory) {
    SIDESTEP_TRY(const auto pointer, look_up(seats_.gpus, memory));
    if (pointer && memory.place().is_host() && pointer->kind == MemoryKind::pinned)
        return check_seen_alike(gpu_, memory.address());
    if (!pointer || !memory.place().is_gpu())
        return Error{
            ErrorCode::unsupported, "only memory of GPUs, or locked, is admitted", memory.to_string(), {}};
    if (memory.place().index() == gpu_.index()) return {};
    SIDESTEP_CHECK(check_access(memory.place()));
    SIDESTEP_TRY(Gpu * owner, seats_.gpus.open(memory.place().index()));
    // Mappings and pools have access lists of their own, and enabling the peers takes 0.1 s.
    if (pointer->kind != MemoryKind::vmm && pointer->kind != MemoryKind::pool)
        SIDESTEP_CHECK(seats_.peers.enable(gpu_, *owner));
    std::lock_guard lock(seats_.grants);
    SIDESTEP_TRY(const bool granted, grant(gpu_, *owner, memory, *pointer));
    if (granted) return {};
    return Error{ErrorCode::unsupported,
                 "memory of another process, which only its own GPU can reach",
                 memory.to_string(),
                 {}};
}

// By a copy on an own stream: the caller's may hold tasks that wait for others.
Result<void> CollectiveSeat::write_control(std::uint64_t offset, const void* from, std::size_t bytes) const {
    const auto source = reinterpret_cast<CUdeviceptr>(from);
    CUresult status = cuda().cuMemcpyAsync(control() + offset, source, bytes, stream_->get());
    return cuda().check(status, "cuMemcpyAsync");
}

Result<void> CollectiveSeat::reach(unsigned rank, unsigned slot, std::span<char> memory) {
    if (rank >= ranks_ || slot >= protocol::max_slots)
        return Error{
            ErrorCode::internal, fmt::format("no table holds slot {} of rank {}", slot, rank), "cuda", {}};
    std::lock_guard lock(tables_);
    driver::ScopedCudaContext current(*gpu_.context());
    slots_.set(rank, slot, memory);
    slot_->reach = {memory.data(), memory.size()};
    const std::uint64_t at =
        offsetof(SeatControl, reaches) + (std::uint64_t{slot} * protocol::max_ranks + rank) * sizeof(Reach);
    SIDESTEP_CHECK(write_control(at, &slot_->reach, sizeof(Reach)));
    return cuda().check(cuda().cuStreamSynchronize(stream_->get()), "cuStreamSynchronize");
}

Result<void> CollectiveSeat::launch(const CollectiveTask& task, Launch& launch, CUstream stream) {
    void* arguments[] = {const_cast<CollectiveTask*>(&task), &launch.station};
    CUlaunchAttribute early{};
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    // Few and small blocks only: those that have come wait where other kernels have no room then.
    const bool comes_early = held_->kernels->may_come_early(task, launch.blocks * launch.rows);
    const CUlaunchConfig how{launch.blocks, launch.rows,          1, launch.threads, 1, 1, 0, stream,
                             &early,        comes_early ? 1u : 0u};
    const CUfunction kernel = held_->kernels->kernel(task, ranks_, launch.plain, launch.blocks);
    const CUresult status = cuda().cuLaunchKernelEx(&how, kernel, arguments, nullptr);
    if (status == CUDA_ERROR_INVALID_HANDLE)
        return Error{ErrorCode::invalid_argument, "the stream does not belong to the rank's GPU",
                     fmt::format("gpu:{}", gpu_.index()), "give a stream of that GPU"};
    return cuda().check(status, "cuLaunchKernel");
}

CopyPost CollectiveSeat::copy_post() {
    return {rank_, ranks_, rows_, &slots_, where_};
}

Result<void> CollectiveSeat::prepare_copies() {
    driver::ScopedCudaContext current(*gpu_.context());
    if (!CopyStreams::check(gpu_)) return {};  // the first task says so
    SIDESTEP_CHECK(CopyStreams::prime(seats_, gpu_, copy_post()));
    return {};
}

Result<void> CollectiveSeat::run_copies(const CollectiveTask& task, CUstream stream, bool captures) {
    for (unsigned rank = 0; rank < ranks_; ++rank) {
        if (rank == rank_)
            slots_.set(rank, 0, {static_cast<char*>(held_->arena.address()), held_->arena.size()});
        if (slots_.find(rank, 0) == nullptr)
            return Error{
                ErrorCode::internal, fmt::format("the arena of rank {} is not mapped", rank), "cuda", {}};
    }
    if (!held_->copies) {
        SIDESTEP_TRY(held_->copies, Copies::create(seats_, gpu_, copy_post(), slot_->words));
        copies_.store(held_->copies.get());
        // abort() may not have seen it.
        if (std::atomic_ref(slot_->words.abort).load() != 0) copies()->stop();
    }
    return copies()->run(task, stream, captures);
}

Result<void> CollectiveSeat::run(const CollectiveTask& task, void* stream) {
    const bool copying = task.shape == Shape::copies;
    Launch launch = copying ? Launch{} : plan(task);
    if (!copying && launch.blocks == 0) return {};
    const auto callers = static_cast<CUstream>(stream);
    driver::ScopedCudaContext current(*gpu_.context());
    std::lock_guard lock(enqueuing_);
    SIDESTEP_TRY(const bool captures, begin_in_order(callers));
    launch.station.marked = mark_of_task(++enqueued_);
    const auto ran = copying ? run_copies(task, callers, captures) : this->launch(task, launch, callers);
    // Copies that were given up have left a part in the stream.
    if (!ran && !(copying && fault())) return ran;
    auto ended = order_->end(callers, captures);
    if (!ended) abort();  // the task is in the stream by now
    return ran ? ended : ran;
}

Result<bool> CollectiveSeat::begin_in_order(CUstream stream) {
    const std::lock_guard calls(waits_.calls);
    ++waits_.count;
    return order_->begin(stream);
}

// Takes no lock, because run() may block on a full stream.
Result<bool> CollectiveSeat::have_ended(CUresult (TaskOrder::*which)() const) {
    if (copies()) copies()->look();
    driver::ScopedCudaContext current(*gpu_.context());
    const CUresult status = (*order_.*which)();
    if (status == CUDA_ERROR_NOT_READY) return false;
    SIDESTEP_CHECK(cuda().check(status, "cuEventQuery"));
    return !order_->lost();
}

std::optional<protocol::FaultRecord> CollectiveSeat::fault() const {
    using protocol::FaultKind;
    const std::atomic_ref kind(slot_->words.fault.kind);
    if (kind.load(std::memory_order_acquire) != FaultKind::none) return slot_->words.fault;
    if (std::atomic_ref(slot_->words.abort).load(std::memory_order_acquire) == 0) return std::nullopt;
    // No task was there to write it.
    protocol::FaultRecord record;
    record.kind = FaultKind::aborted;
    return record;
}

// The word for tasks that wait, and the mark that later ones find when they begin.
void CollectiveSeat::abort() noexcept {
    std::atomic_ref(slot_->words.abort).store(1);
    if (copies()) copies()->stop();
    if (std::atomic_ref(slot_->words.fault.kind).load(std::memory_order_acquire) != protocol::FaultKind::none)
        return;
    driver::ScopedCudaContext current(*gpu_.context());
    static_cast<void>(write_control(offsetof(SeatControl, failed), &slot_->failed, sizeof(slot_->failed)));
}

void CollectiveSeat::halt() noexcept {
    if (copies()) copies()->halt();
}

Result<void> CollectiveSeat::begin_at(std::uint64_t count) {
    std::lock_guard lock(tables_);
    driver::ScopedCudaContext current(*gpu_.context());
    slot_->value = count;
    SIDESTEP_CHECK(write_control(offsetof(SeatControl, epoch), &slot_->value, sizeof(count)));
    for (std::uint64_t at = offsetof(SeatControl, round); at < sizeof(SeatControl); at += sizeof(count))
        SIDESTEP_CHECK(write_control(at, &slot_->value, sizeof(count)));
    return cuda().check(cuda().cuStreamSynchronize(stream_->get()), "cuStreamSynchronize");
}

void CollectiveSeat::set_deadline(std::uint64_t ns) {
    std::atomic_ref(slot_->words.deadline_ns).store(ns, std::memory_order_release);
}

}  // namespace sidestep::backends::cuda
