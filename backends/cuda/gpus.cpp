#include "backends/cuda/gpus.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>

#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {
Result<std::unique_ptr<Gpu>> Gpu::open(std::shared_ptr<const driver::Cuda> cuda, int index, int ordinal) {
    SIDESTEP_TRY(auto context, driver::CudaContext::retain(std::move(cuda), ordinal));
    std::unique_ptr<Gpu> gpu(new Gpu(index, context));
    for (Lane& lane : gpu->lanes_) {
        for (std::size_t i = 0; i < streams_a_traffic; ++i) {
            SIDESTEP_TRY(auto stream, driver::CudaStream::create(context));
            lane.streams.push_back(std::move(stream));
        }
    }
    SIDESTEP_TRY(auto allocation_stream, driver::CudaStream::create(context));
    gpu->allocation_stream_ = std::make_shared<const driver::CudaStream>(std::move(allocation_stream));
    gpu->kernel_.emplace(CopyKernel::load(context));
    gpu->batch_kernel_.emplace(BatchKernel::load(context));
    return gpu;
}

CUstream Gpu::stream(Traffic traffic) const {
    const Lane& lane = lanes_[static_cast<std::size_t>(traffic)];
    const unsigned turn = lane.turn.fetch_add(1, std::memory_order_relaxed);
    return lane.streams[turn % lane.streams.size()].get();
}

// A copy on a second stream waits until the engine has nothing left to do on the first, or has done that for
// some milliseconds, and whoever looks at copies in the order of their start waits for it: 64 of those in a
// load of 8 GiB cost it 28 ms of 220. Without them the engine still loses 4 us at each change of streams: 4
// MiB at a time, 16 threads brought a warm file to an H200 at 52.3 GB/s on one stream and at 49.6 on two or
// four.
//
// Small copies of several threads use several streams: on one stream each would wait for the ends of all before it.
CUstream Gpu::link_stream(Traffic traffic, const void* host_memory, Bytes size) const {
    const Lane& lane = lanes_[static_cast<std::size_t>(traffic)];
    const std::size_t number =
        size <= small ? base::thread_number()
                      : reinterpret_cast<std::uintptr_t>(host_memory) / alignof(std::max_align_t);
    return lane.streams[number % lane.streams.size()].get();
}

Result<std::unique_ptr<Gpus>> Gpus::find(std::shared_ptr<const driver::Cuda> cuda, const Topology& topology) {
    SIDESTEP_CHECK(cuda->check(cuda->cuInit(0), "cuInit"));
    std::unique_ptr<Gpus> gpus(new Gpus(cuda));
    for (const Device& device : topology.devices())
        gpus->numa_nodes_ += device.kind == DeviceKind::cpu ? 1 : 0;
    SIDESTEP_CHECK(cuda->check(cuda->cuDriverGetVersion(&gpus->driver_version_), "cuDriverGetVersion"));
    SIDESTEP_TRY(const auto addresses, driver::pci_addresses(*cuda));
    SIDESTEP_CHECK(gpus->match(topology, addresses));
    return gpus;
}

Result<void> Gpus::match(const Topology& topology, const std::vector<std::string>& addresses) {
    index_of_.assign(addresses.size(), -1);
    bool matched = false;
    for (const Device& device : topology.devices()) {
        if (device.kind != DeviceKind::gpu) continue;
        Slot& slot = slots_[device.index];
        slot.numa_node = device.numa_node;
        for (std::size_t ordinal = 0; ordinal < addresses.size() && slot.ordinal < 0; ++ordinal) {
            if (index_of_[ordinal] >= 0 || !driver::same_pci_address(device.bus_id, addresses[ordinal]))
                continue;
            slot.ordinal = static_cast<int>(ordinal);
            index_of_[ordinal] = device.index;
            matched = true;
        }
    }
    if (matched) return {};
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return Error{
        ErrorCode::not_found,
        fmt::format("CUDA shows this process none of the machine's {} GPUs ({} devices in all)",
                    slots_.size(), addresses.size()),
        "cuDeviceGetCount",
        visible ? fmt::format("CUDA_VISIBLE_DEVICES is '{}': name a GPU there or unset it", visible) : ""};
}

std::string Gpus::summary() const {
    std::size_t visible = 0;
    for (const auto& [index, slot] : slots_) visible += slot.ordinal >= 0 ? 1 : 0;
    std::string gpus = fmt::format("{} GPU{}", visible, visible == 1 ? "" : "s");
    if (visible < slots_.size())
        gpus = fmt::format("{} of {} GPUs (CUDA_VISIBLE_DEVICES hides the rest)", visible, slots_.size());
    return fmt::format("{}, CUDA driver {}.{}", gpus, driver_version_ / 1000, driver_version_ % 1000 / 10);
}

Result<void> Gpus::check(int index) const {
    if (slots_.count(index) == 0)
        return Error{ErrorCode::not_found, fmt::format("gpu:{} does not exist", index), "cuda",
                     fmt::format("this machine has {} GPUs", slots_.size())};
    if (ordinal_of(index) >= 0) return {};
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return Error{ErrorCode::not_found, fmt::format("gpu:{} is not visible to this process", index), "cuda",
                 fmt::format("CUDA_VISIBLE_DEVICES is '{}'", visible ? visible : "not set")};
}

Result<Gpu*> Gpus::open(int index) {
    SIDESTEP_CHECK(check(index));
    Slot& slot = slots_.find(index)->second;
    if (Gpu* gpu = slot.open.load(std::memory_order_acquire)) return gpu;
    std::lock_guard lock(slot.mutex);
    if (Gpu* gpu = slot.open.load(std::memory_order_acquire)) return gpu;
    auto opened = Gpu::open(cuda_, index, slot.ordinal);
    if (!opened) {
        Error error = opened.error();
        error.where = fmt::format("gpu:{}", index);
        return error;
    }
    slot.owned = std::move(*opened);
    slot.open.store(slot.owned.get(), std::memory_order_release);
    return slot.owned.get();
}

Gpu* Gpus::any_opened() const {
    for (const auto& [index, slot] : slots_)
        if (Gpu* gpu = slot.open.load(std::memory_order_acquire)) return gpu;
    return nullptr;
}

bool Gpus::look() const {
    bool left = false;
    for (const auto& [index, slot] : slots_)
        if (Gpu* gpu = slot.open.load()) left |= gpu->in_flight().look();
    return left;
}

Result<Gpu*> Gpus::open_near(int node) {
    int best = -1;
    bool best_is_near = false;
    for (const auto& [index, slot] : slots_) {
        if (slot.ordinal < 0) continue;
        const bool near = node >= 0 && slot.numa_node == node;
        if (near && slot.open.load()) return slot.open.load();
        if (best >= 0 && (best_is_near || !near)) continue;
        best = index;
        best_is_near = near;
    }
    Gpu* any = any_opened();
    if (any && !best_is_near) return any;
    return open(best);
}

std::optional<int> Gpus::index_of(CUdevice ordinal) const {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= index_of_.size()) return std::nullopt;
    const int index = index_of_[static_cast<std::size_t>(ordinal)];
    return index < 0 ? std::nullopt : std::optional<int>(index);
}

}  // namespace sidestep::backends::cuda
