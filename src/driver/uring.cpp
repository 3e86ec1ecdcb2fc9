#include "driver/uring.hpp"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

// Registered memory stays pinned, so there is a bound to it: twice the staging memory of one copy.
constexpr unsigned max_kept = 64;
constexpr Bytes max_kept_bytes = Bytes{512} << 20;

// What a request to take another one back has for a tag, and no other has.
constexpr std::uint64_t of_withdrawal = ~std::uint64_t{0};

class UringEngine final : public FileIoEngine {
public:
    explicit UringEngine(unsigned depth) : depth_(depth) {}
    ~UringEngine() override;
    bool end() override;

    int open(unsigned threads);

    std::string_view name() const override { return "io_uring"; }
    unsigned depth() const override { return depth_; }
    void submit(const FileRequest& request) override;
    void flush() override;
    void withdraw(std::uint64_t tag) override;
    void make_up_for(unsigned hanging) override;
    int keep_memory(void* address, Bytes size) override;
    void drop_memory(int number) override;
    void reap(std::vector<FileCompletion>& ended) override;
    int broken() const override { return broken_; }

private:
    using Clock = std::chrono::steady_clock;
    bool open_table();

    const unsigned depth_;
    unsigned threads_ = 0;
    unsigned made_up_for_ = 0;
    bool open_ = false;
    io_uring ring_{};
    unsigned in_kernel_ = 0;
    Clock::time_point last_begun_;
    std::deque<std::uint64_t> waiting_;  // tags in the submission queue that the kernel has not taken yet
    int broken_ = 0;                     // errno of a kernel that takes nothing any more
    bool no_table_ = false;              // the kernel gives no table of registered memory
    std::vector<Bytes> kept_;            // that table: the size of each entry, 0 for a free one
    Bytes kept_bytes_ = 0;
};

int UringEngine::open(unsigned threads) {
    const int rc = io_uring_queue_init(depth_, &ring_, 0);
    if (rc < 0) return -rc;
    open_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool complete = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                          io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe != nullptr) io_uring_free_probe(probe);
    if (!complete) return EOPNOTSUPP;
    // Files count as bounded work, block devices as unbounded. Kernels before 5.15 refuse, and use their
    // own limits.
    threads_ = threads;
    unsigned limits[2] = {threads, threads};
    io_uring_register_iowq_max_workers(&ring_, limits);
    return 0;
}

UringEngine::~UringEngine() {
    if (!open_) return;
    end();
    io_uring_queue_exit(&ring_);
}

// The kernel writes to the callers' memory until the last request has ended.
bool UringEngine::end() {
    while (in_kernel_ > 0) {
        const auto left = std::chrono::nanoseconds(last_begun_ + end_limit - Clock::now());
        const auto patience = std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(1));
        __kernel_timespec limit{.tv_sec = patience / std::chrono::seconds(1),
                                .tv_nsec = (patience % std::chrono::seconds(1)).count()};
        io_uring_cqe* entry = nullptr;
        const int rc = io_uring_wait_cqe_timeout(&ring_, &entry, &limit);
        if (rc == -EINTR) continue;
        if (rc < 0) return false;
        io_uring_cqe_seen(&ring_, entry);
        --in_kernel_;
    }
    return true;
}

void UringEngine::submit(const FileRequest& request) {
    // The caller keeps within depth(), which is the ring's size, so there is always an entry.
    io_uring_sqe* entry = broken_ == 0 ? io_uring_get_sqe(&ring_) : nullptr;
    waiting_.push_back(request.tag);
    if (entry == nullptr) {
        if (broken_ == 0) broken_ = EBUSY;
        return;
    }
    const auto size = static_cast<unsigned>(request.size);
    if (request.kept_memory >= 0) {
        const int number = request.kept_memory;
        if (request.write) {
            io_uring_prep_write_fixed(entry, request.fd, request.address, size, request.offset, number);
        } else {
            io_uring_prep_read_fixed(entry, request.fd, request.address, size, request.offset, number);
        }
    } else if (request.write) {
        io_uring_prep_write(entry, request.fd, request.address, size, request.offset);
    } else {
        io_uring_prep_read(entry, request.fd, request.address, size, request.offset);
    }
    if (request.in_background) io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    entry->user_data = request.tag;
}

void UringEngine::flush() {
    while (!waiting_.empty() && broken_ == 0) {
        const int taken = io_uring_submit(&ring_);
        if (taken == -EINTR) continue;
        if (taken == 0 || taken == -EAGAIN || taken == -EBUSY) return;  // the next reap() tries again
        if (taken < 0) {
            broken_ = -taken;
            return;
        }
        in_kernel_ += static_cast<unsigned>(taken);
        last_begun_ = Clock::now();
        waiting_.erase(waiting_.begin(), waiting_.begin() + taken);
    }
}

