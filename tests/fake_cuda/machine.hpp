// A made-up machine with two GPUs for the CUDA driver of this folder: their memory is the process's own,
// their streams are threads. It exists so that the tests of the CUDA backend run where there is no GPU, and
// so that calls which only happen to work, or work on some machines, are refused here on every one.
//
// One object holds everything, as a driver does: a C interface has nowhere else to keep it.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_cuda/stream.hpp"

namespace sidestep::fake_cuda {

constexpr int device_count = 2;
constexpr std::size_t memory_of_a_device = std::size_t{8} << 30;
constexpr std::size_t granularity = std::size_t{2} << 20;  // of physical memory, as on H200

// PCI addresses are 0000:BUS:00.0; NVML and CUDA must tell the same ones.
constexpr unsigned pci_bus(int device) {
    return 0xe1 + static_cast<unsigned>(device);
}

// The primary context of a device. It is alive while somebody retains it.
struct Context {
    int device = 0;
    int users = 0;
    std::set<int> peers;  // devices whose cuMemAlloc memory this one may reach
    std::shared_ptr<Stream> default_stream;
    Queues queues = {};
    bool copied_within = false;  // has a copy within this GPU come
};

// The default pool of a device.
struct Pool {
    int device = 0;
    std::set<int> access;  // devices that may reach its memory, its own always among them
};

// A descriptor of memory that other processes map too.
struct Descriptor {
    explicit Descriptor(int opened) : number(opened) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number;
};

// `imported`: of cuIpcOpenMemHandle.
enum class Kind { device, managed, pool, mapped, host, imported };

// Memory at an address. A range of mapped memory may consist of several.
// Never the same twice.
inline unsigned long long next_block_id() {
    static std::atomic<unsigned long long> last{0};
    return ++last;
}

struct Block {
    unsigned long long id = next_block_id();
    std::size_t size = 0;
    Kind kind = Kind::device;
    int device = 0;
    CUmemGenericAllocationHandle physical = 0;  // of mapped memory, like the next two
    std::set<int> access;
    bool changing_access = false;
    std::shared_ptr<Descriptor> shared;  // once other processes may map it
    int opened_process = 0;              // of imported memory, like the next two: whose it is
    unsigned long long opened_id = 0;
    int times_opened = 0;
};

// What cuMemCreate gives. It goes when its handle is released and it is mapped nowhere.
struct Physical {
    std::size_t size = 0;
    int device = 0;
    bool released = false;
    bool mapped = false;
    unsigned handle_types = 0;  // that it may be exported as
    int retained = 0;           // times that cuMemRetainAllocationHandle gave it and nobody released it
    bool imported = false;      // counts as used in another process
    std::shared_ptr<Descriptor> shared;  // once other processes may map it
};

struct Event {
    Context* context = nullptr;
    Flag reached;                                        // null: never recorded, which counts as reached
    std::shared_ptr<std::atomic<long long>> reached_ns;  // on the host's clock, once it is
};

// A kernel of the benchmark: checks its arguments as a GPU would, and says what the stream has to do.
using BenchKernel = CUresult (*)(int device, void** arguments, unsigned long long all_threads, Work& work);
// Null for a name it does not know.
BenchKernel find_bench_kernel(const char* name);

struct Function {
    Context* context = nullptr;
    unsigned width = 0;  // bytes of the words it copies; 0: the batch kernel
    BenchKernel bench = nullptr;
    bool collective = false;
};

// The kernels as loaded into one context: for words of 1, 2, 4, 8 and 16 bytes, and for batches.
struct Module {
    std::array<Function, 6> functions;
    Context* context = nullptr;
    std::map<std::string, Function> bench = {};  // kernels of the benchmark that were asked for
};

struct Machine {
    // Never destroyed: static objects of a program may call the driver after main().
    static Machine& get();
    Machine();

    std::mutex mutex;  // of all that follows; no stream is waited for while it is held
    bool initialised = false;
    std::array<Context, device_count> contexts;
    std::array<Pool, device_count> pools;
    std::array<std::size_t, device_count> used{};
    std::map<CUdeviceptr, Block> blocks;              // by their first address
    std::map<CUdeviceptr, std::size_t> reservations;  // of cuMemAddressReserve
    std::map<CUmemGenericAllocationHandle, Physical> physicals;
    CUmemGenericAllocationHandle next_physical = 1;
    std::map<CUstream, std::shared_ptr<Stream>> streams;
    std::map<CUevent, std::unique_ptr<Event>> events;
    std::map<CUmodule, std::unique_ptr<Module>> modules;
    std::map<CUgraph, std::unique_ptr<Graph>> graphs;
    std::map<CUgraphExec, std::unique_ptr<Graph>> executable_graphs;
    int global_captures = 0;  // captures under way that were begun in the global mode
    int held_streams = 0;     // waits for a word that are enqueued and not over
    std::condition_variable none_held;

    // The block that holds an address and where it begins, or blocks.end().
    std::map<CUdeviceptr, Block>::iterator block_at(CUdeviceptr address);
    // Whether a device may touch every byte of a range. Says which rule forbids it on stderr.
    bool reaches(int device, CUdeviceptr address, std::size_t bytes);
    // Gives the memory of a physical allocation back once nothing holds it.
    void drop_if_unheld(CUmemGenericAllocationHandle physical);
};

// Whether the calling thread may not make calls that could disturb a capture, its own or another thread's, as
// the driver's documentation has it: cuEventQuery and allocations among them.
bool capture_forbids();

// Whether the two devices reach each other's memory: unless SIDESTEP_STAND_IN_PEERS is "none".
bool has_peer_access();

// FAKE_CUDA_FAIL=CALL:N, as cuMemcpyAsync:6: the Nth call of that function from now on fails.
bool fails_now(const char* call);

// The context that is current on this thread, or null.
Context* current_context();

// The stream that a handle names; null for one that was destroyed, and for a default stream without a
// current context. The machine's mutex must not be held.
std::shared_ptr<Stream> find_stream(CUstream stream);

// Puts work on the stream that a handle names; see Stream::push.
CUresult enqueue(CUstream stream, Work work, bool for_graphs = false, Carrier carrier = Carrier::compute);

// Fresh addresses, readable and writable or neither; 0 where the kernel has none.
CUdeviceptr map_pages(std::size_t bytes, bool usable);
void unmap_pages(CUdeviceptr address, std::size_t bytes);

}  // namespace sidestep::fake_cuda
