#include "bench/raw_cuda.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace sidestep::bench::raw {
namespace {

// The driver's types and constants, as far as they are needed here (CUDA driver API, 12.4 and newer).
using Status = int;
using Device = int;
using Address = std::uint64_t;
using Context = void*;
using Stream = void*;
using Event = void*;
constexpr Status success = 0;
constexpr Status not_ready = 600;
constexpr Status peer_access_already_enabled = 704;
constexpr unsigned non_blocking_stream = 1;
constexpr unsigned portable_host_memory = 1;
constexpr int copies_a_sample = 16;

struct Driver {
    Status (*init)(unsigned) = nullptr;
    Status (*error_name)(Status, const char**) = nullptr;
    Status (*device_count)(int*) = nullptr;
    Status (*device)(Device*, int) = nullptr;
    Status (*bus_id)(char*, int, Device) = nullptr;
    Status (*retain)(Context*, Device) = nullptr;
    Status (*release)(Device) = nullptr;
    Status (*set_current)(Context) = nullptr;
    Status (*enable_peer)(Context, unsigned) = nullptr;
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
    std::vector<int> ordinals;  // CUDA's numbers in the order of the PCI addresses
};

Error failure(const std::string& message, const std::string& where = "libcuda.so.1") {
    return Error{ErrorCode::unsupported, message, where, {}};
}

// Never unloaded, as the driver asks.
Result<Driver> bind() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return failure("libcuda.so.1 is not there: no NVIDIA driver");
    Driver driver;
    std::string missing;
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        if (!function) missing = name;
    };
    find(driver.init, "cuInit");
    find(driver.error_name, "cuGetErrorName");
    find(driver.device_count, "cuDeviceGetCount");
    find(driver.device, "cuDeviceGet");
    find(driver.bus_id, "cuDeviceGetPCIBusId");
    find(driver.retain, "cuDevicePrimaryCtxRetain");
    find(driver.release, "cuDevicePrimaryCtxRelease_v2");
    find(driver.set_current, "cuCtxSetCurrent");
    find(driver.enable_peer, "cuCtxEnablePeerAccess");
    find(driver.allocate, "cuMemAlloc_v2");
    find(driver.free, "cuMemFree_v2");
    find(driver.allocate_host, "cuMemHostAlloc");
    find(driver.free_host, "cuMemFreeHost");
    find(driver.copy, "cuMemcpyAsync");
    find(driver.make_stream, "cuStreamCreate");
    find(driver.drop_stream, "cuStreamDestroy_v2");
    find(driver.query, "cuStreamQuery");
    find(driver.synchronize, "cuStreamSynchronize");
    find(driver.make_event, "cuEventCreate");
    find(driver.drop_event, "cuEventDestroy_v2");
    find(driver.record, "cuEventRecord");
    find(driver.elapsed_ms, "cuEventElapsedTime");
    if (!missing.empty()) return failure("the NVIDIA driver lacks " + missing);
    return driver;
}

Result<Driver> open_driver() {
    auto driver = bind();
    if (!driver) return driver;
    if (const Status status = driver->init(0); status != success)
        return failure("cuInit answers " + std::to_string(status), "cuInit");
    int count = 0;
    driver->device_count(&count);
    std::vector<std::pair<std::string, int>> found;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        std::array<char, 32> address{};
        driver->bus_id(address.data(), static_cast<int>(address.size()), ordinal);
        found.emplace_back(address.data(), ordinal);
    }
    if (found.empty()) return failure("CUDA sees no GPU", "cuDeviceGetCount");
    std::sort(found.begin(), found.end());
    for (const auto& entry : found) driver->ordinals.push_back(entry.second);
    return driver;
}

// Two blocks of memory, and a stream of the GPU that carries the copy: the source if it is a GPU.
class Copy {
public:
    Copy(const Driver& driver, int from, int to, Bytes bytes)
        : driver_(driver), ends_{End{from}, End{to}}, bytes_(bytes) {}

    ~Copy() {
        for (End& end : ends_) {
            if (end.context) driver_.set_current(end.context);
            if (end.address && end.gpu >= 0) driver_.free(end.address);
            if (end.address && end.gpu < 0) driver_.free_host(reinterpret_cast<void*>(end.address));
        }
        for (Event event : events_)
            if (event) driver_.drop_event(event);
        if (stream_) driver_.drop_stream(stream_);
        driver_.set_current(nullptr);
        for (const End& end : ends_)
            if (end.context) driver_.release(end.device);
    }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

    Result<void> prepare() {
        const int gpu = ends_[0].gpu >= 0 ? 0 : 1;
        for (int i : {gpu, 1 - gpu}) open(ends_[i]);
        if (ends_[0].gpu >= 0 && ends_[1].gpu >= 0 && ends_[0].gpu != ends_[1].gpu) {
            enable_peer(ends_[0], ends_[1]);
            enable_peer(ends_[1], ends_[0]);
        }
        check(driver_.set_current(ends_[gpu].context), "cuCtxSetCurrent");
        check(driver_.make_stream(&stream_, non_blocking_stream), "cuStreamCreate");
        for (Event& event : events_) check(driver_.make_event(&event, 0), "cuEventCreate");
        run();
        check(driver_.synchronize(stream_), "cuStreamSynchronize");
        return failed();
    }

