#include "driver/cufile.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

using cufile_abi::GpuRecord;
using cufile_abi::StatsLayout;
using cufile_abi::Status;

// By number above 5000; those left out are not used (API Reference Guide, CUfileOpError).
constexpr const char* error_names[] = {"unknown",
                                       "DRIVER_NOT_INITIALIZED",
                                       "DRIVER_INVALID_PROPS",
                                       "DRIVER_UNSUPPORTED_LIMIT",
                                       "DRIVER_VERSION_MISMATCH",
                                       "DRIVER_VERSION_READ_ERROR",
                                       "DRIVER_CLOSING",
                                       "PLATFORM_NOT_SUPPORTED",
                                       "IO_NOT_SUPPORTED",
                                       "DEVICE_NOT_SUPPORTED",
                                       "NVFS_DRIVER_ERROR",
                                       "CUDA_DRIVER_ERROR",
                                       "CUDA_POINTER_INVALID",
                                       "CUDA_MEMORY_TYPE_INVALID",
                                       "CUDA_POINTER_RANGE_ERROR",
                                       "CUDA_CONTEXT_MISMATCH",
                                       "INVALID_MAPPING_SIZE",
                                       "INVALID_MAPPING_RANGE",
                                       "INVALID_FILE_TYPE",
                                       "INVALID_FILE_OPEN_FLAG",
                                       "DIO_NOT_SET",
                                       "unknown",
                                       "INVALID_VALUE",
                                       "MEMORY_ALREADY_REGISTERED",
                                       "MEMORY_NOT_REGISTERED",
                                       "PERMISSION_DENIED",
                                       "DRIVER_ALREADY_OPEN",
                                       "HANDLE_NOT_REGISTERED",
                                       "HANDLE_ALREADY_REGISTERED",
                                       "DEVICE_NOT_FOUND",
                                       "INTERNAL_ERROR",
                                       "GETNEWFD_FAILED",
                                       "unknown",
                                       "NVFS_SETUP_ERROR",
                                       "IO_DISABLED",
                                       "BATCH_SUBMIT_FAILED",
                                       "GPU_MEMORY_PINNING_FAILED",
                                       "BATCH_FULL",
                                       "ASYNC_NOT_SUPPORTED",
                                       "INTERNAL_BATCH_SETUP_ERROR",
                                       "INTERNAL_BATCH_SUBMIT_ERROR",
                                       "INTERNAL_BATCH_GETSTATUS_ERROR",
                                       "INTERNAL_BATCH_CANCEL_ERROR",
                                       "NOMEM_ERROR",
                                       "IO_ERROR",
                                       "INTERNAL_BUF_REGISTER_ERROR",
                                       "HASH_OPR_ERROR",
                                       "INVALID_CONTEXT_ERROR",
                                       "NVFS_INTERNAL_DRIVER_ERROR",
                                       "BATCH_NOCOMPAT_ERROR",
                                       "IO_MAX_ERROR"};
constexpr int name_count = static_cast<int>(std::size(error_names));
static_assert(name_count == 51);

ErrorCode kind_of(int code) {
    switch (code - cufile_abi::error_base) {
        case 7:  // PLATFORM_NOT_SUPPORTED and the like
        case 8:
        case 9:
        case 18:
        case 19:
        case 20:
        case 27:
        case 30:
            return ErrorCode::unsupported;
        case 25:
            return ErrorCode::permission_denied;
        case 16:
        case 36:
        case 43:
            return ErrorCode::out_of_memory;
        case 44:
            return ErrorCode::io_error;
        default:
            return ErrorCode::device_error;
    }
}

const char* hint_of_cufile(int code) {
    switch (code - cufile_abi::error_base) {
        case 16:
            return "cuFile's limit for mapped GPU memory is met: raise max_device_pinned_mem_size_kb in "
                   "cufile.json";
        case 27:
            return "cuFile answers so where it learns nothing of the device below the file, mostly for want "
                   "of udev: "
                   "see sidestep doctor, no-udev and file-system";
        case 30:
            return "cuFile does not know the file system: see sidestep doctor, file-system";
        case 33:
            return "nvidia-fs and the library do not fit each other: install them from one release";
        default:
            return "";
    }
}

// Its own default, as it may name it.
bool is_working_folder(std::string_view path) {
    std::array<char, 4096> here{};
    return path == "." || path == "./" ||
           (::getcwd(here.data(), here.size()) != nullptr && path == here.data());
}

// The library's answer to a read or write: bytes, -1 with errno, or an error of its own made negative.
Result<Bytes> moved(const Cufile& cufile, ssize_t result, int number, const char* call) {
    if (result >= 0) return static_cast<Bytes>(result);
    if (result < -cufile_abi::error_base) return cufile.error({static_cast<int>(-result), 0}, call);
    if (result == -1 && number > 0) return system_error(number, fmt::format("{} failed", call), call);
    return Error{
        ErrorCode::device_error, fmt::format("{} answered {}, which means nothing", call, result), call, {}};
}

}  // namespace

