// A made-up libcufile over the made-up CUDA driver (tests/fake_cuda): it moves real bytes between files and
// that driver's memory, which is the process's own, and counts them as the real one says it does. What it
// does wrong is chosen by words in FAKE_CUFILE, separated by commas, looked at in every call:
//
//   p2p, nvfs     operations count as direct, by the one or the other; nvfs is the default
//   posix         registration and all calls succeed, and operations count as POSIX: silent compatibility
//   mode silent        operations are not counted at all posix_after=N the first N operations are direct, the
//   rest POSIX open=CODE, file=CODE, buffer=CODE  opening the driver, registering a file or memory fails with
//   that code short, tiny   an operation moves half of what was asked for, in whole blocks; or 1000 bytes at
//   most eio, refuse   an operation fails with errno EIO, or with IO_DISABLED (5034) wrong         bytes
//   arrive changed 1.19, 1.14    that version: statistics of 5112 bytes; or (FAKE_CUFILE_OLD) no statistics
//   overrun       statistics of 5112 bytes, though the version says 1.15
//   unmap_ms=N    giving memory back takes so long
//
// Apart from the words it is strict: no current CUDA context, an unknown handle, a file registered twice, an
// open flag that cuFile refuses, memory that the CUDA driver does not know, or a request past the memory's
// end is refused.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver/cufile_abi.hpp"
#include "tests/fake_cufile/taken_call.hpp"

using namespace sidestep::driver::cufile_abi;
using sidestep::fake_cufile::TakenCall;

