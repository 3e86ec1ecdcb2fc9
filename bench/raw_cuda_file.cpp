#include "bench/raw_cuda_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "base/try.hpp"
#include "bench/raw_cuda_session.hpp"

namespace sidestep::bench::raw {
namespace {

using Clock = std::chrono::steady_clock;

// What was quickest on an H200 (docs/lab-book.md, "Files and checkpoints").
constexpr Bytes load_piece = 4_MiB;
constexpr Bytes save_piece = 2_MiB;  // a huge page
constexpr Bytes memory_of_a_gpu = 1_GiB;

// The open file, and its map where writes go through one.
class OpenFile {
public:
    explicit OpenFile(const StagedLoop& loop) : bytes_(loop.bytes) {
        if (loop.write && unlink(loop.path.c_str()) != 0 && errno != ENOENT) error_ = errno;
        if (error_ == 0) number_ = open(loop.path.c_str(), flags(loop), 0600);
        if (number_ < 0) error_ = errno;
        if (error_ == 0 && loop.write && fallocate(number_, 0, 0, static_cast<off_t>(bytes_)) != 0 &&
            errno != EOPNOTSUPP)
            error_ = errno;
        if (error_ == 0 && loop.mapped) map();
    }
    ~OpenFile() {
        if (map_) munmap(map_, bytes_);
        if (number_ >= 0) close(number_);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    int error() const { return error_; }

    // Moves a piece between memory and the file; 0, or the number of the error.
    int read(char* memory, Bytes at, Bytes bytes) const { return move(memory, at, bytes, false); }
    int write(char* memory, Bytes at, Bytes bytes) const {
        if (!map_) return move(memory, at, bytes, true);
        // Pages that cannot be had are an error here, and would be the end of the process in the copy.
        if (madvise(map_ + at, bytes, MADV_POPULATE_WRITE) != 0) return errno;
        std::memcpy(map_ + at, memory, bytes);
        return 0;
    }

private:
    static int flags(const StagedLoop& loop) {
        return (loop.write ? O_RDWR | O_CREAT | O_EXCL : O_RDONLY) | O_CLOEXEC;
    }
    void map() {
        if (ftruncate(number_, static_cast<off_t>(bytes_)) != 0) {
            error_ = errno;
            return;
        }
        void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, number_, 0);
        if (mapped == MAP_FAILED)
            error_ = errno;
        else
            map_ = static_cast<char*>(mapped);
    }
    int move(char* memory, Bytes at, Bytes left, bool write) const {
        while (left > 0) {
            const ssize_t moved = write ? pwrite(number_, memory, left, static_cast<off_t>(at))
                                        : pread(number_, memory, left, static_cast<off_t>(at));
            if (moved < 0 && errno == EINTR) continue;
            if (moved <= 0) return moved < 0 ? errno : ENODATA;
            memory += moved;
            at += static_cast<Bytes>(moved);
            left -= static_cast<Bytes>(moved);
        }
        return 0;
    }

    Bytes bytes_;
    int number_ = -1;
    int error_ = 0;
    char* map_ = nullptr;
};

// Two pinned slots with a stream each, and the GPU that they serve. Used by one thread at a time.
class Worker {
public:
    Worker(const Driver& driver, int gpu, Bytes piece) : session_(driver), gpu_(gpu), piece_(piece) {
        for (Slot& slot : slots_) slot = {session_.memory(host, piece, gpu), session_.stream(gpu), 0, 0};
    }

    Result<void> failed() const { return session_.failed(); }

    // Takes pieces until there are none; 0, or the number of the file's error.
    int load(const OpenFile& file, Address target, Bytes room, Bytes bytes, std::atomic<Bytes>& next) {
        session_.use(gpu_);
        int error = 0;
        for (std::size_t turn = 0; error == 0 && session_.good(); turn ^= 1) {
            Slot& slot = slots_[turn];
            if (!take(slot, bytes, next)) break;
            session_.wait(slot.stream);
            error = file.read(reinterpret_cast<char*>(slot.memory), slot.at, slot.bytes);
            if (error == 0) session_.copy(target + slot.at % room, slot.memory, slot.bytes, slot.stream);
        }
        for (const Slot& slot : slots_) session_.wait(slot.stream);
        return error;
    }

