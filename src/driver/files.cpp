#include "driver/files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "base/file_version.hpp"
#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

FileType type_of(mode_t mode) {
    if (S_ISBLK(mode)) return FileType::block_device;
    if (S_ISDIR(mode)) return FileType::directory;
    if (S_ISCHR(mode)) return FileType::character_device;
    if (S_ISFIFO(mode)) return FileType::fifo;
    if (S_ISSOCK(mode)) return FileType::socket;
    return FileType::regular;
}

// stat() gives 0 as the size of a block device. /sys tells it without opening the device, which needs
// no permission; its unit is 512 bytes whatever the device's block size. Containers may hide that part
// of /sys, then the device itself is asked.
Bytes block_device_size(dev_t device, const std::string& path) {
    const auto line = read_line(fmt::format("/sys/dev/block/{}:{}/size", major(device), minor(device)));
    Bytes sectors = 0;
    if (line) std::from_chars(line->data(), line->data() + line->size(), sectors);
    if (sectors != 0) return sectors * 512;
    const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    const off_t end = fd ? ::lseek(fd.get(), 0, SEEK_END) : 0;
    return end > 0 ? static_cast<Bytes>(end) : 0;
}

// Mixes device and inode number (splitmix64's finaliser), so that equal numbers of two file systems do
// not meet.
std::uint64_t mix(std::uint64_t device, std::uint64_t inode) {
    std::uint64_t x = device * 0x9E3779B97F4A7C15ull + inode;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (x ^ (x >> 31)) | 1;
}

std::uint64_t nanoseconds(const timespec& time) {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(time.tv_nsec);
}

FileFacts facts_of(const struct stat& status, const std::string& path) {
    FileFacts facts;
    facts.type = type_of(status.st_mode);
    facts.mode = status.st_mode & 07777;
    facts.owner = status.st_uid;
    facts.group = status.st_gid;
    if (facts.type == FileType::block_device) {
        facts.size = block_device_size(status.st_rdev, path);
        facts.identity = mix(status.st_rdev, ~std::uint64_t{0});
    } else {
        facts.size = static_cast<Bytes>(status.st_size);
        facts.identity = mix(status.st_dev, status.st_ino);
    }
    const std::uint64_t content = facts.identity ^ facts.size;
    facts.version = base::file_version(mix(content, nanoseconds(status.st_mtim)),
                                       mix(content, nanoseconds(status.st_ctim)) >> 8);
    return facts;
}

bool is_memory(const struct statfs& facts) {
    // linux/magic.h; repeated since file systems keep their numbers for ever.
    constexpr long tmpfs = 0x01021994;
    constexpr long ramfs = 0x858458f6;
    constexpr long hugetlbfs = 0x958458f6;
    const auto type = static_cast<long>(facts.f_type);
    return type == tmpfs || type == ramfs || type == hugetlbfs;
}

}  // namespace

const char* to_string(FileType type) {
    switch (type) {
        case FileType::regular:
            return "regular file";
        case FileType::block_device:
            return "block device";
        case FileType::directory:
            return "directory";
        case FileType::character_device:
            return "character device";
        case FileType::fifo:
            return "pipe";
        case FileType::socket:
            return "socket";
    }
    return "file";
}

Result<std::optional<FileFacts>> file_facts(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return std::optional(facts_of(status, path));
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<FileFacts>{};
    return system_error(errno, fmt::format("cannot look at {}", path), "stat");
}

Result<FileFacts> file_facts(const Fd& fd, const std::string& path) {
    struct stat status {};
    if (::fstat(fd.get(), &status) == 0) return facts_of(status, path);
    return system_error(errno, fmt::format("cannot look at {}", path), "fstat");
}

Result<Fd> open_file(const std::string& path, int flags, unsigned mode) {
    for (;;) {
        const int number = ::open(path.c_str(), flags | O_CLOEXEC, mode);
        if (number >= 0) return Fd(number);
        if (errno != EINTR) return system_error(errno, fmt::format("cannot open {}", path), "open");
    }
}

