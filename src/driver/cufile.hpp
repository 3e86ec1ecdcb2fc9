// NVIDIA's libcufile (GPUDirect Storage), loaded at run time.
//
// Thin: which files may go this way, and whether a path is really direct, is decided by the cufile backend.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/cufile_abi.hpp"
#include "driver/dynamic_library.hpp"
#include "driver/fd.hpp"

namespace sidestep::driver {

// What the library counted for one GPU since its statistics began, in operations.
struct CufileGpuCounts {
    struct Direction {
        std::uint64_t all = 0;
        std::uint64_t direct = 0;  // by the kernel's P2PDMA or by nvidia-fs
        std::uint64_t posix = 0;   // through host memory
    };
    std::array<unsigned char, 16> uuid{};
    Direction read;
    Direction write;
};

// The words for a code of cuFile (5001 and up): "5027 HANDLE_NOT_REGISTERED".
std::string cufile_words(int code);

// The records in `bytes`, which the library filled by `layout`. Fails with ErrorCode::unsupported where the
// number of GPUs cannot be one.
Result<std::vector<CufileGpuCounts>> parse_cufile_stats(const unsigned char* bytes,
                                                        const cufile_abi::StatsLayout& layout);

// The library's functions. Immutable once open, so free to be used by several threads. It stays in the
// process, and its driver stays open, until the process ends: other users in the process (PyTorch among them)
// rely on an implicit open that nobody counts.
class Cufile {
public:
    // Loads the first of `names` that is there; empty: libcufile.so.0 where the loader finds it, else in
    // /usr/local/cuda or where Debian puts libraries. Passes over shims/cufile, which bears the name too. Fails with ErrorCode::not_found, or with ErrorCode::unsupported where it cannot be
    // loaded or lacks a function of version 1.0. Opens nothing.
    static Result<std::shared_ptr<const Cufile>> load(const std::vector<std::string>& names = {});

    // 1000 * major + 10 * minor; 1070 where the library cannot tell, which those before 1.8 cannot.
    int version() const { return version_; }
    // "1.15".
    std::string version_text() const;
    // Whether it counts which way bytes took: since 1.15.
    bool has_stats() const;

    // Opens the driver with statistics of level 3 on. Takes up to 2 seconds, more than once it does nothing.
    // Its log goes into `log_folder`, and not into the working directory, where neither CUFILE_LOGFILE_PATH
    // nor a setting of the user's names a place, and the library is new enough to be told (1.14).
    Result<void> open_driver(const std::string& log_folder) const;

    // One record a GPU that had a part in anything; needs has_stats() and an open driver.
    Result<std::vector<CufileGpuCounts>> gpu_counts() const;

    // pread and pwrite between a registered file and `base + offset` in GPU memory, whose context is current.
    // May move fewer bytes; 0 at the end of the file. `base` is what was registered, if it was.
    Result<Bytes> read(cufile_abi::Handle file, void* base, Bytes size, Bytes file_offset,
                       Bytes offset) const;
    Result<Bytes> write(cufile_abi::Handle file, const void* base, Bytes size, Bytes file_offset,
                        Bytes offset) const;

    // The Error for a code. `call` names the function.
    Error error(cufile_abi::Status status, std::string_view call) const;
    Result<void> check(cufile_abi::Status status, std::string_view call) const;

private:
    friend class CufileHandle;
    friend class CufileBuffer;
    using Status = cufile_abi::Status;
    using Handle = cufile_abi::Handle;

    explicit Cufile(DynamicLibrary library) : library_(std::move(library)) {}
    Result<void> bind();
    void set_log_folder(const std::string& folder) const;

    DynamicLibrary library_;
    int version_ = 1070;
    Status (*open_)() = nullptr;
    Status (*register_file_)(Handle*, cufile_abi::Description*) = nullptr;
    void (*deregister_file_)(Handle) = nullptr;
    Status (*register_buffer_)(const void*, std::size_t, int) = nullptr;
    Status (*deregister_buffer_)(const void*) = nullptr;
    ssize_t (*read_)(Handle, void*, std::size_t, off_t, off_t) = nullptr;
    ssize_t (*write_)(Handle, const void*, std::size_t, off_t, off_t) = nullptr;
    // Null where the library is older.
    Status (*version_of_)(int*) = nullptr;
    Status (*set_text_)(int, const char*) = nullptr;
    Status (*get_text_)(int, char*, int) = nullptr;
    Status (*set_stats_level_)(int) = nullptr;
    Status (*get_stats_level_)(int*) = nullptr;
    Status (*start_stats_)() = nullptr;
    Status (*stats_)(void*) = nullptr;
};

// A file that the library knows. The descriptor stays the caller's, and open for as long.
class CufileHandle {
public:
    static Result<CufileHandle> create(std::shared_ptr<const Cufile> cufile, const Fd& fd);
    CufileHandle() = default;
    CufileHandle(CufileHandle&& other) noexcept;
    CufileHandle& operator=(CufileHandle&& other) noexcept;
    ~CufileHandle();

    cufile_abi::Handle get() const { return handle_; }

private:
    std::shared_ptr<const Cufile> cufile_;
    cufile_abi::Handle handle_ = nullptr;
};

// GPU memory that the library has mapped for storage. To be gone before the memory is freed: nvidia-fs may
// hang otherwise.
class CufileBuffer {
public:
    // Memory that another part of the process has registered is left to that part.
    static Result<std::unique_ptr<CufileBuffer>> create(std::shared_ptr<const Cufile> cufile,
                                                        const void* base, Bytes size);
    CufileBuffer(const CufileBuffer&) = delete;
    CufileBuffer& operator=(const CufileBuffer&) = delete;
    ~CufileBuffer();

private:
    CufileBuffer(std::shared_ptr<const Cufile> cufile, const void* base)
        : cufile_(std::move(cufile)), base_(base) {}

    std::shared_ptr<const Cufile> cufile_;
    const void* base_;  // null: not ours to give back
};

}  // namespace sidestep::driver