    int save(const OpenFile& file, Address source, Bytes room, Bytes bytes, std::atomic<Bytes>& next) {
        session_.use(gpu_);
        const auto fetch = [&](Slot& slot) {
            if (!take(slot, bytes, next)) return false;
            session_.copy(slot.memory, source + slot.at % room, slot.bytes, slot.stream);
            return true;
        };
        int error = 0;
        bool more = fetch(slots_[0]);
        for (std::size_t turn = 0; more && error == 0 && session_.good(); turn ^= 1) {
            more = fetch(slots_[turn ^ 1]);
            session_.wait(slots_[turn].stream);
            error =
                file.write(reinterpret_cast<char*>(slots_[turn].memory), slots_[turn].at, slots_[turn].bytes);
        }
        for (const Slot& slot : slots_) session_.wait(slot.stream);
        return error;
    }

private:
    struct Slot {
        Address memory = 0;
        Stream stream = nullptr;
        Bytes at = 0;
        Bytes bytes = 0;
    };

    bool take(Slot& slot, Bytes bytes, std::atomic<Bytes>& next) const {
        slot.at = next.fetch_add(piece_);
        slot.bytes = slot.at < bytes ? std::min(piece_, bytes - slot.at) : 0;
        return slot.bytes > 0;
    }

    Session session_;
    int gpu_;
    Bytes piece_;
    std::array<Slot, 2> slots_;
};

}  // namespace

struct StagedThreads::State {
    State(const Driver& driver, StagedLoop wanted) : loop(std::move(wanted)), session(driver) {
        piece = loop.write ? save_piece : load_piece;
        room = std::min(memory_of_a_gpu, (loop.bytes + piece - 1) / piece * piece);
        for (const int gpu : loop.gpus) memory.push_back(session.memory(gpu, room, gpu));
        for (int i = 0; i < loop.threads; ++i)
            workers.push_back(std::make_unique<Worker>(driver, loop.gpus[place(i)], piece));
    }
    std::size_t place(int thread) const { return static_cast<std::size_t>(thread) % loop.gpus.size(); }
    int work(int thread, const OpenFile& file, std::atomic<Bytes>& next) {
        Worker& worker = *workers[static_cast<std::size_t>(thread)];
        const Address there = memory[place(thread)];
        return loop.write ? worker.save(file, there, room, loop.bytes, next)
                          : worker.load(file, there, room, loop.bytes, next);
    }
    Result<void> failed() const {
        SIDESTEP_CHECK(session.failed());
        for (const auto& worker : workers) SIDESTEP_CHECK(worker->failed());
        return {};
    }

    StagedLoop loop;
    Session session;
    Bytes piece = 0;
    Bytes room = 0;
    std::vector<Address> memory;  // of each of loop.gpus
    std::vector<std::unique_ptr<Worker>> workers;
};

StagedThreads::StagedThreads(std::unique_ptr<State> state) : state_(std::move(state)) {}
StagedThreads::StagedThreads(StagedThreads&&) noexcept = default;
StagedThreads::~StagedThreads() = default;

Result<StagedThreads> StagedThreads::make(StagedLoop loop) {
    if (!driver()) return driver().error();
    StagedThreads made(std::make_unique<State>(*driver(), std::move(loop)));
    SIDESTEP_CHECK(made.state_->failed());
    return made;
}

Result<StagedThreads> StagedThreads::best(StagedLoop loop) {
    const int processors = static_cast<int>(std::thread::hardware_concurrency());
    int best = 0;
    double best_seconds = 0;
    for (const int threads : {4, 8, 16, 32, 64}) {
        if (threads > std::max(processors, 4)) break;
        loop.threads = threads;
        SIDESTEP_TRY(auto made, make(loop));
        SIDESTEP_TRY(const auto seconds, made.seconds());
        if (best > 0 && seconds >= best_seconds) continue;
        best = threads;
        best_seconds = seconds;
    }
    loop.threads = best;
    return make(std::move(loop));
}

int StagedThreads::threads() const {
    return state_->loop.threads;
}

Result<double> StagedThreads::seconds() {
    const StagedLoop& loop = state_->loop;
    std::atomic<int> ready{0};
    std::atomic<const OpenFile*> go{nullptr};
    std::atomic<Bytes> next{0};
    std::atomic<int> error{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < loop.threads; ++i)
        threads.emplace_back([&, i] {
            ++ready;
            while (!go) std::this_thread::yield();
            if (go.load()->error() != 0) return;
            if (const int number = state_->work(i, *go, next)) error = number;
        });
    while (ready != loop.threads) std::this_thread::yield();
    const auto start = Clock::now();
    {
        const OpenFile file(loop);
        if (file.error() != 0) error = file.error();
        go = &file;
        for (std::thread& thread : threads) thread.join();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (error != 0) return Error{ErrorCode::io_error, std::generic_category().message(error), loop.path, {}};
    SIDESTEP_CHECK(state_->failed());
    return seconds;
}

}  // namespace sidestep::bench::raw
