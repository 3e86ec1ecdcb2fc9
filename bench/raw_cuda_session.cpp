#include "bench/raw_cuda_session.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace sidestep::bench::raw {

#ifdef SIDESTEP_RAW_KERNELS
// The fat binary of raw_kernels.cu, made at build time.
extern const unsigned char raw_kernels_image[];
#endif

namespace {

constexpr Status peer_access_already_enabled = 704;
constexpr unsigned non_blocking_stream = 1;
constexpr unsigned portable_mapped_memory = 3;
constexpr int multiprocessor_count = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

Error failure(std::string message, std::string where = "libcuda.so.1") {
    return Error{ErrorCode::unsupported, std::move(message), std::move(where), {}};
}

const void* kernels() {
#ifdef SIDESTEP_RAW_KERNELS
    return raw_kernels_image;
#else
    return nullptr;
#endif
}

Result<Driver> bind() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return failure("libcuda.so.1 was not found: no NVIDIA driver");
    Driver driver;
    std::string missing;
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        if (!function) missing = name;
    };
    find(driver.init, "cuInit");
    find(driver.version, "cuDriverGetVersion");
    find(driver.error_name, "cuGetErrorName");
    find(driver.device_count, "cuDeviceGetCount");
    find(driver.device, "cuDeviceGet");
    find(driver.attribute, "cuDeviceGetAttribute");
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
    // CUDA 13 gave it a second version; drivers before that know the first one only.
    find(driver.elapsed_ms,
         dlsym(library, "cuEventElapsedTime") ? "cuEventElapsedTime" : "cuEventElapsedTime_v2");
    find(driver.load_module, "cuModuleLoadData");
    find(driver.unload_module, "cuModuleUnload");
    find(driver.function, "cuModuleGetFunction");
    find(driver.load_function, "cuFuncLoad");
    find(driver.launch, "cuLaunchKernel");
    if (!missing.empty()) return failure(fmt::format("the NVIDIA driver lacks {}", missing));
    return driver;
}

Result<Driver> open_driver() {
    auto driver = bind();
    if (!driver) return driver;
    if (const Status status = driver->init(0); status != success)
        return failure(fmt::format("cuInit answers {}", status), "cuInit");
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

}  // namespace

const Result<Driver>& driver() {
    static const Result<Driver> opened = open_driver();
    return opened;
}

Result<void> available() {
    if (!driver()) return driver().error();
    return {};
}