void UringEngine::withdraw(std::uint64_t tag) {
    flush();
    io_uring_sqe* entry = broken_ == 0 && waiting_.empty() ? io_uring_get_sqe(&ring_) : nullptr;
    if (entry == nullptr) return;
    io_uring_prep_rw(IORING_OP_ASYNC_CANCEL, entry, -1, reinterpret_cast<void*>(tag), 0, 0);
    entry->user_data = of_withdrawal;
    waiting_.push_back(of_withdrawal);
    flush();
}

// Each may keep a thread of the kernel.
void UringEngine::make_up_for(unsigned hanging) {
    if (std::exchange(made_up_for_, hanging) == hanging) return;
    unsigned limits[2] = {threads_ + hanging, threads_ + hanging};
    io_uring_register_iowq_max_workers(&ring_, limits);
}

void UringEngine::reap(std::vector<FileCompletion>& ended) {
    flush();
    io_uring_cqe* entry = nullptr;
    while (in_kernel_ > 0 && io_uring_peek_cqe(&ring_, &entry) == 0) {
        if (entry->user_data != of_withdrawal) ended.push_back({entry->user_data, entry->res});
        io_uring_cqe_seen(&ring_, entry);
        --in_kernel_;
    }
    if (broken_ == 0) return;
    for (const std::uint64_t tag : waiting_)
        if (tag != of_withdrawal) ended.push_back({tag, -broken_});
    waiting_.clear();
}

// A table of empty entries, which needs Linux 5.13.
bool UringEngine::open_table() {
    if (!kept_.empty() || no_table_) return !no_table_;
    const std::vector<iovec> empty(max_kept);
    const std::vector<__u64> tags(max_kept);
    const int rc = io_uring_register_buffers_tags(&ring_, empty.data(), tags.data(), max_kept);
    no_table_ = rc < 0;
    if (no_table_) {
        base::log(base::LogLevel::debug, fmt::format("io_uring registers no memory: {}", system_words(-rc)));
    } else {
        kept_.resize(max_kept);
    }
    return !no_table_;
}

int UringEngine::keep_memory(void* address, Bytes size) {
    if (broken_ != 0 || size == 0 || size > max_kept_bytes - kept_bytes_ || !open_table()) return -1;
    const auto free = std::find(kept_.begin(), kept_.end(), Bytes{0});
    if (free == kept_.end()) return -1;
    const auto number = static_cast<unsigned>(free - kept_.begin());
    const iovec range{address, size};
    const __u64 tag = 0;
    const int rc = io_uring_register_buffers_update_tag(&ring_, number, &range, &tag, 1);
    if (rc < 1) {
        // RLIMIT_MEMLOCK, or memory that cannot be pinned for long.
        base::log(base::LogLevel::debug,
                  fmt::format("io_uring does not register {} of memory: {}", format_bytes(size),
                              system_words(rc < 0 ? -rc : EINVAL)));
        return -1;
    }
    *free = size;
    kept_bytes_ += size;
    return static_cast<int>(number);
}

void UringEngine::drop_memory(int number) {
    const auto at = static_cast<std::size_t>(number);
    if (number < 0 || at >= kept_.size() || kept_[at] == 0) return;
    const iovec nothing{};
    const __u64 tag = 0;
    io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(number), &nothing, &tag, 1);
    kept_bytes_ -= kept_[at];
    kept_[at] = 0;
}

std::string remedy_for(int number) {
    if (number == EPERM) {
        const auto setting = read_line("/proc/sys/kernel/io_uring_disabled").value_or("0");
        if (setting != "0") return fmt::format("set kernel.io_uring_disabled to 0 (it is {})", setting);
        return "let the container's seccomp profile allow io_uring_setup";
    }
    if (number == ENOSYS || number == EOPNOTSUPP) return "use Linux 5.6 or newer, built with CONFIG_IO_URING";
    if (number == ENOMEM) return "raise the limit on locked memory (ulimit -l)";
    if (number == EMFILE || number == ENFILE) return "raise the limit on open files (ulimit -n)";
    return {};
}

}  // namespace

Result<std::unique_ptr<FileIoEngine>> create_uring_engine(unsigned depth, unsigned threads) {
    auto engine = std::make_unique<UringEngine>(depth);
    if (const int number = engine->open(threads); number != 0) {
        Error error =
            system_error(number, "the kernel refuses io_uring", "io_uring_setup", remedy_for(number));
        error.code = ErrorCode::unsupported;
        return error;
    }
    return std::unique_ptr<FileIoEngine>(std::move(engine));
}

}  // namespace sidestep::driver
