// The CUDA driver for plain loops: its calls, found at run time, and what one measurement holds of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "bench/raw_cuda.hpp"

namespace sidestep::bench::raw {

// The driver's types and constants, as far as they are needed here (CUDA driver API, 12.4 and newer).
using Status = int;
using Device = int;
using Address = std::uint64_t;
using CudaContext = void*;
using Stream = void*;
using Event = void*;
using Module = void*;
using Function = void*;
constexpr Status success = 0;
constexpr Status not_ready = 600;

struct Driver {
    Status (*init)(unsigned) = nullptr;
    Status (*version)(int*) = nullptr;
    Status (*error_name)(Status, const char**) = nullptr;
    Status (*device_count)(int*) = nullptr;
    Status (*device)(Device*, int) = nullptr;
    Status (*attribute)(int*, int, Device) = nullptr;
    Status (*bus_id)(char*, int, Device) = nullptr;
    Status (*retain)(CudaContext*, Device) = nullptr;
    Status (*release)(Device) = nullptr;
    Status (*set_current)(CudaContext) = nullptr;
    Status (*enable_peer)(CudaContext, unsigned) = nullptr;
    Status (*allocate)(Address*, std::size_t) = nullptr;
    Status (*free)(Address) = nullptr;
    Status (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
    Status (*free_host)(void*) = nullptr;
    Status (*copy)(Address, Address, std::size_t, Stream) = nullptr;
    Status (*make_stream)(Stream*, unsigned) = nullptr;
    Status (*drop_stream)(Stream) = nullptr;
    Status (*query)(Stream) = nullptr;
    Status (*synchronize)(Stream) = nullptr;
    Status (*make_event)(Event*, unsigned) = nullptr;
    Status (*drop_event)(Event) = nullptr;
    Status (*record)(Event, Stream) = nullptr;
    Status (*elapsed_ms)(float*, Event, Event) = nullptr;
    Status (*load_module)(Module*, const void*) = nullptr;
    Status (*unload_module)(Module) = nullptr;
    Status (*function)(Function*, Module, const char*) = nullptr;
    Status (*load_function)(Function) = nullptr;
    Status (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                     void**, void**) = nullptr;
    std::vector<int> ordinals;  // CUDA's numbers in the order of the PCI addresses
};

// Opened on the first call and never unloaded, as the driver asks.
const Result<Driver>& driver();

// Contexts, memory, streams and kernels of one measurement; the destructor gives all back. The first call
// that fails is kept, and calls after it do nothing, so a measurement looks at failed() once, at its end.
// Belongs to one thread.
class Session {
public:
    explicit Session(const Driver& driver) : driver_(driver) {}
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Makes the GPU's context current.
    void use(int gpu);
    // Lets `gpu` reach the memory of `other`, where both are GPUs and differ.
    void reach(int gpu, int other);
    // Memory of a GPU, or pinned host memory that every GPU reaches at the same address, made through the
    // context of `through`.
    Address memory(int owner, Bytes bytes, int through);
    Stream stream(int gpu);
    Event event(int gpu);
    // A kernel of raw_kernels.cu, loaded into the GPU's context so that no launch has to wait for that.
    Function kernel(int gpu, const char* name);
    int multiprocessors(int gpu);

    void copy(Address to, Address from, Bytes bytes, Stream stream);
    // Copy between any host memory and a GPU's, through pinned memory, and wait. `stream` is one of `gpu`.
    void write(int gpu, Address to, const void* from, Bytes bytes, Stream stream);
    void read(int gpu, void* to, Address from, Bytes bytes, Stream stream);
    void launch(int gpu, Function kernel, unsigned blocks, unsigned threads, Stream stream, void** arguments);
    void record(Event event, Stream stream);
    double ms_between(Event begin, Event end);
    void wait(Stream stream);
    // Polls instead of blocking.
    void spin(Stream stream);
    bool done(Stream stream);

    void check(Status status, const char* call);
    void fail(Error error);
    bool good() const { return error_.message.empty(); }
    Result<void> failed() const;

private:
    struct Gpu {
        Device device = 0;
        CudaContext context = nullptr;
        Module module = nullptr;
    };
    struct Memory {
        int owner = host;
        Address address = 0;
    };

    // Pinned memory of at least that size, or 0 after a failure.
    Address staging(int gpu, Bytes bytes);

    const Driver& driver_;
    Address staging_ = 0;
    Bytes staging_bytes_ = 0;
    std::map<int, Gpu> gpus_;
    std::vector<Memory> memory_;
    std::vector<Stream> streams_;
    std::vector<Event> events_;
    Error error_;
};

}  // namespace sidestep::bench::raw
