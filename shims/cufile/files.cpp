#include "shims/cufile/files.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#include <fmt/format.h>

namespace sidestep::cufile {
namespace {

// Of the flags that cuFile refuses the kernel forgets O_NOCTTY. O_TMPFILE contains O_DIRECTORY.
constexpr int refused_flags = O_APPEND | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_PATH;

Refusal check(const CUfileDescr_t& description) {
    if (description.type == CU_FILE_HANDLE_TYPE_USERSPACE_FS)
        return refusal(
            CU_FILE_IO_NOT_SUPPORTED,
            "files of a file system in user space are not read here: mount it, and register a descriptor");
    if (description.type != CU_FILE_HANDLE_TYPE_OPAQUE_FD)
        return refusal(
            CU_FILE_IO_NOT_SUPPORTED,
            fmt::format("handles of type {} are not for Linux: register a descriptor", description.type));
    const int descriptor = description.handle.fd;
    struct stat facts {};
    const int flags = descriptor < 0 ? -1 : ::fcntl(descriptor, F_GETFL);
    if (flags < 0 || ::fstat(descriptor, &facts) != 0)
        return refusal(CU_FILE_INVALID_VALUE, fmt::format("{} is not an open descriptor", descriptor));
    // O_DIRECTORY is only known to have been asked for; the type says more.
    if (!S_ISREG(facts.st_mode) && !S_ISBLK(facts.st_mode))
        return refusal(CU_FILE_INVALID_FILE_TYPE,
                       fmt::format("descriptor {} is neither a regular file nor a block device", descriptor));
    if ((flags & refused_flags) != 0)
        return refusal(
            CU_FILE_INVALID_FILE_OPEN_FLAG,
            fmt::format("descriptor {} was opened with flags {:#o}: leave out O_APPEND, O_NONBLOCK, "
                        "O_DIRECTORY, O_NOFOLLOW, O_NOATIME, O_TMPFILE and O_PATH",
                        descriptor, flags & refused_flags));
    return {};
}

int open_again(int descriptor) {
    const int access = ::fcntl(descriptor, F_GETFL) & O_ACCMODE;
    return ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), access | O_CLOEXEC);
}

}  // namespace

File::File(int descriptor, int own, int access)
    : descriptor_(descriptor),
      own_(own),
      can_read_(access != O_WRONLY),
      can_write_(access != O_RDONLY),
      path_(fmt::format("/proc/self/fd/{}", own)) {
    struct stat facts {};
    if (::fstat(own, &facts) == 0) {
        device_ = facts.st_dev;
        inode_ = facts.st_ino;
    }
}

File::~File() {
    // In a child of fork() the descriptor is its parent's copy, and closing it is right there too.
    ::close(own_);
}

bool File::is_behind(int descriptor) const {
    struct stat facts {};
    return ::fstat(descriptor, &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_;
}

Refusal File::size(Bytes& bytes) const {
    struct stat facts {};
    if (::fstat(own_, &facts) != 0) return system_refusal(errno, "the file's size cannot be asked for");
    bytes = static_cast<Bytes>(facts.st_size);
    if (!S_ISBLK(facts.st_mode)) return {};
    std::uint64_t device = 0;
    if (::ioctl(own_, BLKGETSIZE64, &device) != 0)
        return system_refusal(errno, "the device's size cannot be asked for");
    bytes = device;
    return {};
}

Files& Files::get() {
    static auto& one = *new Files;
    return one;
}

Refusal Files::add(const CUfileDescr_t& description, CUfileHandle_t& handle) {
    if (auto wrong = check(description)) return wrong;
    const int descriptor = description.handle.fd;
    // Before the lock: a file system may take its time, and others read meanwhile.
    const int own = open_again(descriptor);
    if (own < 0)
        return refusal(
            CU_FILE_GETNEWFD_FAILED,
            system_refusal(errno, fmt::format("descriptor {} cannot be opened a second time", descriptor))
                .words);
    auto file = std::make_shared<const File>(descriptor, own, ::fcntl(own, F_GETFL) & O_ACCMODE);
    const std::lock_guard guard(mutex_);
    // A number that was closed and given out again is another file's.
    const auto known = by_descriptor_.find(descriptor);
    if (known != by_descriptor_.end() && files_.at(known->second)->is_behind(descriptor))
        return refusal(CU_FILE_HANDLE_ALREADY_REGISTERED,
                       fmt::format("descriptor {} is registered already", descriptor));
    next_ += 64;
    handle = reinterpret_cast<CUfileHandle_t>(next_);
    files_.emplace(handle, std::move(file));
    by_descriptor_[descriptor] = handle;
    return {};
}

std::shared_ptr<const File> Files::find(CUfileHandle_t handle) const {
    const std::shared_lock guard(mutex_);
    const auto found = files_.find(handle);
    return found == files_.end() ? nullptr : found->second;
}

bool Files::remove(CUfileHandle_t handle) {
    std::shared_ptr<const File> last;  // closed outside of the lock
    const std::lock_guard guard(mutex_);
    const auto found = files_.find(handle);
    if (found == files_.end()) return false;
    last = std::move(found->second);
    files_.erase(found);
    const auto number = by_descriptor_.find(last->descriptor());
    if (number != by_descriptor_.end() && number->second == handle) by_descriptor_.erase(number);
    return true;
}

void Files::clear() {
    decltype(files_) gone;
    const std::lock_guard guard(mutex_);
    gone.swap(files_);
    by_descriptor_.clear();
}

}  // namespace sidestep::cufile
