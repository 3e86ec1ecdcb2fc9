// Files that a drive moves to and from device memory.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "backend/file_piece.hpp"
#include "driver/fd.hpp"
#include "driver/opened_file.hpp"

namespace sidestep::backends::p2pmem {

// The reason and the kernel's rule, where this errno of a read or write with O_DIRECT is about the memory, and not about the
// file or the drive. `drive` and `memory` name the two, such as /dev/nvme0n1 and p2pmem:0000:03:00.0.
std::optional<backend::Support> refusal(int number, const std::string& drive, const std::string& memory);

// Mapped device memory may be write-combining: what was stored before this is on its way to the device before what is
// stored, or told to another device, after it.
void store_fence();

class DirectFile;

// Some bytes of a file and of device memory.
using DirectRange = backend::FilePiece<DirectFile, backend::Registration>;

// An open file, with O_DIRECT and without. One opened for writing can be read as well.
class DirectFile final : public backend::Registration {
public:
    // `any_file` as P2pmemOptions. ErrorCode::path_unavailable where the file system does no direct I/O on
    // it.
    static Result<std::unique_ptr<Registration>> open(const Buffer& buffer,
                                                      const backend::AttachOptions& options, bool any_file);

    const std::string& path() const { return buffer().place().path(); }
    bool writable() const { return options_.access == backend::Access::write; }

    // Moves the range: whole blocks directly, what lies beside them through a small buffer of host memory. Blocks.
    // ErrorCode::path_unavailable where the kernel keeps the drive away from the memory. Any thread.
    Result<void> move(const DirectRange& range);

    Result<void> commit() override { return opened_.commit(options_.sync_file); }
    std::vector<std::string> notes() const override;
    StorageBytes storage_bytes() const override { return {direct_bytes_, 0, cached_bytes_, 0}; }

private:
    DirectFile(const Buffer& buffer, const backend::AttachOptions& options)
        : Registration(buffer), options_(options) {}
    Result<void> go_direct(bool any_file);
    const driver::Fd& fd(bool direct) const {
        if (direct && direct_) return direct_;
        return opened_.fd();
    }
    Result<void> move(DirectRange range, bool direct);
    Error failed(const DirectRange& range, bool direct, int number) const;

    const backend::AttachOptions options_;
    driver::OpenedFile opened_;
    driver::Fd direct_;  // the same file with O_DIRECT; none only with any_file
    // Whole blocks go directly. A page at least: bytes beside them that go through the page cache are in
    // other pages then, and neither road sees what the other has half done.
    Bytes block_ = 0;
    Bytes address_unit_ = 1;  // the alignment of addresses that the drive asks for
    std::atomic<Bytes> direct_bytes_{0};
    std::atomic<Bytes> cached_bytes_{0};
};

}  // namespace sidestep::backends::p2pmem