Result<void> check_opened(const Fd& fd, const std::string& path, std::uint64_t identity,
                          std::uint64_t version) {
    if (identity == 0) return {};
    SIDESTEP_TRY(const FileFacts opened, file_facts(fd, path));
    const bool same = opened.identity == identity;
    if (same && (version == 0 || base::same_content(opened.version, version))) return {};
    return Error{ErrorCode::io_error,
                 fmt::format("{} was {} after it was looked at, before it was opened", path,
                             same ? "written to" : "replaced by another file"),
                 "file:" + path, "copy it again when nobody writes it"};
}

Result<Fd> open_to_read(const std::string& path) {
    return open_file(path, O_RDONLY | O_NONBLOCK);
}

Result<Fd> open_direct(const Fd& fd, const std::string& path) {
    const std::string link = fmt::format("/proc/self/fd/{}", fd.get());
    const int number = ::open(link.c_str(), (::fcntl(fd.get(), F_GETFL) & O_ACCMODE) | O_DIRECT | O_CLOEXEC);
    if (number >= 0) return Fd(number);
    return system_error(errno, fmt::format("the file system refuses O_DIRECT for {}", path), "open");
}

bool lives_in_memory(const Fd& fd) {
    struct statfs facts {};
    return ::fstatfs(fd.get(), &facts) == 0 && is_memory(facts);
}

bool would_live_in_memory(const std::string& path) {
    struct statfs facts {};
    return ::statfs(split_path(path).folder.c_str(), &facts) == 0 && is_memory(facts);
}

std::optional<DirectAlignment> direct_alignment(const Fd& fd) {
    // The system's own header may be older than the kernel, so the answer is read at its known places.
    constexpr unsigned wanted = 0x2000;  // STATX_DIOALIGN
    constexpr std::size_t memory_at = 152, offset_at = 156;
    std::array<char, 256> answer{};
    if (::syscall(SYS_statx, fd.get(), "", AT_EMPTY_PATH, wanted, answer.data()) != 0) return std::nullopt;
    std::uint32_t mask = 0, memory = 0, offset = 0;
    std::memcpy(&mask, answer.data(), sizeof mask);
    std::memcpy(&memory, answer.data() + memory_at, sizeof memory);
    std::memcpy(&offset, answer.data() + offset_at, sizeof offset);
    if ((mask & wanted) == 0) return std::nullopt;
    return DirectAlignment{offset, memory};
}

namespace {

// The kernel's own rule for links where anybody may make them (proc_sys_fs(5), protected_symlinks): only one's own are followed,
// and those of whom the folder belongs to.
Result<void> check_link(const std::string& path) {
    struct stat folder {};
    struct stat link {};
    if (::stat(split_path(path).folder.c_str(), &folder) != 0 || ::lstat(path.c_str(), &link) != 0) return {};
    const bool anybody = (folder.st_mode & (S_ISVTX | S_IWOTH)) == (S_ISVTX | S_IWOTH);
    if (!anybody || link.st_uid == ::geteuid() || link.st_uid == folder.st_uid) return {};
    return Error{
        ErrorCode::permission_denied,
        fmt::format("{} is a link that user {} made in a folder where anybody may", path, link.st_uid), path,
        "give the path that it leads to, or remove the link"};
}

}  // namespace

Result<std::string> follow_links(const std::string& path) {
    constexpr int max_links = 40;  // the kernel's own limit (path_resolution(7))
    std::string now = path;
    for (int i = 0; i <= max_links; ++i) {
        std::array<char, 4096> text{};
        const auto length = ::readlink(now.c_str(), text.data(), text.size());
        if (length < 0) return now;  // not a link, or nothing there
        SIDESTEP_CHECK(check_link(now));
        const std::string link(text.data(), static_cast<std::size_t>(length));
        now = link.starts_with('/') ? link : split_path(now).folder + "/" + link;
    }
    return system_error(ELOOP, fmt::format("cannot follow {}", path), "readlink");
}

