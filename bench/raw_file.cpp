#include "bench/raw_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::bench::raw {
namespace {

constexpr Bytes piece = 1_MiB;

class Descriptor {
public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() {
        if (number_ >= 0) close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number() const { return number_; }

private:
    int number_;
};

Error failure(const FileLoop& loop, int number) {
    const bool refused = loop.direct && number == EINVAL;
    return Error{refused ? ErrorCode::unsupported : ErrorCode::io_error,
                 refused ? "the file system has no O_DIRECT" : std::generic_category().message(number),
                 loop.path,
                 {}};
}

// Moves one piece; 0, or the number of the error.
int move_piece(int file, const FileLoop& loop, char* memory, Bytes at) {
    Bytes left = std::min(piece, loop.bytes - at);
    while (left > 0) {
        const ssize_t moved = loop.write ? pwrite(file, memory + at, left, static_cast<off_t>(at))
                                         : pread(file, memory + at, left, static_cast<off_t>(at));
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return moved < 0 ? errno : ENODATA;
        at += static_cast<Bytes>(moved);
        left -= static_cast<Bytes>(moved);
    }
    return 0;
}

}  // namespace

Result<double> file_seconds(const FileLoop& loop, char* memory) {
    const int flags = (loop.write ? O_WRONLY : O_RDONLY) | (loop.direct ? O_DIRECT : 0) |
                      (loop.anew ? O_CREAT : 0) | O_CLOEXEC;
    if (loop.anew && unlink(loop.path.c_str()) != 0 && errno != ENOENT) return failure(loop, errno);
    const Descriptor file(open(loop.path.c_str(), flags, 0600));
    if (file.number() < 0) return failure(loop, errno);
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::atomic<Bytes> next{0};
    std::atomic<int> error{0};
    std::vector<std::thread> workers;
    for (int i = 0; i < loop.threads; ++i)
        workers.emplace_back([&] {
            ++ready;
            while (!go) std::this_thread::yield();
            for (Bytes at = next.fetch_add(piece); at < loop.bytes && error == 0; at = next.fetch_add(piece))
                if (const int number = move_piece(file.number(), loop, memory, at)) error = number;
        });
    while (ready != loop.threads) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    // Where the file system cannot, writes find the space.
    if (loop.anew && fallocate(file.number(), 0, 0, static_cast<off_t>(loop.bytes)) != 0 &&
        errno != EOPNOTSUPP)
        error = errno;
    go = true;
    for (std::thread& worker : workers) worker.join();
    if (loop.anew && loop.direct && error == 0 && fsync(file.number()) != 0) error = errno;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (error != 0) return failure(loop, error);
    return seconds;
}

Result<int> best_file_threads(FileLoop loop, char* memory) {
    int best = 1;
    double best_seconds = 0;
    for (const int threads : {1, 4, 16}) {
        loop.threads = threads;
        SIDESTEP_TRY(const auto seconds, file_seconds(loop, memory));
        if (best_seconds > 0 && seconds >= best_seconds) continue;
        best = threads;
        best_seconds = seconds;
    }
    return best;
}

}  // namespace sidestep::bench::raw
