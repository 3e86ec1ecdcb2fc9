#include "shims/nccl/machine.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include <sidestep/collective.hpp>
#include "shims/nccl/driver.hpp"
#include "shims/nccl/failure.hpp"

namespace sidestep::nccl {
namespace {

struct SharedContext {
    std::mutex lock;
    std::optional<Context> context;
};
SharedContext& shared() {
    static auto& one = *new SharedContext;
    return one;
}

std::atomic<bool> has_ended{false};

// Of this thread, on emulated GPUs; -1: none.
thread_local int chosen_device = -1;
thread_local int joined_device = -1;

// "0000:1B:00.0" and "00000000:1b:00.0" name the same device.
std::string plain_bus_id(const std::string& text) {
    std::string plain;
    for (const char c : text) plain += c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    const auto colon = plain.find(':');
    while (plain.size() > 1 && plain[0] == '0' && colon != std::string::npos && plain[1] != ':')
        plain.erase(0, 1);
    return plain;
}

Result<Gpu> emulated_device(const Context& context, int number) {
    const Topology& topology = context.topology();
    if (!topology.find(DeviceKind::gpu, number))
        return bad_argument(
            fmt::format("there is no GPU {}: {} has {} GPUs", number, topology.name(), topology.gpu_count()));
    return Gpu{number, Place::gpu(number), true};
}

Result<Gpu> cuda_device(const Context& context, int number) {
    const Topology& topology = context.topology();
    if (!Driver::get().usable || topology.gpu_count() == 0)
        return Error{ErrorCode::device_error, "this machine has no GPU that CUDA can use", "libcuda.so.1",
                     "set SIDESTEP_MACHINE=dgx-h100 to run on emulated GPUs"};
    int handle = 0;
    std::array<char, 32> text{};
    if (Driver::get().device(&handle, number) != 0)
        return bad_argument(fmt::format("CUDA has no device {}", number));
    if (Driver::get().bus_id(text.data(), static_cast<int>(text.size()), handle) != 0)
        return Error{ErrorCode::device_error,
                     fmt::format("CUDA does not report the PCI address of device {}", number),
                     "cuDeviceGetPCIBusId",
                     {}};
    for (const Device& found : topology.devices())
        if (found.kind == DeviceKind::gpu && plain_bus_id(found.bus_id) == plain_bus_id(text.data()))
            return Gpu{number, Place::gpu(found.index), false};
    return Error{
        ErrorCode::not_found,
        fmt::format("CUDA's device {} ({}) is not among the GPUs found in this machine", number, text.data()),
        {},
        {}};
}

// What the launcher of several processes gave this one.
std::optional<int> launched_device() {
    const auto seating = Seating::from_environment();
    if (!seating.ok() || seating->ranks < 2 || !seating->place.is_gpu()) return {};
    return seating->place.index();
}

}  // namespace

Result<const Context*> context() {
    const std::lock_guard guard(shared().lock);
    if (!shared().context) {
        auto opened = Context::open();
        if (!opened.ok()) return opened.error();
        // After the driver has registered its own: so this one runs before.
        std::atexit([] { has_ended = true; });
        shared().context.emplace(std::move(*opened));
    }
    return static_cast<const Context*>(&*shared().context);
}

bool ending() {
    return has_ended;
}

bool emulated(const Context& context) {
    return context.topology().emulated();
}

Result<Gpu> device(const Context& context, int number) {
    return emulated(context) ? emulated_device(context, number) : cuda_device(context, number);
}

Result<Gpu> current_device(const Context& context, int otherwise) {
    if (emulated(context)) {
        if (chosen_device >= 0) return emulated_device(context, chosen_device);
        if (const auto launched = launched_device()) return emulated_device(context, *launched);
        return emulated_device(context, otherwise >= 0 ? otherwise : std::max(joined_device, 0));
    }
    // The runtime's first device is current where nobody has chosen one and nothing has made a context yet.
    int number = 0;
    CUctx_st* current = nullptr;
    if (Driver::get().usable && Driver::get().current(&current) == 0 && current != nullptr)
        Driver::get().device_of_current(&number);
    return cuda_device(context, number);
}

Result<void> set_emulated_device(const Context& context, int number, bool chosen) {
    if (!emulated(context)) return misuse("this machine has CUDA GPUs", "choose one with cudaSetDevice");
    if (auto found = emulated_device(context, number); !found.ok()) return found.error();
    (chosen ? chosen_device : joined_device) = number;
    return {};
}

}  // namespace sidestep::nccl
