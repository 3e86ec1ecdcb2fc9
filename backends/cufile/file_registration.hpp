// Files that cuFile knows, and what became of the bytes that went to and from them.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "backend/blocking_pieces.hpp"
#include "backend/file_piece.hpp"
#include "backends/cufile/direct_gpus.hpp"
#include "backends/cufile/proof.hpp"
#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/opened_file.hpp"

namespace sidestep::backends::cufile {

// GPU memory; its GPU is open.
class MemoryRegistration final : public backend::Registration {
public:
    MemoryRegistration(Buffer buffer, DirectGpu& of) : Registration(std::move(buffer)), gpu(of) {}
    DirectGpu& gpu;
};

class FileRegistration;

// Some bytes of a file and of GPU memory.
using Range = backend::FilePiece<FileRegistration, MemoryRegistration>;

// GPU memory that cuFile has mapped, shared by the copies that use it at the same time. Safe to use from several
// threads. Outlives what it gives out.
class MappedMemory {
public:
    explicit MappedMemory(std::shared_ptr<const driver::Cufile> cufile) : cufile_(std::move(cufile)) {}

    // Mapped until the last holder releases it. Null where cuFile refuses.
    std::shared_ptr<void> map(DirectGpu& gpu, const void* base, Bytes size) {
        const Mapped range{base, size};
        const std::lock_guard lock(mutex_);
        auto found = held_.find(range);
        if (found == held_.end()) {
            const driver::ScopedCudaContext current(gpu.context());
            auto buffer = driver::CufileBuffer::create(cufile_, base, size);
            if (!buffer) return nullptr;
            found = held_.emplace(range, Held{std::move(*buffer), 0}).first;
        }
        ++found->second.holders;
        return std::shared_ptr<void>(&found->second, [this, &gpu, range](void*) { drop(gpu, range); });
    }

private:
    struct Held {
        std::unique_ptr<driver::CufileBuffer> buffer;
        int holders = 0;
    };
    using Mapped = std::pair<const void*, Bytes>;
    void drop(DirectGpu& gpu, const Mapped& range) {
        const std::lock_guard lock(mutex_);
        const auto found = held_.find(range);
        if (--found->second.holders > 0) return;
        const driver::ScopedCudaContext current(gpu.context());
        held_.erase(found);
    }

    const std::shared_ptr<const driver::Cufile> cufile_;
    std::mutex mutex_;  // of what follows; held while cuFile maps: nobody uses what is being given back
    std::map<Mapped, Held> held_;
};

// What the registrations of a backend share, and its requests use, one that hangs too; outlives them.
struct Shared {
    Shared(std::shared_ptr<const driver::Cufile> library, std::unique_ptr<DirectGpus> found)
        : cufile(std::move(library)), gpus(std::move(found)), prover(cufile, *gpus), memory(cufile) {}

    const std::shared_ptr<const driver::Cufile> cufile;
    const std::unique_ptr<DirectGpus> gpus;
    Prover prover;
    MappedMemory memory;
    // Each thread carries one piece of a copy, of which a copy from or to a file has 16 in flight. Last: destroyed first,
    // while the rest is there.
    backend::BlockingPieces pool{16, "cufile"};
};

// An open file. One opened for writing can be read as well. move() may be called by several threads at once.
class FileRegistration final : public backend::Registration {
public:
    // Fails with ErrorCode::unsupported where cuFile does not take the file.
    static Result<std::unique_ptr<Registration>> open(Shared& shared, const Buffer& buffer,
                                                      const backend::AttachOptions& options) {
        std::unique_ptr<FileRegistration> file(new FileRegistration(shared, buffer, options));
        const bool write = file->writable();
        // With a name of its own meanwhile: cuFile refuses files that were opened with O_TMPFILE (5019).
        SIDESTEP_CHECK(
            file->opened_.open(buffer, {write, options.identity, options.version, options.expected_size,
                                        false, nullptr, false, options.never_read}));
        if (write && file->opened_.type() != driver::FileType::regular)
            return Error{ErrorCode::unsupported,
                         fmt::format("{} is a {}, which this path does not write to", file->path(),
                                     driver::to_string(file->opened_.type())),
                         buffer.to_string()};
        if (write) SIDESTEP_CHECK(file->opened_.reserve());
        auto direct = driver::open_direct(file->opened_.fd(), file->path());
        if (!direct) return Error{ErrorCode::unsupported, direct.error().message, file->path()};
        file->direct_ = std::move(*direct);
        auto handle = driver::CufileHandle::create(shared.cufile, file->direct_);
        if (!handle)
            return Error{ErrorCode::unsupported, handle.error().message, buffer.to_string(),
                         handle.error().hint};
        file->handle_ = std::move(*handle);
        return std::unique_ptr<backend::Registration>(std::move(file));
    }

