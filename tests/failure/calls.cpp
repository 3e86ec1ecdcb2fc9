#undef _FORTIFY_SOURCE
#include "tests/failure/calls.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace sidestep::failure {
namespace {

// What waits for ever where the library is wrong ends after that.
constexpr std::chrono::seconds longest{20};

const std::set<std::string> moving{"pread", "pwrite", "preadv2", "read", "write", "ring read", "ring write"};
// They ask this process alone.
const std::set<std::string> local{"eventfd",         "madvise",          "memfd_create",   "mmap",
                                  "mremap",          "pthread_create",   "io_uring_setup", "io_uring_enter",
                                  "io_uring_submit", "io_uring_register"};

}  // namespace

const char* to_string(How how) {
    if (how == How::fails) return "fails";
    if (how == How::kills) return "kills";
    return how == How::hangs ? "hangs" : "ends short";
}

std::string to_string(const Fault& fault) {
    const std::string where = fault.call.site == 0 ? "" : fmt::format(" from {:x}", fault.call.site);
    return fmt::format("call {} of {}{} {}", fault.number, fault.call.name, where, to_string(fault.how));
}

bool can(const std::string& call, How how) {
    // Of CUDA's driver. A call of it that hangs has its caller.
    if (call.starts_with("cu")) return how == How::fails;
    if (how == How::ends_short) return moving.contains(call);
    return how == How::fails || !local.contains(call);
}

struct Watch::State {
    Fault fault;
    mutable std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::map<Call, unsigned> made;
    bool struck = false;
    bool hanging = false;
    bool released = false;
    std::function<void()> end;

    // How this call goes; nothing: as always.
    std::optional<How> next(const char* name, std::size_t site = 0) {
        const Call call{name, site};
        const std::lock_guard lock(mutex);
        const unsigned number = ++made[call];
        if (struck || number != fault.number || fault.call != call) return std::nullopt;
        struck = true;
        if (fault.how == How::kills) ::kill(::getpid(), SIGKILL);
        return fault.how;
    }
    void hang() {
        std::unique_lock lock(mutex);
        hanging = true;
        changed.notify_all();
        changed.wait_for(lock, longest, [this] { return released; });
    }
    void has_come_back() {
        const std::lock_guard lock(mutex);
        hanging = false;
        changed.notify_all();
    }
};

namespace {

std::mutex mutex;  // guards the next
std::shared_ptr<Watch::State> watching;

thread_local int unwatched = 0;

std::shared_ptr<Watch::State> watch() {
    if (unwatched > 0) return nullptr;
    const std::lock_guard lock(mutex);
    return watching;
}

template <typename Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Makes a call as the watch wants it. `shorter` makes it with fewer bytes.
template <typename Real, typename Failed, typename Shorter>
auto make(const char* name, Real real, Failed failed, Shorter shorter) {
    const auto state = watch();
    const std::optional<How> how = state ? state->next(name) : std::nullopt;
    if (!how) return real();
    if (*how == How::fails) return failed();
    if (*how == How::ends_short) return shorter();
    state->hang();
    const auto result = real();
    const int error = errno;
    state->has_come_back();
    errno = error;
    return result;
}

// Of calls that answer -1.
template <typename Real>
auto make(const char* name, int error, Real real) {
    const auto failed = [&] {
        errno = error;
        return static_cast<decltype(real())>(-1);
    };
    return make(name, real, failed, real);
}

// Of calls that move bytes: real(count).
template <typename Real>
ssize_t move(const char* name, std::size_t bytes, Real real) {
    const auto failed = [] {
        errno = EIO;
        return ssize_t{-1};
    };
    return make(
        name, [&] { return real(bytes); }, failed, [&] { return real(fewer(bytes)); });
}

}  // namespace

std::size_t fewer(std::size_t bytes) {
    return bytes >= 8192 ? bytes / 2 / 4096 * 4096 : bytes / 2;
}

std::optional<How> goes_wrong(const char* call, std::size_t site) {
    const auto state = watch();
    return state ? state->next(call, site) : std::nullopt;
}

void hangs_until(std::function<void()> end) {
    const auto state = watch();
    const std::lock_guard lock(state->mutex);
    state->hanging = true;
    state->end = std::move(end);
}