namespace {

std::string switches() {
    const char* value = std::getenv("FAKE_CUFILE");
    std::string all(1, ',');
    all.append(value != nullptr ? value : "").append(1, ',');
    return all;
}

bool is_set(const std::string& word) {
    return switches().find("," + word + ",") != std::string::npos;
}

// The number after "word=", or -1.
int number_of(const std::string& word) {
    const std::string all = switches();
    const auto at = all.find("," + word + "=");
    return at == std::string::npos ? -1 : std::atoi(all.c_str() + at + word.size() + 2);
}

struct File {
    int registered = -1;  // the caller's descriptor
    int own = -1;         // without O_DIRECT, since the memory may lie anywhere within a block
};

struct State {
    std::mutex mutex;
    int opened = 0;
    int level = 0;
    bool counting = false;
    std::string log_folder;
    std::map<Handle, File> files;
    std::uintptr_t next_handle = 0x1000;
    std::map<const void*, std::size_t> buffers;
    std::vector<GpuRecord> gpus;
    int operations = 0;
    std::vector<TakenCall> taken;
};

State& state() {
    static State& only = *new State;
    return only;
}

// The name of a function of the CUDA driver, with the version that cuda.h gives it.
#define FAKE_CUFILE_TEXT(name) #name
#define FAKE_CUFILE_NAME(name) FAKE_CUFILE_TEXT(name)

// Functions of the CUDA driver that the program has loaded.
template <typename Function>
Function* cuda(const char* name) {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
}

bool has_context() {
    CUcontext current = nullptr;
    auto* const get = cuda<CUresult(CUcontext*)>(FAKE_CUFILE_NAME(cuCtxGetCurrent));
    return get != nullptr && get(&current) == CUDA_SUCCESS && current != nullptr;
}

// The GPU whose memory holds the whole range; false where none does.
bool find_gpu(const void* address, std::size_t size, std::array<unsigned char, 16>& uuid) {
    auto* const ask = cuda<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>(
        FAKE_CUFILE_NAME(cuPointerGetAttributes));
    CUmemorytype type{};
    int ordinal = -1;
    CUdeviceptr start = 0;
    std::size_t length = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void* values[] = {&type, &ordinal, &start, &length};
    const auto at = reinterpret_cast<CUdeviceptr>(address);
    if (ask == nullptr || ask(4, names, values, at) != CUDA_SUCCESS) return false;
    if (type != CU_MEMORYTYPE_DEVICE || at + size > start + length) return false;
    CUuuid found{};
    auto* const identify = cuda<CUresult(CUuuid*, CUdevice)>(FAKE_CUFILE_NAME(cuDeviceGetUuid));
    if (identify == nullptr || identify(&found, ordinal) != CUDA_SUCCESS) return false;
    std::memcpy(uuid.data(), &found, sizeof found);
    return true;
}

GpuRecord& record_of(const std::array<unsigned char, 16>& uuid) {
    for (GpuRecord& gpu : state().gpus)
        if (gpu.uuid == uuid) return gpu;
    GpuRecord fresh{};
    fresh.uuid = uuid;
    state().gpus.push_back(fresh);
    return state().gpus.back();
}

void count(const std::array<unsigned char, 16>& uuid, bool write, std::uint64_t bytes) {
    const std::lock_guard lock(state().mutex);
    const int after = number_of("posix_after");
    const bool posix = is_set("posix") || (after >= 0 && state().operations >= after);
    ++state().operations;
    if (state().level < 3 || !state().counting || is_set("silent")) return;
    GpuRecord& gpu = record_of(uuid);
    ++(write ? gpu.writes : gpu.reads);
    (write ? gpu.written_bytes : gpu.read_bytes) += bytes;
    if (posix)
        ++(write ? gpu.posix_writes : gpu.posix_reads);
    else if (is_set("p2p"))
        ++(write ? gpu.p2p_writes : gpu.p2p_reads);
    else
        ++(write ? gpu.nvfs_writes : gpu.nvfs_reads);
}

// Half of it in whole blocks; no less than one.
std::size_t half(std::size_t size) {
    return size <= 4096 ? size : std::max<std::size_t>(size / 2 / 4096, 1) * 4096;
}

ssize_t move(Handle handle, char* base, std::size_t size, off_t file_offset, off_t offset, bool write) {
    if (!has_context()) return -5015;
    int own = -1;
    {
        const std::lock_guard lock(state().mutex);
        state().taken.push_back({write, base, size, file_offset, offset});
        const auto found = state().files.find(handle);
        if (found == state().files.end()) return -5027;
        own = found->second.own;
    }
    char* const address = base + offset;
    std::array<unsigned char, 16> uuid{};
    if (!find_gpu(address, size, uuid)) return -5014;
    if (is_set("refuse")) return -5034;
    if (is_set("eio")) {
        errno = EIO;
        return -1;
    }
    if (is_set("short")) size = half(size);
    if (is_set("tiny")) size = std::min<std::size_t>(size, 1000);
    const ssize_t moved =
        write ? ::pwrite(own, address, size, file_offset) : ::pread(own, address, size, file_offset);
    if (moved < 0) return -1;
    if (is_set("wrong") && !write && moved > 0) address[0] = static_cast<char>(address[0] + 1);
    count(uuid, write, static_cast<std::uint64_t>(moved));
    return moved;
}

Status code(int number) {
    return {number, 0};
}

}  // namespace

extern "C" {

Status cuFileDriverOpen() {
    if (const int failure = number_of("open"); failure > 0) return code(failure);
    const std::lock_guard lock(state().mutex);
    ++state().opened;
    return {};
}

Status cuFileHandleRegister(Handle* handle, Description* description) {
    if (const int failure = number_of("file"); failure > 0) return code(failure);
    const int fd = description->file.fd;
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || description->type != opaque_fd) return code(5022);
    if ((flags & (O_APPEND | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_NOATIME)) != 0) return code(5019);
    if ((flags & O_DIRECT) == 0) return code(5020);
    const std::lock_guard lock(state().mutex);
    for (const auto& [known, file] : state().files)
        if (file.registered == fd) return code(5028);
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const int own = ::open(link.c_str(), (flags & O_ACCMODE) | O_CLOEXEC);
    if (own < 0) return code(5031);
    *handle = reinterpret_cast<Handle>(state().next_handle++);
    state().files[*handle] = {fd, own};
    return {};
}