    bool writable() const { return options_.access == backend::Access::write; }

    // Moves the range: whole blocks by cuFile, what is left at its two ends through host memory. Blocks.
    // Fails with ErrorCode::unsupported, before a byte has moved, where the path to this GPU is not proven to
    // be direct.
    Result<void> move(const Range& range) {
        SIDESTEP_TRY(Window* const counted, window(range.memory->gpu, range.write));
        return range.move(
            block,
            [&](const Range& blocks) {
                register_memory(*range.memory);
                return move_blocks(blocks, *counted);
            },
            [&](const Range& beside) { return move_through_host(beside); });
    }

    Result<void> commit() override { return opened_.commit(options_.sync_file); }
    void unmap() override {
        const std::lock_guard lock(mutex_);
        mapped_.clear();
    }
    std::vector<std::string> notes() const override {
        std::vector<std::string> notes = opened_.notes();
        if (const Bytes bytes = through_host_.load(std::memory_order_relaxed); bytes != 0)
            notes.push_back(
                fmt::format("{} bytes of {} went through host memory: only whole blocks of {} go directly",
                            bytes, path(), format_bytes(block)));
        const std::lock_guard lock(mutex_);
        for (const auto& [key, window] : windows_) {
            if (!window) continue;
            const Account counted = account(*window, key.second);
            if (const auto requests = unproven_requests(counted); requests != 0)
                notes.push_back(fmt::format(
                    "cuFile's counters do not show that {} of {} requests for {} were direct ({} operations "
                    "went through host memory): {} count as page cache",
                    requests, counted.requests, path(), counted.posix,
                    format_bytes(unproven_bytes(counted))));
        }
        for (const auto& [base, mapped] : mapped_)
            if (!mapped)
                notes.push_back(
                    "cuFile would not map the GPU memory: it went through blocks of its own in the GPU's "
                    "memory");
        return notes;
    }
    StorageBytes storage_bytes() const override {
        StorageBytes bytes;
        bytes.page_cache = through_host_.load(std::memory_order_relaxed);
        const std::lock_guard lock(mutex_);
        for (const auto& [key, window] : windows_) {
            if (!window) continue;
            const Account counted = account(*window, key.second);
            const Bytes unproven = unproven_bytes(counted);
            bytes.gpu_direct += counted.bytes - unproven;
            bytes.page_cache += unproven;
        }
        return bytes;
    }

private:
    // Mapping GPU memory takes longer than what a small copy gains; cuFile goes through mapped blocks of its own
    // then. Not measured: no machine with a direct path was at hand.
    static constexpr Bytes min_mapped = 16_MiB;

    static void raise(std::atomic<Bytes>& max, Bytes value) {
        Bytes now = max.load(std::memory_order_relaxed);
        while (now < value && !max.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
        }
    }

    // What went to and from one GPU, and the state of the counters when that began.
    struct Window {
        DirectGpu* gpu = nullptr;
        Counts at_begin;
        std::uint64_t begun_before = 0;
        std::atomic<std::uint64_t> requests{0};
        std::atomic<Bytes> bytes{0};
        std::atomic<Bytes> largest{0};
    };

