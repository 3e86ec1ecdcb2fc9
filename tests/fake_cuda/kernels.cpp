// The copy kernel: a module that is recognised and not run; its launch copies the bytes.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fake_cuda/machine.hpp"

using namespace sidestep::fake_cuda;

namespace {

constexpr unsigned fat_binary = 0xba55ed50;  // the first word of what nvcc --fatbin writes
constexpr unsigned max_threads = 512;        // __launch_bounds__ of the kernel

// The batch kernel's parameter, as backends/cuda/batch_table.hpp lays it out.
struct BatchEntry {
    CUdeviceptr to, from;
    unsigned bytes, end_tile;
};
struct BatchHead {
    unsigned count, tiles;
};
constexpr unsigned tile = 4096;

// Carries out what the table says, by tiles as the kernel does, so that a table whose tiles do not add up
// leaves bytes behind.
CUresult launch_batch(Stream& stream, const void* table) {
    BatchHead head;
    std::memcpy(&head, table, sizeof head);
    std::vector<BatchEntry> entries(head.count);
    std::memcpy(entries.data(), static_cast<const char*>(table) + sizeof head,
                head.count * sizeof(BatchEntry));
    {
        Machine& machine = Machine::get();
        std::lock_guard lock(machine.mutex);
        const int device = stream.context()->device;
        for (const BatchEntry& entry : entries)
            if (!machine.reaches(device, entry.to, entry.bytes) ||
                !machine.reaches(device, entry.from, entry.bytes))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (fails_now("cuLaunchKernel")) return CUDA_ERROR_OUT_OF_MEMORY;
    return stream.push(
        [entries = std::move(entries), tiles = head.tiles] {
            std::size_t at = 0;
            for (unsigned t = 0; t < tiles && at < entries.size(); ++t) {
                while (entries[at].end_tile <= t) ++at;
                const BatchEntry& entry = entries[at];
                const unsigned first = at > 0 ? entries[at - 1].end_tile : 0;
                const unsigned offset = (t - first) * tile;
                std::memmove(reinterpret_cast<void*>(entry.to + offset),
                             reinterpret_cast<const void*>(entry.from + offset),
                             std::min(tile, entry.bytes - offset));
            }
        },
        true);
}

// A task of a collective does nothing here but take its turn; ranks that work without a GPU are the emulated
// ones. Its second parameter begins with the address of its control block.
CUresult launch_collective(Stream& stream, unsigned rows, unsigned threads, const void* station) {
    constexpr unsigned max_threads_of_collectives = 544;
    CUdeviceptr control = 0;
    std::memcpy(&control, station, sizeof control);
    if (rows == 0 || threads > max_threads_of_collectives) return CUDA_ERROR_INVALID_VALUE;
    {
        Machine& machine = Machine::get();
        std::lock_guard lock(machine.mutex);
        if (!machine.reaches(stream.context()->device, control, 128)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return stream.push([] {}, true);
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    unsigned first = 0;
    std::memcpy(&first, image, sizeof first);
    if (first != fat_binary) return CUDA_ERROR_INVALID_IMAGE;
    auto made = std::make_unique<Module>();
    made->context = current_context();
    for (std::size_t i = 0; i + 1 < made->functions.size(); ++i)
        made->functions[i] = {current_context(), 1u << i};
    made->functions.back() = {current_context(), 0};
    *module = reinterpret_cast<CUmodule>(made.get());
    std::lock_guard lock(Machine::get().mutex);
    Machine::get().modules[*module] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    std::lock_guard lock(Machine::get().mutex);
    return Machine::get().modules.erase(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    std::lock_guard lock(Machine::get().mutex);
    const auto found = Machine::get().modules.find(module);
    if (found == Machine::get().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    for (Function& known : found->second->functions) {
        const bool batch = known.width == 0 && std::string(name).starts_with("sidestep_batch_");
        if (!batch && name != "sidestep_copy_" + std::to_string(known.width)) continue;
        *function = reinterpret_cast<CUfunction>(&known);
        return CUDA_SUCCESS;
    }
    for (const char* begin :
         {"sidestep_packets_", "sidestep_coalesced_", "sidestep_lamport_", "sidestep_some_lamport_",
          "sidestep_lines_", "sidestep_some_lines_", "sidestep_slices_", "sidestep_pairs",
          "sidestep_many_pairs", "sidestep_eager_pairs", "sidestep_ring_"}) {
        if (!std::string(name).starts_with(begin)) continue;
        Function& known = found->second->bench[name];
        known = {found->second->context, 0, nullptr, true};
        *function = reinterpret_cast<CUfunction>(&known);
        return CUDA_SUCCESS;
    }
    if (const BenchKernel bench = find_bench_kernel(name)) {
        Function& known = found->second->bench[name];
        known = {found->second->context, 0, bench};
        *function = reinterpret_cast<CUfunction>(&known);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncLoad(CUfunction) {
    return CUDA_SUCCESS;
}

// On a stream of the context that the module was loaded into. Memory out of reach and words that do not lie
// on their boundaries in both buffers are faults that end the context on a GPU; here the call says so.
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned rows, unsigned, unsigned threads,
                        unsigned, unsigned, unsigned, CUstream stream, void** arguments, void**) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const std::shared_ptr<Stream> found = find_stream(stream);
    const auto* kernel = reinterpret_cast<const Function*>(function);
    if (!found || kernel->context != found->context()) return CUDA_ERROR_INVALID_HANDLE;
    if (blocks == 0 || threads == 0) return CUDA_ERROR_INVALID_VALUE;
    if (kernel->collective) return launch_collective(*found, rows, threads, arguments[1]);
    if (threads > max_threads) return CUDA_ERROR_INVALID_VALUE;
    if (kernel->bench) {
        Work work;
        const CUresult status =
            kernel->bench(found->context()->device, arguments, 1ull * blocks * threads, work);
        return status == CUDA_SUCCESS ? found->push(std::move(work)) : status;
    }
    if (kernel->width == 0) return launch_batch(*found, arguments[0]);
    const auto to = *static_cast<const CUdeviceptr*>(arguments[0]);
    const auto from = *static_cast<const CUdeviceptr*>(arguments[1]);
    const auto bytes = *static_cast<const unsigned long long*>(arguments[2]);
    if ((to ^ from) % kernel->width != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
    {
        Machine& machine = Machine::get();
        std::lock_guard lock(machine.mutex);
        const int device = found->context()->device;
        if (!machine.reaches(device, to, bytes) || !machine.reaches(device, from, bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return found->push(
        [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); }, true);
}

// Attributes only allow what a stream of the stand-in never does: to begin before the kernel before it has
// ended.
CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction function, void** arguments, void** extra) {
    return cuLaunchKernel(function, how->gridDimX, how->gridDimY, how->gridDimZ, how->blockDimX,
                          how->blockDimY, how->blockDimZ, how->sharedMemBytes, how->hStream, arguments,
                          extra);
}