std::string cufile_words(int code) {
    const int number = code - cufile_abi::error_base;
    if (number <= 0 || number >= name_count) return fmt::format("{}, an unknown error", code);
    return fmt::format("{} {}", code, error_names[number]);
}

Result<std::vector<CufileGpuCounts>> parse_cufile_stats(const unsigned char* bytes,
                                                        const StatsLayout& layout) {
    std::uint32_t count = 0;
    std::memcpy(&count, bytes + layout.count_at, sizeof count);
    if (count > cufile_abi::max_gpus)
        return Error{ErrorCode::unsupported,
                     fmt::format("cuFile's statistics tell of {} GPUs, and have room for {}", count,
                                 cufile_abi::max_gpus),
                     "cuFileGetStatsL3",
                     {}};
    std::vector<CufileGpuCounts> found;
    for (std::size_t i = 0; i < count; ++i) {
        GpuRecord record{};
        std::memcpy(&record, bytes + layout.records_at() + i * sizeof record, sizeof record);
        found.push_back({record.uuid,
                         {record.reads, record.p2p_reads + record.nvfs_reads, record.posix_reads},
                         {record.writes, record.p2p_writes + record.nvfs_writes, record.posix_writes}});
    }
    return found;
}

Result<std::shared_ptr<const Cufile>> Cufile::load(const std::vector<std::string>& given) {
    // A toolkit lies where the loader may not look. Where shims/cufile was preloaded, the bare name is its.
    const std::vector<std::string> usual{"libcufile.so.0", "/usr/local/cuda/lib64/libcufile.so.0",
                                         "/usr/lib/x86_64-linux-gnu/libcufile.so.0",
                                         "/usr/lib/aarch64-linux-gnu/libcufile.so.0"};
    Error last{ErrorCode::not_found, "no name was given", "dlopen", {}};
    bool ours = false;
    for (const std::string& name : given.empty() ? usual : given) {
        auto library = DynamicLibrary::open(name, ours);
        if (!library) {
            // What is there and broken says more than what is not there.
            if (last.code == ErrorCode::not_found) last = library.error();
            continue;
        }
        // Its calls would come back to the copy that makes them.
        if (library->address("sidestepCufileLastError") != nullptr) {
            ours = true;
            last = Error{
                ErrorCode::unsupported,
                fmt::format("{} is Sidestep's own library under cuFile's name, not NVIDIA's", name), "dlopen",
                "install NVIDIA's library in /usr/local/cuda (package libcufile), if it is to be used"};
            continue;
        }
        std::shared_ptr<Cufile> cufile(new Cufile(std::move(*library)));
        SIDESTEP_CHECK(cufile->bind());
        return std::shared_ptr<const Cufile>(std::move(cufile));
    }
    if (last.code == ErrorCode::not_found) {
        last.message = "libcufile.so.0 was not found";
        last.hint = "install it (package libcufile of the CUDA toolkit, or gds-tools)";
    }
    return last;
}

Result<void> Cufile::bind() {
    SIDESTEP_CHECK(library_.bind(open_, "cuFileDriverOpen"));
    SIDESTEP_CHECK(library_.bind(register_file_, "cuFileHandleRegister"));
    SIDESTEP_CHECK(library_.bind(deregister_file_, "cuFileHandleDeregister"));
    SIDESTEP_CHECK(library_.bind(register_buffer_, "cuFileBufRegister"));
    SIDESTEP_CHECK(library_.bind(deregister_buffer_, "cuFileBufDeregister"));
    SIDESTEP_CHECK(library_.bind(read_, "cuFileRead"));
    SIDESTEP_CHECK(library_.bind(write_, "cuFileWrite"));
    library_.bind_optional(version_of_, "cuFileGetVersion");
    library_.bind_optional(set_text_, "cuFileSetParameterString");
    library_.bind_optional(get_text_, "cuFileGetParameterString");
    library_.bind_optional(set_stats_level_, "cuFileSetStatsLevel");
    library_.bind_optional(get_stats_level_, "cuFileGetStatsLevel");
    library_.bind_optional(start_stats_, "cuFileStatsStart");
    library_.bind_optional(stats_, "cuFileGetStatsL3");
    int told = 0;
    if (version_of_ != nullptr && version_of_(&told).code == cufile_abi::success && told > 0) version_ = told;
    return {};
}

std::string Cufile::version_text() const {
    return fmt::format("{}.{}", version_ / 1000, version_ % 1000 / 10);
}

bool Cufile::has_stats() const {
    return set_stats_level_ != nullptr && get_stats_level_ != nullptr && start_stats_ != nullptr &&
           stats_ != nullptr;
}

// By the library's own setting, since a variable set in this process could meet another thread that reads the
// environment. A failure only means that the log lands elsewhere.
void Cufile::set_log_folder(const std::string& folder) const {
    const char* chosen = std::getenv("CUFILE_LOGFILE_PATH");
    if (set_text_ == nullptr || get_text_ == nullptr || (chosen != nullptr && *chosen != '\0')) return;
    std::array<char, 4096> now{};
    const Status asked =
        get_text_(cufile_abi::parameter_log_folder, now.data(), static_cast<int>(now.size()));
    if (asked.code == cufile_abi::success && now.front() != '\0' && !is_working_folder(now.data())) return;
    set_text_(cufile_abi::parameter_log_folder, folder.c_str());
}

