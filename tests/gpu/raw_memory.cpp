#include "tests/gpu/raw_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

namespace sidestep::gpu_tests {
namespace {

constexpr Bytes seeds = 4096;

// Bytes that repeat nowhere near: a copy with a wrong offset shows.
const std::vector<unsigned char>& pattern(Bytes bytes) {
    static std::vector<unsigned char> all;
    Bytes filled = all.size();
    if (filled < bytes + seeds) {
        all.resize(bytes + seeds);
        for (; filled < all.size(); ++filled) {
            std::uint64_t value = (filled + 1) * 0x9e3779b97f4a7c15ull;
            value ^= value >> 29;
            all[filled] = static_cast<unsigned char>((value * 0xbf58476d1ce4e5b9ull) >> 56);
        }
    }
    return all;
}

std::atomic<Bytes>& counter() {
    static std::atomic<Bytes> bytes{0};
    return bytes;
}

// Host code may not touch the memory of a GPU; managed memory can be read through the driver too.
void write(const Buffer& buffer, const void* bytes) {
    if (buffer.place().is_host()) {
        std::memcpy(buffer.address(), bytes, buffer.size());
        return;
    }
    Machine& machine = Machine::get();
    driver::ScopedCudaContext current(machine.context(buffer.place().index()));
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
    expect_success(machine.cuda().cuMemcpyHtoD(address, bytes, buffer.size()), "cuMemcpyHtoD");
    // It may return while the last bytes are on their way, and other streams do not wait for them.
    expect_success(machine.cuda().cuCtxSynchronize(), "cuCtxSynchronize");
}

std::vector<unsigned char> read(const Buffer& buffer) {
    std::vector<unsigned char> bytes(buffer.size());
    if (buffer.place().is_host()) {
        std::memcpy(bytes.data(), buffer.address(), buffer.size());
        return bytes;
    }
    Machine& machine = Machine::get();
    driver::ScopedCudaContext current(machine.context(buffer.place().index()));
    const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
    expect_success(machine.cuda().cuMemcpyDtoH(bytes.data(), address, buffer.size()), "cuMemcpyDtoH");
    return bytes;
}

void expect_bytes(const Buffer& buffer, const unsigned char* wanted) {
    const std::vector<unsigned char> found = read(buffer);
    if (std::memcmp(found.data(), wanted, found.size()) == 0) {
        counter() += found.size();
        return;
    }
    const auto at = std::mismatch(found.begin(), found.end(), wanted).first;
    const auto offset = static_cast<Bytes>(at - found.begin());
    ADD_FAILURE() << buffer.to_string() << " differs from byte " << offset << " on: " << static_cast<int>(*at)
                  << " instead of " << static_cast<int>(wanted[offset]);
}

CUmemGenericAllocationHandle imported(const driver::Cuda& cuda, CUmemGenericAllocationHandle made) {
    constexpr auto kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int descriptor = -1;
    CUmemGenericAllocationHandle memory = 0;
    expect_success(cuda.cuMemExportToShareableHandle(&descriptor, made, kind, 0),
                   "cuMemExportToShareableHandle");
    expect_success(cuda.cuMemImportFromShareableHandle(
                       &memory, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), kind),
                   "cuMemImportFromShareableHandle");
    ::close(descriptor);
    expect_success(cuda.cuMemRelease(made), "cuMemRelease");
    return memory;
}

Allocation from_pool(int gpu, Bytes bytes) {
    Machine& machine = Machine::get();
    const driver::Cuda& cuda = machine.cuda();
    CUmemoryPool pool = nullptr;
    expect_success(cuda.cuDeviceGetDefaultMemPool(&pool, machine.context(gpu).device()),
                   "cuDeviceGetDefaultMemPool");
    CUdeviceptr address = 0;
    expect_success(cuda.cuMemAllocFromPoolAsync(&address, bytes, pool, nullptr), "cuMemAllocFromPoolAsync");
    expect_success(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
    return Allocation(Buffer::gpu(gpu, reinterpret_cast<void*>(address), bytes), MemoryKind::pool,
                      [&machine, gpu, address] {
                          driver::ScopedCudaContext current(machine.context(gpu));
                          machine.cuda().cuMemFreeAsync(address, nullptr);
                      });
}

Allocation from_driver(Raw raw, int gpu, Bytes bytes) {
    Machine& machine = Machine::get();
    const driver::Cuda& cuda = machine.cuda();
    CUdeviceptr address = 0;
    if (raw == Raw::managed)
        expect_success(cuda.cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    else
        expect_success(cuda.cuMemAlloc(&address, bytes), "cuMemAlloc");
    return Allocation(Buffer::gpu(gpu, reinterpret_cast<void*>(address), bytes), kind_of(raw),
                      [&machine, gpu, address] {
                          driver::ScopedCudaContext current(machine.context(gpu));
                          machine.cuda().cuMemFree(address);
                      });
}

Allocation on_host(Raw raw, int gpu, Bytes bytes) {
    Machine& machine = Machine::get();
    const driver::Cuda& cuda = machine.cuda();
    void* address = nullptr;
    if (raw == Raw::host_alloc) {
        expect_success(cuda.cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    } else {
        // Whole pages, so that pinning them pins nothing else.
        address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        if (raw == Raw::host_registered)
            expect_success(cuda.cuMemHostRegister(address, bytes, 0), "cuMemHostRegister");
    }
    return Allocation(Buffer::host(address, bytes), kind_of(raw), [&machine, raw, gpu, address] {
        driver::ScopedCudaContext current(machine.context(gpu));
        if (raw == Raw::host_alloc) {
            machine.cuda().cuMemFreeHost(address);
            return;
        }
        if (raw == Raw::host_registered) machine.cuda().cuMemHostUnregister(address);
        std::free(address);
    });
}

}  // namespace

const char* to_string(Raw raw) {
    constexpr const char* names[] = {
        "device", "pool", "vmm", "vmm_pieces", "managed", "host_alloc", "host_registered", "pageable"};
    return names[static_cast<int>(raw)];
}

bool on_gpu(Raw raw) {
    return raw <= Raw::managed;
}

MemoryKind kind_of(Raw raw) {
    constexpr MemoryKind kinds[] = {MemoryKind::device, MemoryKind::pool,    MemoryKind::vmm,
                                    MemoryKind::vmm,    MemoryKind::managed, MemoryKind::pinned,
                                    MemoryKind::pinned, MemoryKind::pageable};
    return kinds[static_cast<int>(raw)];
}

Allocation map_pieces(int gpu, Bytes bytes, Bytes unit, Pieces pieces) {
    Machine& machine = Machine::get();
    const driver::Cuda& cuda = machine.cuda();
    driver::ScopedCudaContext current(machine.context(gpu));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, machine.context(gpu).device()};
    if (pieces != Pieces::plain) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const Bytes size = (bytes + unit - 1) / unit * unit;
    CUdeviceptr base = 0;
    expect_success(cuda.cuMemAddressReserve(&base, size, 0, 0, 0), "cuMemAddressReserve");
    for (Bytes at = 0; at < size; at += unit) {
        CUmemGenericAllocationHandle memory = 0;
        expect_success(cuda.cuMemCreate(&memory, unit, &properties, 0), "cuMemCreate");
        if (pieces == Pieces::imported) memory = imported(cuda, memory);
        expect_success(cuda.cuMemMap(base + at, unit, 0, memory, 0), "cuMemMap");
        expect_success(cuda.cuMemRelease(memory), "cuMemRelease");
    }
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    expect_success(cuda.cuMemSetAccess(base, size, &access, 1), "cuMemSetAccess");
    return Allocation(Buffer::gpu(gpu, reinterpret_cast<void*>(base), bytes), MemoryKind::vmm,
                      [&machine, gpu, base, size, unit] {
                          driver::ScopedCudaContext mine(machine.context(gpu));
                          for (Bytes at = 0; at < size; at += unit)
                              machine.cuda().cuMemUnmap(base + at, unit);
                          machine.cuda().cuMemAddressFree(base, size);
                      });
}

Allocation raw_memory(Raw raw, int gpu, Bytes bytes) {
    driver::ScopedCudaContext current(Machine::get().context(gpu));
    constexpr Bytes granularity = 2_MiB;
    if (raw == Raw::pool) return from_pool(gpu, bytes);
    if (raw == Raw::vmm)
        return map_pieces(gpu, bytes, (bytes + granularity - 1) / granularity * granularity, Pieces::plain);
    if (raw == Raw::vmm_pieces) return map_pieces(gpu, bytes, granularity, Pieces::plain);
    return on_gpu(raw) ? from_driver(raw, gpu, bytes) : on_host(raw, gpu, bytes);
}

void fill(const Buffer& buffer, unsigned seed) {
    write(buffer, pattern(buffer.size()).data() + seed % seeds);
}

void clear(const Buffer& buffer, unsigned char value) {
    if (buffer.size() == 0) return;
    write(buffer, std::vector<unsigned char>(buffer.size(), value).data());
}

void expect_pattern(const Buffer& buffer, unsigned seed) {
    expect_bytes(buffer, pattern(buffer.size()).data() + seed % seeds);
}

void expect_value(const Buffer& buffer, unsigned char value) {
    if (buffer.size() == 0) return;
    expect_bytes(buffer, std::vector<unsigned char>(buffer.size(), value).data());
}

Bytes compared_bytes() {
    return counter();
}

}  // namespace sidestep::gpu_tests