    FileRegistration(Shared& shared, const Buffer& buffer, const backend::AttachOptions& options)
        : Registration(buffer), options_(options), shared_(shared) {}
    const std::string& path() const { return buffer().place().path(); }
    // The account with one GPU; begun, and its path proven, with the first bytes.
    Result<Window*> window(DirectGpu& gpu, bool write) {
        const std::lock_guard lock(mutex_);
        auto& window = windows_[{gpu.index(), write}];
        if (window) return window.get();
        const backend::Support proven = shared_.prover.prove(path(), gpu.index(), write);
        if (!proven.usable)
            return Error{ErrorCode::unsupported, proven.reason, buffer().to_string(), proven.remedy};
        SIDESTEP_TRY(const auto counts, shared_.cufile->gpu_counts());
        window = std::make_unique<Window>();
        window->gpu = &gpu;
        window->begun_before = gpu.ledger(write).begun.load();
        window->at_begin = counts_of(counts, gpu.uuid(), write);
        return window.get();
    }
    // Until unmap(), so that no memory is freed while it is mapped.
    void register_memory(const MemoryRegistration& memory) {
        const void* const base = memory.buffer().address();
        if (memory.buffer().size() < min_mapped) return;
        const std::lock_guard lock(mutex_);
        if (mapped_.count(base) == 0)
            mapped_[base] = shared_.memory.map(memory.gpu, base, memory.buffer().size());
    }
    Result<void> move_blocks(const Range& range, Window& window) {
        auto* const base = static_cast<char*>(range.memory->buffer().address());
        Ledger& ledger = window.gpu->ledger(range.write);
        const driver::ScopedCudaContext current(window.gpu->context());
        for (Bytes done = 0; done < range.size;) {
            const Bytes left = range.size - done;
            const Bytes file_at = range.file_offset + done;
            const Bytes memory_at = range.memory_offset + done;
            ++ledger.begun;
            auto moved = range.write ? shared_.cufile->write(handle_.get(), base, left, file_at, memory_at)
                                     : shared_.cufile->read(handle_.get(), base, left, file_at, memory_at);
            ++ledger.ended;
            window.requests.fetch_add(1, std::memory_order_relaxed);
            if (!moved) return failed(moved.error(), range.part(done, left));
            if (*moved == 0 || *moved > left)
                return driver::ended_early(opened_.fd(), path(), file_at, left, buffer().to_string());
            window.bytes.fetch_add(*moved, std::memory_order_relaxed);
            raise(window.largest, *moved);
            done += *moved;
        }
        return {};
    }
    // Less than a block.
    Result<void> move_through_host(const Range& range) {
        std::array<char, block> bytes;
        const driver::Fd& fd = opened_.fd();
        DirectGpu& gpu = range.memory->gpu;
        if (range.write) SIDESTEP_CHECK(gpu.to_host(bytes.data(), range.address(), range.size));
        const auto moved = range.write
                               ? driver::write_range(fd, range.file_offset, bytes.data(), range.size, path())
                               : driver::read_range(fd, range.file_offset, bytes.data(), range.size, path());
        if (!moved) return failed(moved.error(), range);
        through_host_.fetch_add(range.size, std::memory_order_relaxed);
        if (range.write) return {};
        return gpu.to_gpu(range.address(), bytes.data(), range.size);
    }
    Account account(const Window& window, bool write) const {
        Account account{window.requests.load(), window.bytes.load(), window.largest.load(), 0, 0, 0};
        // Requests that end while the counters are read must not look uncounted.
        const std::uint64_t ended = window.gpu->ledger(write).ended.load();
        account.all_requests =
            std::max(account.requests, ended > window.begun_before ? ended - window.begun_before : 0);
        // Where nothing was counted nothing is proven.
        (void)settled_counts(*shared_.cufile, *window.gpu, write, [&](const Counts& now) {
            account.direct = now.direct - window.at_begin.direct;
            account.posix = now.posix - window.at_begin.posix;
            return account.posix != 0 || unproven_requests(account) == 0;
        });
        return account;
    }
    Error failed(Error error, const Range& range) const {
        error.where =
            fmt::format("{}, bytes {} to {}", path(), range.file_offset, range.file_offset + range.size);
        return error;
    }

    const backend::AttachOptions options_;
    Shared& shared_;
    driver::OpenedFile opened_;
    driver::Fd direct_;            // the same file with O_DIRECT
    driver::CufileHandle handle_;  // of direct_; goes first

    std::atomic<Bytes> through_host_{0};
    mutable std::mutex mutex_;  // guards what follows; the windows themselves stay
    std::map<std::pair<int, bool>, std::unique_ptr<Window>> windows_;
    // By address. Null: cuFile would not map it, and goes through blocks of its own in GPU memory.
    std::map<const void*, std::shared_ptr<void>> mapped_;
};

}  // namespace sidestep::backends::cufile