    // GB/s of one sample.
    double sample() {
        check(driver_.record(events_[0], stream_), "cuEventRecord");
        for (int i = 0; i < copies_a_sample; ++i) run();
        check(driver_.record(events_[1], stream_), "cuEventRecord");
        check(driver_.synchronize(stream_), "cuStreamSynchronize");
        float ms = 0;
        check(driver_.elapsed_ms(&ms, events_[0], events_[1]), "cuEventElapsedTime");
        return static_cast<double>(bytes_) * copies_a_sample / 1e6 / std::max(ms, 1e-6f);
    }

    void run() { check(driver_.copy(ends_[1].address, ends_[0].address, bytes_, stream_), "cuMemcpyAsync"); }

    void wait() {
        Status status = not_ready;
        while (status == not_ready) status = driver_.query(stream_);
        check(status, "cuStreamQuery");
    }

    // The first call that failed, if any.
    Result<void> failed() const {
        if (status_ == success) return {};
        const char* name = nullptr;
        driver_.error_name(status_, &name);
        return failure(std::string(call_) + " failed: " + (name ? name : std::to_string(status_)), call_);
    }

private:
    struct End {
        int gpu = host;
        Device device = 0;
        Context context = nullptr;
        Address address = 0;
    };

    void check(Status status, const char* call) {
        if (status == success || status_ != success) return;
        status_ = status;
        call_ = call;
    }

    // Host memory is pinned through the context that is current: that of the other end.
    void open(End& end) {
        if (end.gpu < 0) {
            void* address = nullptr;
            check(driver_.allocate_host(&address, bytes_, portable_host_memory), "cuMemHostAlloc");
            end.address = reinterpret_cast<Address>(address);
            return;
        }
        check(driver_.device(&end.device, driver_.ordinals[static_cast<std::size_t>(end.gpu)]),
              "cuDeviceGet");
        check(driver_.retain(&end.context, end.device), "cuDevicePrimaryCtxRetain");
        check(driver_.set_current(end.context), "cuCtxSetCurrent");
        check(driver_.allocate(&end.address, bytes_), "cuMemAlloc");
    }

    void enable_peer(const End& from, const End& to) {
        check(driver_.set_current(from.context), "cuCtxSetCurrent");
        const Status status = driver_.enable_peer(to.context, 0);
        if (status != peer_access_already_enabled) check(status, "cuCtxEnablePeerAccess");
    }

    const Driver& driver_;
    std::array<End, 2> ends_;
    Bytes bytes_;
    Stream stream_ = nullptr;
    std::array<Event, 2> events_{};
    Status status_ = success;
    const char* call_ = "";
};

Result<void> check_ends(const Driver& driver, int from, int to, Bytes bytes) {
    const int count = static_cast<int>(driver.ordinals.size());
    for (int end : {from, to})
        if (end >= count || end < host)
            return Error{ErrorCode::not_found, "there is no GPU " + std::to_string(end), "raw copy", {}};
    if ((from == host && to == host) || bytes == 0)
        return Error{ErrorCode::invalid_argument, "a raw copy needs a GPU and bytes", "raw copy", {}};
    return {};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double us_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
    return std::chrono::duration<double, std::micro>(b - a).count();
}

}  // namespace

Result<void> available() {
    const auto driver = open_driver();
    if (!driver) return driver.error();
    return {};
}

Result<Rate> copy_rate(int from, int to, Bytes bytes, int samples) {
    const auto driver = open_driver();
    if (!driver) return driver.error();
    if (auto checked = check_ends(*driver, from, to, bytes); !checked) return checked.error();
    Copy copy(*driver, from, to, bytes);
    if (auto prepared = copy.prepare(); !prepared) return prepared.error();
    std::vector<double> rates;
    for (int i = 0; i < std::max(samples, 1); ++i) rates.push_back(copy.sample());
    if (auto failed = copy.failed(); !failed) return failed.error();
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    return Rate{median(rates), *least, *most};
}

Result<Cost> copy_cost(int from, int to, Bytes bytes, int copies) {
    using Clock = std::chrono::steady_clock;
    const auto driver = open_driver();
    if (!driver) return driver.error();
    if (auto checked = check_ends(*driver, from, to, bytes); !checked) return checked.error();
    Copy copy(*driver, from, to, bytes);
    if (auto prepared = copy.prepare(); !prepared) return prepared.error();
    std::vector<double> submits;
    std::vector<double> completes;
    for (int i = 0; i < std::max(copies, 1); ++i) {
        const auto start = Clock::now();
        copy.run();
        const auto submitted = Clock::now();
        copy.wait();
        submits.push_back(us_between(start, submitted));
        completes.push_back(us_between(start, Clock::now()));
    }
    if (auto failed = copy.failed(); !failed) return failed.error();
    return Cost{median(submits), median(completes)};
}

}  // namespace sidestep::bench::raw