Result<void> Cufile::open_driver(const std::string& log_folder) const {
    set_log_folder(log_folder);
    // A level that is set before the driver opens counts from the first operation on.
    if (has_stats()) set_stats_level_(3);
    const Status opened = open_();
    if (opened.code != cufile_abi::driver_already_open) SIDESTEP_CHECK(check(opened, "cuFileDriverOpen"));
    if (!has_stats()) return {};
    int level = 0;
    SIDESTEP_CHECK(check(get_stats_level_(&level), "cuFileGetStatsLevel"));
    if (level < 3) SIDESTEP_CHECK(check(set_stats_level_(3), "cuFileSetStatsLevel"));
    return check(start_stats_(), "cuFileStatsStart");
}

Result<std::vector<CufileGpuCounts>> Cufile::gpu_counts() const {
    if (!has_stats())
        return Error{
            ErrorCode::unsupported,
            fmt::format("libcufile {} does not count which way bytes take (1.15 does)", version_text()),
            "cuFileGetStatsL3", "install a newer libcufile"};
    const StatsLayout layout = version_ < 1190 ? cufile_abi::stats_before_1_19 : cufile_abi::stats_since_1_19;
    // Room for a library that writes more than this version is known to, and a mark to see that by.
    constexpr unsigned char mark = 0xa5;
    alignas(8) std::array<unsigned char, 16384> bytes;
    bytes.fill(mark);
    SIDESTEP_CHECK(check(stats_(bytes.data()), "cuFileGetStatsL3"));
    if (!std::all_of(bytes.begin() + layout.size, bytes.end(),
                     [](unsigned char byte) { return byte == mark; }))
        return Error{ErrorCode::unsupported,
                     fmt::format("libcufile {} lays its statistics out in a way that is not known here",
                                 version_text()),
                     "cuFileGetStatsL3",
                     {}};
    return parse_cufile_stats(bytes.data(), layout);
}

Result<Bytes> Cufile::read(Handle file, void* base, Bytes size, Bytes file_offset, Bytes offset) const {
    errno = 0;
    const ssize_t got = read_(file, base, size, static_cast<off_t>(file_offset), static_cast<off_t>(offset));
    return moved(*this, got, errno, "cuFileRead");
}

Result<Bytes> Cufile::write(Handle file, const void* base, Bytes size, Bytes file_offset,
                            Bytes offset) const {
    errno = 0;
    const ssize_t put = write_(file, base, size, static_cast<off_t>(file_offset), static_cast<off_t>(offset));
    return moved(*this, put, errno, "cuFileWrite");
}

Error Cufile::error(Status status, std::string_view call) const {
    std::string message = fmt::format("{} failed: {}", call, cufile_words(status.code));
    if (status.cuda != 0) message += fmt::format(", CUDA error {}", status.cuda);
    return Error{kind_of(status.code), std::move(message), "cuFile", hint_of_cufile(status.code)};
}

Result<void> Cufile::check(Status status, std::string_view call) const {
    if (status.code == cufile_abi::success) return {};
    return error(status, call);
}

Result<CufileHandle> CufileHandle::create(std::shared_ptr<const Cufile> cufile, const Fd& fd) {
    cufile_abi::Description description;
    description.file.fd = fd.get();
    CufileHandle made;
    SIDESTEP_CHECK(
        cufile->check(cufile->register_file_(&made.handle_, &description), "cuFileHandleRegister"));
    made.cufile_ = std::move(cufile);
    return made;
}

CufileHandle::CufileHandle(CufileHandle&& other) noexcept
    : cufile_(std::move(other.cufile_)), handle_(std::exchange(other.handle_, nullptr)) {}

CufileHandle& CufileHandle::operator=(CufileHandle&& other) noexcept {
    std::swap(cufile_, other.cufile_);
    std::swap(handle_, other.handle_);
    return *this;
}

CufileHandle::~CufileHandle() {
    if (cufile_) cufile_->deregister_file_(handle_);
}

Result<std::unique_ptr<CufileBuffer>> CufileBuffer::create(std::shared_ptr<const Cufile> cufile,
                                                           const void* base, Bytes size) {
    const Status status = cufile->register_buffer_(base, size, 0);
    const bool theirs = status.code == cufile_abi::memory_already_registered;
    if (!theirs) SIDESTEP_CHECK(cufile->check(status, "cuFileBufRegister"));
    return std::unique_ptr<CufileBuffer>(new CufileBuffer(std::move(cufile), theirs ? nullptr : base));
}

CufileBuffer::~CufileBuffer() {
    if (base_ != nullptr) cufile_->deregister_buffer_(base_);
}

}  // namespace sidestep::driver
