#include "tests/fake_cuda/machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sidestep::fake_cuda {
namespace {

// Whether a device may touch a block: each kind of memory has a rule of its own, and a copy or a kernel that
// breaks it ends in CUDA_ERROR_ILLEGAL_ADDRESS or takes another way than the one asked for.
const char* why_out_of_reach(const Machine& machine, const Block& block, int device) {
    if (block.device == device && block.kind != Kind::mapped) return nullptr;
    const auto own = static_cast<std::size_t>(block.device);
    switch (block.kind) {
        case Kind::device:
        case Kind::imported:
            return machine.contexts[static_cast<std::size_t>(device)].peers.count(block.device)
                       ? nullptr
                       : "peer access is not enabled in this direction";
        case Kind::pool:
            return machine.pools[own].access.count(device) ? nullptr : "its pool gives no access";
        case Kind::mapped:
            return block.access.count(device) ? nullptr : "its mapping gives no access";
        default:
            return nullptr;  // with unified addressing, every device reaches pinned and managed memory
    }
}

}  // namespace

Machine& Machine::get() {
    static Machine* const machine = new Machine;
    return *machine;
}

Machine::Machine() {
    for (int device = 0; device < device_count; ++device) {
        contexts[static_cast<std::size_t>(device)].device = device;
        pools[static_cast<std::size_t>(device)].device = device;
        pools[static_cast<std::size_t>(device)].access = {device};
    }
}

std::map<CUdeviceptr, Block>::iterator Machine::block_at(CUdeviceptr address) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return blocks.end();
    auto found = std::prev(after);
    return address - found->first < found->second.size ? found : blocks.end();
}

bool Machine::reaches(int device, CUdeviceptr address, std::size_t bytes) {
    const CUdeviceptr end = address + bytes;
    const char* why = nullptr;
    while (address < end && !why) {
        const auto found = block_at(address);
        if (found == blocks.end()) {
            why = "CUDA does not know this memory";
            break;
        }
        why = why_out_of_reach(*this, found->second, device);
        const CUdeviceptr behind = found->first + found->second.size;
        if (!why && behind < end && found->second.kind != Kind::mapped) why = "the allocation ends before";
        address = std::min(end, behind);
    }
    if (!why) return true;
    std::fprintf(stderr, "stand-in: device %d may not touch %#llx: %s\n", device, address, why);
    return false;
}

void Machine::drop_if_unheld(CUmemGenericAllocationHandle physical) {
    const auto found = physicals.find(physical);
    if (found == physicals.end() || !found->second.released || found->second.mapped ||
        found->second.retained > 0)
        return;
    if (!found->second.imported) used[static_cast<std::size_t>(found->second.device)] -= found->second.size;
    physicals.erase(found);
}

bool has_peer_access() {
    static const char* const peers = std::getenv("SIDESTEP_STAND_IN_PEERS");
    return peers == nullptr || std::strcmp(peers, "none") != 0;
}

bool fails_now(const char* call) {
    static std::atomic<int> before{0};
    const char* const which = std::getenv("FAKE_CUDA_FAIL");
    const std::size_t length = std::strlen(call);
    if (which == nullptr) before = 0;
    if (which == nullptr || std::strncmp(which, call, length) != 0 || which[length] != ':') return false;
    const bool fails = ++before == std::atoi(which + length + 1);
    if (fails) before = 0;
    return fails;
}

std::shared_ptr<Stream> find_stream(CUstream stream) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return current_context() ? current_context()->default_stream : nullptr;
    const auto found = machine.streams.find(stream);
    return found == machine.streams.end() ? nullptr : found->second;
}

CUresult enqueue(CUstream stream, Work work, bool for_graphs, Carrier carrier) {
    const std::shared_ptr<Stream> found = find_stream(stream);
    return found ? found->push(std::move(work), for_graphs, carrier) : CUDA_ERROR_INVALID_HANDLE;
}

CUdeviceptr map_pages(std::size_t bytes, bool usable) {
    const int access = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* address = ::mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return address == MAP_FAILED ? 0 : reinterpret_cast<CUdeviceptr>(address);
}

void unmap_pages(CUdeviceptr address, std::size_t bytes) {
    ::munmap(reinterpret_cast<void*>(address), bytes);
}

}  // namespace sidestep::fake_cuda
