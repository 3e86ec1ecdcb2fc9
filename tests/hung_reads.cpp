#include "tests/hung_reads.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#ifdef __SANITIZE_THREAD__
// Threads whose calls hung belong to what is kept for ever, so nobody joins
// them.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
    return "report_thread_leaks=0";
}
#endif

namespace sidestep::test {

// What waits for ever where the library is wrong ends after that.
constexpr std::chrono::seconds longest{30};

struct HungReads::State {
    std::string path;
    struct stat file {};
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    int hanging = 0;
    bool released = false;
    std::vector<long> results;
};

namespace {

std::mutex mutex;  // guards the next
std::shared_ptr<HungReads::State> current;

std::shared_ptr<HungReads::State> state_of(int fd) {
    const std::lock_guard lock(mutex);
    struct stat found {};
    const bool same = current && ::fstat(fd, &found) == 0 && found.st_dev == current->file.st_dev &&
                      found.st_ino == current->file.st_ino;
    return same ? current : nullptr;
}

std::shared_ptr<HungReads::State> state_of_folder(const char* path) {
    const std::lock_guard lock(mutex);
    return current && S_ISDIR(current->file.st_mode) && current->path == path ? current : nullptr;
}

// Until it is released.
long hang(HungReads::State& state, const std::function<long()>& call) {
    std::unique_lock lock(state.mutex);
    ++state.hanging;
    state.changed.notify_all();
    state.changed.wait_for(lock, longest, [&] { return state.released; });
    const long result = call();
    state.results.push_back(result);
    --state.hanging;
    state.changed.notify_all();
    return result;
}

long stat_now(const char* path, struct stat* found) {
    return ::syscall(SYS_newfstatat, AT_FDCWD, path, found, 0) < 0 ? -errno : 0;
}

long read_now(int fd, void* to, std::size_t bytes, off_t offset) {
    const long moved = ::syscall(SYS_pread64, fd, to, bytes, offset);
    return moved < 0 ? -errno : moved;
}

}  // namespace

HungReads::HungReads(const std::string& path) : state_(std::make_shared<State>()) {
    state_->path = path;
    ::stat(path.c_str(), &state_->file);
    const std::lock_guard lock(mutex);
    current = state_;
}

HungReads::~HungReads() {
    release();
    const std::lock_guard lock(mutex);
    current.reset();
}

int HungReads::hanging() const {
    const std::lock_guard lock(state_->mutex);
    return state_->hanging;
}

std::vector<long> HungReads::release() {
    std::unique_lock lock(state_->mutex);
    state_->released = true;
    state_->changed.notify_all();
    state_->changed.wait(lock, [this] { return state_->hanging == 0; });
    return state_->results;
}

}  // namespace sidestep::test

// Instead of the C library's.
extern "C" ssize_t pread(int fd, void* to, std::size_t bytes, off_t offset) {
    using namespace sidestep::test;
    const auto state = state_of(fd);
    const auto read = [&] { return read_now(fd, to, bytes, offset); };
    const long moved = state ? hang(*state, read) : read();
    if (moved >= 0) return moved;
    errno = static_cast<int>(-moved);
    return -1;
}

extern "C" int stat(const char* path, struct stat* found) {
    using namespace sidestep::test;
    const auto state = state_of_folder(path);
    const auto look = [&] { return stat_now(path, found); };
    const long looked = state ? hang(*state, look) : look();
    if (looked == 0) return 0;
    errno = static_cast<int>(-looked);
    return -1;
}