std::string cuda_version() {
    int version = 0;
    if (!driver() || driver()->version(&version) != success) return {};
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Session::~Session() {
    for (const Event event : events_) driver_.drop_event(event);
    for (const Stream stream : streams_) driver_.drop_stream(stream);
    for (const Memory& memory : memory_) {
        if (memory.owner >= 0) driver_.set_current(gpus_[memory.owner].context);
        if (memory.owner >= 0)
            driver_.free(memory.address);
        else
            driver_.free_host(reinterpret_cast<void*>(memory.address));
    }
    for (const auto& [number, gpu] : gpus_) {
        if (!gpu.context) continue;
        driver_.set_current(gpu.context);
        if (gpu.module) driver_.unload_module(gpu.module);
        driver_.set_current(nullptr);
        driver_.release(gpu.device);
    }
}

void Session::use(int gpu) {
    if (!good()) return;
    if (gpu < 0 || gpu >= static_cast<int>(driver_.ordinals.size()))
        return fail({ErrorCode::not_found, fmt::format("CUDA sees no GPU {}", gpu), "plain loop", {}});
    Gpu& entry = gpus_[gpu];
    if (!entry.context) {
        check(driver_.device(&entry.device, driver_.ordinals[static_cast<std::size_t>(gpu)]), "cuDeviceGet");
        if (good()) check(driver_.retain(&entry.context, entry.device), "cuDevicePrimaryCtxRetain");
    }
    if (good()) check(driver_.set_current(entry.context), "cuCtxSetCurrent");
}

void Session::reach(int gpu, int other) {
    if (gpu < 0 || other < 0 || gpu == other) return;
    use(other);
    use(gpu);
    if (!good()) return;
    const Status status = driver_.enable_peer(gpus_[other].context, 0);
    if (status != peer_access_already_enabled) check(status, "cuCtxEnablePeerAccess");
}

Address Session::memory(int owner, Bytes bytes, int through) {
    use(owner >= 0 ? owner : through);
    if (!good()) return 0;
    Address address = 0;
    if (owner >= 0) {
        check(driver_.allocate(&address, bytes), "cuMemAlloc");
    } else {
        void* pointer = nullptr;
        check(driver_.allocate_host(&pointer, bytes, portable_mapped_memory), "cuMemHostAlloc");
        address = reinterpret_cast<Address>(pointer);
    }
    if (address) memory_.push_back({owner, address});
    return address;
}

Stream Session::stream(int gpu) {
    use(gpu);
    Stream stream = nullptr;
    if (good()) check(driver_.make_stream(&stream, non_blocking_stream), "cuStreamCreate");
    if (stream) streams_.push_back(stream);
    return stream;
}

Event Session::event(int gpu) {
    use(gpu);
    Event event = nullptr;
    if (good()) check(driver_.make_event(&event, 0), "cuEventCreate");
    if (event) events_.push_back(event);
    return event;
}

Function Session::kernel(int gpu, const char* name) {
    if (!kernels())
        fail(failure("this build holds no kernels: it was made without CUDA, or for no GPU", name));
    use(gpu);
    if (!good()) return nullptr;
    Gpu& entry = gpus_[gpu];
    if (!entry.module) check(driver_.load_module(&entry.module, kernels()), "cuModuleLoadData");
    Function function = nullptr;
    if (good()) check(driver_.function(&function, entry.module, name), "cuModuleGetFunction");
    if (good()) check(driver_.load_function(function), "cuFuncLoad");
    return function;
}

int Session::multiprocessors(int gpu) {
    use(gpu);
    int count = 1;
    if (good())
        check(driver_.attribute(&count, multiprocessor_count, gpus_[gpu].device), "cuDeviceGetAttribute");
    return count;
}

void Session::copy(Address to, Address from, Bytes bytes, Stream stream) {
    if (good()) check(driver_.copy(to, from, bytes, stream), "cuMemcpyAsync");
}

Address Session::staging(int gpu, Bytes bytes) {
    if (staging_bytes_ >= bytes) return staging_;
    staging_ = memory(host, bytes, gpu);
    staging_bytes_ = staging_ ? bytes : 0;
    return staging_;
}

void Session::write(int gpu, Address to, const void* from, Bytes bytes, Stream stream) {
    const Address stage = staging(gpu, bytes);
    if (!stage) return;
    std::memcpy(reinterpret_cast<void*>(stage), from, bytes);
    use(gpu);
    copy(to, stage, bytes, stream);
    wait(stream);
}

void Session::read(int gpu, void* to, Address from, Bytes bytes, Stream stream) {
    const Address stage = staging(gpu, bytes);
    if (!stage) return;
    use(gpu);
    copy(stage, from, bytes, stream);
    wait(stream);
    std::memcpy(to, reinterpret_cast<const void*>(stage), bytes);
}

void Session::launch(int gpu, Function kernel, unsigned blocks, unsigned threads, Stream stream,
                     void** arguments) {
    use(gpu);
    if (good())
        check(driver_.launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr),
              "cuLaunchKernel");
}

void Session::record(Event event, Stream stream) {
    if (good()) check(driver_.record(event, stream), "cuEventRecord");
}

double Session::ms_between(Event begin, Event end) {
    float ms = 0;
    if (good()) check(driver_.elapsed_ms(&ms, begin, end), "cuEventElapsedTime");
    return static_cast<double>(std::max(ms, 1e-6f));
}

// Also after a failure: work in flight still uses the session's memory.
void Session::wait(Stream stream) {
    if (stream) check(driver_.synchronize(stream), "cuStreamSynchronize");
}

void Session::spin(Stream stream) {
    while (good() && !done(stream)) {
    }
}

bool Session::done(Stream stream) {
    const Status status = driver_.query(stream);
    if (status == not_ready) return false;
    check(status, "cuStreamQuery");
    return true;
}

void Session::check(Status status, const char* call) {
    if (status == success || !good()) return;
    const char* name = nullptr;
    driver_.error_name(status, &name);
    fail({ErrorCode::device_error,
          fmt::format("{} failed: {}", call, name ? name : std::to_string(status)),
          call,
          {}});
}

void Session::fail(Error error) {
    if (good()) error_ = std::move(error);
}

Result<void> Session::failed() const {
    if (good()) return {};
    return error_;
}

}  // namespace sidestep::bench::raw