SplitPath split_path(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return {".", path};
    return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

bool may_write(const std::string& path) {
    return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

namespace {

Result<void> check_file_limit(Bytes offset, Bytes bytes, const std::string& path) {
    if (bytes > static_cast<Bytes>(std::numeric_limits<off_t>::max()) - offset) {
        return Error{
            ErrorCode::no_space, fmt::format("no file can hold {} from {} on", bytes, offset), path, {}};
    }
    struct rlimit limit {};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        offset + bytes > limit.rlim_cur) {
        return Error{ErrorCode::no_space,
                     fmt::format("{} would grow to {}, above this process's limit of {}", path,
                                 format_bytes(offset + bytes), format_bytes(limit.rlim_cur)),
                     "RLIMIT_FSIZE", "raise the limit with `ulimit -f`"};
    }
    return {};
}

Error no_room(int number, Bytes bytes, const std::string& path, std::string where) {
    return system_error(number, fmt::format("no room for {} in {}", format_bytes(bytes), path),
                        std::move(where));
}

}  // namespace

std::optional<std::vector<FileExtent>> extents_of(const Fd& fd, Bytes begin, Bytes end) {
    constexpr Bytes min_hole = Bytes{64} << 10;
    constexpr Bytes sector = 512;  // the unit of st_blocks, whatever the file system
    struct stat status {};
    // What was cut off meanwhile is no hole.
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        end > static_cast<Bytes>(status.st_size) ||
        static_cast<Bytes>(status.st_blocks) * sector >= static_cast<Bytes>(status.st_size))
        return std::nullopt;
    std::vector<FileExtent> extents;
    for (Bytes at = begin; at < end;) {
        const off_t data = ::lseek(fd.get(), static_cast<off_t>(at), SEEK_DATA);
        if (data < 0 && errno == ENXIO) break;  // the rest is a hole
        if (data < 0) return std::nullopt;
        if (static_cast<Bytes>(data) >= end) break;
        const off_t hole = ::lseek(fd.get(), data, SEEK_HOLE);
        if (hole < 0) return std::nullopt;
        at = std::min(static_cast<Bytes>(hole), end);
        if (!extents.empty() && static_cast<Bytes>(data) < extents.back().end + min_hole)
            extents.back().end = at;
        else
            extents.push_back({static_cast<Bytes>(data), at});
    }
    return extents;
}

Result<void> set_size(const Fd& fd, Bytes bytes, const std::string& path) {
    SIDESTEP_CHECK(check_file_limit(0, bytes, path));
    while (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        if (errno == EINTR) continue;
        return no_room(errno, bytes, path, "ftruncate");
    }
    return {};
}

Result<void> reserve_space(const Fd& fd, Bytes offset, Bytes bytes, bool keep_size, const std::string& path) {
    if (bytes == 0) return {};
    SIDESTEP_CHECK(check_file_limit(offset, bytes, path));
    for (;;) {
        const int rc = ::fallocate(fd.get(), keep_size ? FALLOC_FL_KEEP_SIZE : 0, static_cast<off_t>(offset),
                                   static_cast<off_t>(bytes));
        if (rc == 0) return {};
        if (errno == EINTR) continue;
        if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG && errno != EIO) return {};
        return no_room(errno, bytes, path, "fallocate");
    }
}

void give_back_space(const Fd& fd, Bytes offset, Bytes bytes) {
    struct stat facts {};
    if (::fstat(fd.get(), &facts) != 0) return;
    const Bytes begin = std::max(offset, static_cast<Bytes>(facts.st_size));
    if (begin < offset + bytes)
        (void)::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                          static_cast<off_t>(offset + bytes - begin));
}