void cuFileHandleDeregister(Handle handle) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().files.find(handle);
    if (found == state().files.end()) std::abort();
    ::close(found->second.own);
    state().files.erase(found);
}

Status cuFileBufRegister(const void* base, std::size_t size, int) {
    if (const int failure = number_of("buffer"); failure > 0) return code(failure);
    std::array<unsigned char, 16> uuid{};
    if (!has_context()) return code(5015);
    if (!find_gpu(base, size, uuid)) return code(5014);
    const std::lock_guard lock(state().mutex);
    return state().buffers.emplace(base, size).second ? Status{} : code(5023);
}

Status cuFileBufDeregister(const void* base) {
    if (!has_context()) return code(5015);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::max(number_of("unmap_ms"), 0)));
    const std::lock_guard lock(state().mutex);
    return state().buffers.erase(base) == 1 ? Status{} : code(5024);
}

ssize_t cuFileRead(Handle handle, void* base, std::size_t size, off_t file_offset, off_t offset) {
    return move(handle, static_cast<char*>(base), size, file_offset, offset, false);
}

ssize_t cuFileWrite(Handle handle, const void* base, std::size_t size, off_t file_offset, off_t offset) {
    return move(handle, static_cast<char*>(const_cast<void*>(base)), size, file_offset, offset, true);
}

#ifndef FAKE_CUFILE_OLD
Status cuFileGetVersion(int* version) {
    *version = is_set("1.19") ? 1190 : 1150;
    return {};
}

Status cuFileSetParameterString(int parameter, const char* text) {
    const std::lock_guard lock(state().mutex);
    if (state().opened > 0) return code(driver_already_open);
    if (parameter == parameter_log_folder) state().log_folder = text;
    return {};
}

Status cuFileGetParameterString(int parameter, char* text, int size) {
    const std::lock_guard lock(state().mutex);
    const std::string value = parameter == parameter_log_folder ? state().log_folder : "";
    if (static_cast<int>(value.size()) >= size) return code(5022);
    std::memcpy(text, value.c_str(), value.size() + 1);
    return {};
}

Status cuFileSetStatsLevel(int level) {
    state().level = level;
    return {};
}

Status cuFileGetStatsLevel(int* level) {
    *level = state().level;
    return {};
}

Status cuFileStatsStart() {
    if (state().opened == 0) return code(5001);
    state().counting = true;
    return {};
}

Status cuFileGetStatsL3(void* stats) {
    const std::lock_guard lock(state().mutex);
    if (state().level < 3) return code(5022);
    const StatsLayout layout = is_set("1.19") || is_set("overrun") ? stats_since_1_19 : stats_before_1_19;
    auto* const bytes = static_cast<unsigned char*>(stats);
    std::memset(bytes, 0, layout.size);
    const auto gpus = static_cast<std::uint32_t>(state().gpus.size());
    std::memcpy(bytes + layout.count_at, &gpus, sizeof gpus);
    if (gpus > 0) std::memcpy(bytes + layout.records_at(), state().gpus.data(), gpus * sizeof(GpuRecord));
    return {};
}
#endif

// What a test wants to know of the state; no function of cuFile.
int fake_cufile_files() {
    return static_cast<int>(state().files.size());
}
int fake_cufile_buffers() {
    return static_cast<int>(state().buffers.size());
}
int fake_cufile_opened() {
    return state().opened;
}
// Reads and writes since it was asked last: at most `room` are told, all are forgotten, and how many there were is the answer.
std::size_t fake_cufile_taken(TakenCall* calls, std::size_t room) {
    const std::lock_guard lock(state().mutex);
    const std::vector<TakenCall> taken = std::exchange(state().taken, {});
    std::copy_n(taken.begin(), std::min(room, taken.size()), calls);
    return taken.size();
}
const char* fake_cufile_log_folder() {
    return state().log_folder.c_str();
}

}  // extern "C"
