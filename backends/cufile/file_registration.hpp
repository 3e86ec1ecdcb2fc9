// Files that cuFile knows, and what became of the bytes that went to and from them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "backend/blocking_pieces.hpp"
#include "backend/file_piece.hpp"
#include "backends/cufile/direct_gpus.hpp"
#include "backends/cufile/proof.hpp"
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
    std::shared_ptr<void> map(DirectGpu& gpu, const void* base, Bytes size);

private:
    struct Held {
        std::unique_ptr<driver::CufileBuffer> buffer;
        int holders = 0;
    };
    using Mapped = std::pair<const void*, Bytes>;
    void drop(DirectGpu& gpu, const Mapped& range);

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
                                                      const backend::AttachOptions& options);

    bool writable() const { return options_.access == backend::Access::write; }

    // Moves the range: whole blocks by cuFile, what is left at its two ends through host memory. Blocks.
    // Fails with ErrorCode::unsupported, before a byte has moved, where the path to this GPU is not proven to
    // be direct.
    Result<void> move(const Range& range);

    Result<void> commit() override { return opened_.commit(options_.sync_file); }
    std::vector<std::string> notes() const override;
    StorageBytes storage_bytes() const override;

private:
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
    Result<Window*> window(DirectGpu& gpu, bool write);
    void register_memory(const MemoryRegistration& memory);
    Result<void> move_blocks(const Range& range, Window& window);
    Result<void> move_through_host(const Range& range);
    Account account(const Window& window, bool write) const;
    Error failed(Error error, const Range& range) const;

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