Result<void> lengthen_in_memory(const Fd& fd, Bytes bytes, const std::string& path) {
    if (bytes == 0) return {};
    SIDESTEP_CHECK(check_file_limit(0, bytes, path));
    struct statfs facts {};
    // No blocks in all: a mount without a limit.
    if (::fstatfs(fd.get(), &facts) == 0 && facts.f_blocks > 0 &&
        static_cast<Bytes>(facts.f_bavail) < (bytes - 1) / static_cast<Bytes>(facts.f_bsize) + 1)
        return no_room(ENOSPC, bytes, path, "statfs");
    while (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        if (errno == EINTR) continue;
        if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG && errno != EIO) return {};
        return no_room(errno, bytes, path, "ftruncate");
    }
    return {};
}

Result<void> flush_file(const Fd& fd, const std::string& path) {
    while (::fsync(fd.get()) != 0) {
        if (errno == EINTR) continue;
        return system_error(errno, fmt::format("cannot flush {}", path), "fsync");
    }
    return {};
}

Error ended_early(const Fd& fd, const std::string& path, Bytes begin, Bytes asked, const std::string& what) {
    Bytes end = begin;
    std::string why = "the device is smaller than it says";
    struct stat status {};
    if (::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode)) {
        const auto size = static_cast<Bytes>(status.st_size);
        why = fmt::format("it {} {} bytes", size <= begin ? "has shrunk to" : "claims to have", size);
        end = std::min(begin, size);
    }
    return {ErrorCode::end_of_file,
            fmt::format("{} ended at byte {}, {} bytes early: {}", path, end, begin + asked - end, why), what,
            "do not change a file while it is copied"};
}

Result<void> read_range(const Fd& fd, Bytes offset, void* target, Bytes size, const std::string& path) {
    Bytes done = 0;
    while (done < size) {
        const auto got = ::pread(fd.get(), static_cast<char*>(target) + done, size - done,
                                 static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return system_error(errno, fmt::format("cannot read {} at byte {}", path, offset + done),
                                "pread");
        if (got == 0) {
            return Error{ErrorCode::end_of_file,
                         fmt::format("{} ends at byte {}, where {} more are expected", path, offset + done,
                                     size - done),
                         path,
                         {}};
        }
        done += static_cast<Bytes>(got);
    }
    return {};
}

Result<void> write_range(const Fd& fd, Bytes offset, const void* source, Bytes size,
                         const std::string& path) {
    SIDESTEP_CHECK(check_file_limit(offset, size, path));
    for (Bytes done = 0; done < size;) {
        const auto put = ::pwrite(fd.get(), static_cast<const char*>(source) + done, size - done,
                                  static_cast<off_t>(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0)
            return system_error(put < 0 ? errno : ENOSPC,
                                fmt::format("cannot write {} at byte {}", path, offset + done), "pwrite");
        done += static_cast<Bytes>(put);
    }
    return {};
}

Result<std::vector<std::string>> names_in(const std::string& folder, Hidden hidden) {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        std::string name = entry->path().filename().string();
        if (hidden == Hidden::too || !name.starts_with('.')) names.push_back(std::move(name));
    }
    if (error)
        return Error{
            ErrorCode::io_error, fmt::format("cannot list {}: {}", folder, error.message()), folder, {}};
    std::sort(names.begin(), names.end());
    return names;
}

bool has_hidden_content(const Fd& fd) {
    char byte = 0;
    return ::pread(fd.get(), &byte, 1, 0) == 1;
}

std::optional<std::string> read_text(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return std::nullopt;
    std::string text(64 * 1024, '\0');
    std::size_t length = 0;
    while (length < text.size()) {
        const auto got = ::read(fd.get(), text.data() + length, text.size() - length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return std::nullopt;
        if (got == 0) break;
        length += static_cast<std::size_t>(got);
    }
    text.resize(length);
    return text;
}

std::optional<std::string> read_line(const std::string& path) {
    auto text = read_text(path);
    if (text) text->resize(std::min(text->find('\n'), text->size()));
    return text;
}

}  // namespace sidestep::driver