Unwatched::Unwatched() {
    ++unwatched;
}

Unwatched::~Unwatched() {
    --unwatched;
}

Watch::Watch(Fault fault) : state_(std::make_shared<State>()) {
    state_->fault = std::move(fault);
    const std::lock_guard lock(mutex);
    watching = state_;
}

Watch::~Watch() {
    release();
    const std::lock_guard lock(mutex);
    watching.reset();
}

std::map<Call, unsigned> Watch::made() const {
    const std::lock_guard lock(state_->mutex);
    return state_->made;
}

bool Watch::struck() const {
    const std::lock_guard lock(state_->mutex);
    return state_->struck;
}

bool Watch::hangs() const {
    const std::lock_guard lock(state_->mutex);
    return state_->hanging;
}

void Watch::release() {
    std::unique_lock lock(state_->mutex);
    state_->released = true;
    state_->changed.notify_all();
    if (state_->end) {
        const Unwatched own;
        std::exchange(state_->end, nullptr)();
        state_->hanging = false;
    }
    state_->changed.wait(lock, [this] { return !state_->hanging; });
}

}  // namespace sidestep::failure

// Instead of the C library's.
#define SIDESTEP_NEXT(name) static const auto real = next<decltype(::name)>(#name)
using namespace sidestep::failure;
extern "C" {

int open(const char* path, int flags, ...) {
    SIDESTEP_NEXT(open);
    std::va_list rest;
    va_start(rest, flags);
    const auto mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return make("open", EIO, [&] { return real(path, flags, mode); });
}
int openat(int folder, const char* path, int flags, ...) {
    SIDESTEP_NEXT(openat);
    std::va_list rest;
    va_start(rest, flags);
    const auto mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return make("openat", EIO, [&] { return real(folder, path, flags, mode); });
}
// The descriptor is gone all the same.
int close(int fd) {
    SIDESTEP_NEXT(close);
    const auto failed = [&] {
        real(fd);
        errno = EIO;
        return -1;
    };
    const auto as_always = [&] { return real(fd); };
    return make("close", as_always, failed, as_always);
}
ssize_t read(int fd, void* to, size_t bytes) {
    SIDESTEP_NEXT(read);
    return move("read", bytes, [&](size_t count) { return real(fd, to, count); });
}
ssize_t write(int fd, const void* from, size_t bytes) {
    SIDESTEP_NEXT(write);
    return move("write", bytes, [&](size_t count) { return real(fd, from, count); });
}
ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
    SIDESTEP_NEXT(pread);
    return move("pread", bytes, [&](size_t count) { return real(fd, to, count, offset); });
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
    SIDESTEP_NEXT(pwrite);
    return move("pwrite", bytes, [&](size_t count) { return real(fd, from, count, offset); });
}
ssize_t preadv2(int fd, const struct iovec* to, int count, off_t offset, int flags) {
    SIDESTEP_NEXT(preadv2);
    const size_t bytes = count > 0 ? to->iov_len : 0;
    return move("preadv2", bytes, [&](size_t wanted) {
        if (wanted == bytes) return real(fd, to, count, offset, flags);
        const struct iovec first { to->iov_base, wanted };
        return real(fd, &first, 1, offset, flags);
    });
}
int fstat(int fd, struct stat* to) noexcept {
    SIDESTEP_NEXT(fstat);
    return make("fstat", EIO, [&] { return real(fd, to); });
}
int stat(const char* path, struct stat* to) noexcept {
    SIDESTEP_NEXT(stat);
    return make("stat", EIO, [&] { return real(path, to); });
}
int lstat(const char* path, struct stat* to) noexcept {
    SIDESTEP_NEXT(lstat);
    return make("lstat", EIO, [&] { return real(path, to); });
}
int fstatat(int folder, const char* path, struct stat* to, int flags) noexcept {
    SIDESTEP_NEXT(fstatat);
    return make("fstatat", EIO, [&] { return real(folder, path, to, flags); });
}
int statfs(const char* path, struct statfs* to) noexcept {
    SIDESTEP_NEXT(statfs);
    return make("statfs", EIO, [&] { return real(path, to); });
}
int fstatfs(int fd, struct statfs* to) noexcept {
    SIDESTEP_NEXT(fstatfs);
    return make("fstatfs", EIO, [&] { return real(fd, to); });
}
int fsync(int fd) {
    SIDESTEP_NEXT(fsync);
    return make("fsync", EIO, [&] { return real(fd); });
}
int ftruncate(int fd, off_t size) noexcept {
    SIDESTEP_NEXT(ftruncate);
    return make("ftruncate", ENOSPC, [&] { return real(fd, size); });
}
int fallocate(int fd, int mode, off_t from, off_t bytes) {
    SIDESTEP_NEXT(fallocate);
    return make("fallocate", ENOSPC, [&] { return real(fd, mode, from, bytes); });
}
int posix_fallocate(int fd, off_t from, off_t bytes) {
    SIDESTEP_NEXT(posix_fallocate);
    const auto as_always = [&] { return real(fd, from, bytes); };
    return make(
        "posix_fallocate", as_always, [] { return ENOSPC; }, as_always);
}
int posix_fadvise(int fd, off_t from, off_t bytes, int advice) noexcept {
    SIDESTEP_NEXT(posix_fadvise);
    const auto as_always = [&] { return real(fd, from, bytes, advice); };
    return make(
        "posix_fadvise", as_always, [] { return EINVAL; }, as_always);
}
int rename(const char* from, const char* to) noexcept {
    SIDESTEP_NEXT(rename);
    return make("rename", EIO, [&] { return real(from, to); });
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
    SIDESTEP_NEXT(renameat);
    return make("renameat", EIO, [&] { return real(from_folder, from, to_folder, to); });
}
int link(const char* from, const char* to) noexcept {
    SIDESTEP_NEXT(link);
    return make("link", EIO, [&] { return real(from, to); });
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
    SIDESTEP_NEXT(linkat);
    return make("linkat", EIO, [&] { return real(from_folder, from, to_folder, to, flags); });
}
int unlink(const char* path) noexcept {
    SIDESTEP_NEXT(unlink);
    return make("unlink", EIO, [&] { return real(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
    SIDESTEP_NEXT(unlinkat);
    return make("unlinkat", EIO, [&] { return real(folder, path, flags); });
}
int mkdir(const char* path, mode_t mode) noexcept {
    SIDESTEP_NEXT(mkdir);
    return make("mkdir", EIO, [&] { return real(path, mode); });
}
int flock(int fd, int what) noexcept {
    SIDESTEP_NEXT(flock);
    return make("flock", ENOLCK, [&] { return real(fd, what); });
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
    SIDESTEP_NEXT(mmap);
    const auto as_always = [&] { return real(at, bytes, protection, flags, fd, offset); };
    const auto failed = [] {
        errno = ENOMEM;
        return MAP_FAILED;
    };
    return make("mmap", as_always, failed, as_always);
}
int madvise(void* at, size_t bytes, int advice) noexcept {
    SIDESTEP_NEXT(madvise);
    return make("madvise", ENOMEM, [&] { return real(at, bytes, advice); });
}
int memfd_create(const char* name, unsigned flags) noexcept {
    SIDESTEP_NEXT(memfd_create);
    return make("memfd_create", EMFILE, [&] { return real(name, flags); });
}
int eventfd(unsigned value, int flags) noexcept {
    SIDESTEP_NEXT(eventfd);
    return make("eventfd", EMFILE, [&] { return real(value, flags); });
}
int socket(int domain, int type, int protocol) noexcept {
    SIDESTEP_NEXT(socket);
    return make("socket", EMFILE, [&] { return real(domain, type, protocol); });
}
int connect(int fd, const struct sockaddr* to, socklen_t bytes) {
    SIDESTEP_NEXT(connect);
    return make("connect", ECONNREFUSED, [&] { return real(fd, to, bytes); });
}
ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
    SIDESTEP_NEXT(sendmsg);
    return make("sendmsg", EPIPE, [&] { return real(fd, message, flags); });
}
ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
    SIDESTEP_NEXT(recvmsg);
    return make("recvmsg", ECONNRESET, [&] { return real(fd, message, flags); });
}
int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*begin)(void*), void* with) noexcept {
    SIDESTEP_NEXT(pthread_create);
    const auto as_always = [&] { return real(thread, how, begin, with); };
    return make(
        "pthread_create", as_always, [] { return EAGAIN; }, as_always);
}
}  // extern "C"
