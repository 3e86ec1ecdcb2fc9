// Files that a drive moves to and from device memory.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "backend/file_piece.hpp"
#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/fd.hpp"
#include "driver/memory_map.hpp"
#include "driver/opened_file.hpp"
#include "driver/store_fence.hpp"
#include "driver/system_error.hpp"

namespace sidestep::backends::p2pmem {

// The reason and the kernel's rule, where this errno of a read or write with O_DIRECT is about the memory, and not about the
// file or the drive. `drive` and `memory` name the two, such as /dev/nvme0n1 and p2pmem:0000:03:00.0.
// What a kernel answers was seen with Linux 7.2 in a virtual machine (tests/vm/jobs/nvme_p2p), and is read in
// drivers/pci/p2pdma.c (calc_map_type_and_dist) and mm/gup.c.
inline std::optional<backend::Support> refusal(int number, const std::string& drive,
                                               const std::string& memory) {
    using backend::Support;
    if (number == EFAULT)
        return Support::no(
            fmt::format("the kernel refuses to hold pages of {} for long, as registered buffers are "
                        "(EFAULT)",
                        memory),
            "use plain reads and writes, not registered buffers");
    if (number == EOPNOTSUPP)
        return Support::no(fmt::format("{} does no direct I/O on these bytes (EOPNOTSUPP)", drive),
                           "use a file on ext4 or XFS on an NVMe drive");
    if (number == EREMOTEIO)
        return Support::no(
            fmt::format("the driver of {} takes no pages of {} (EREMOTEIO)", drive, memory),
            "use a file on a PCIe NVMe drive; before Linux 6.17 this is also the answer where the two "
            "are not below one PCIe switch");
    if (number != EINVAL) return std::nullopt;
    return Support::no(
        fmt::format("the kernel does not let {} reach {} (EINVAL): they share no PCIe switch, and no host "
                    "bridge that is known to pass such traffic on",
                    drive, memory),
        "put both below one PCIe switch without ACS redirection; AMD Zen processors and the Intel "
        "server host bridges on the kernel's list need none. The kernel's log names the two");
}

class DirectFile;

// Some bytes of a file and of device memory.
using DirectRange = backend::FilePiece<DirectFile, backend::Registration>;

// An open file, with O_DIRECT and without. One opened for writing can be read as well.
class DirectFile final : public backend::Registration {
public:
    // `any_file` as P2pmemOptions. ErrorCode::path_unavailable where the file system does no direct I/O on
    // it.
    static Result<std::unique_ptr<Registration>> open(const Buffer& buffer,
                                                      const backend::AttachOptions& options, bool any_file) {
        std::unique_ptr<DirectFile> file(new DirectFile(buffer, options));
        const bool write = file->writable();
        SIDESTEP_CHECK(
            file->opened_.open(buffer, {write, options.identity, options.version, options.expected_size, true,
                                        nullptr, false, options.never_read}));
        if (write) SIDESTEP_CHECK(file->opened_.reserve());
        SIDESTEP_CHECK(file->go_direct(any_file));
        return std::unique_ptr<backend::Registration>(std::move(file));
    }

    const std::string& path() const { return buffer().place().path(); }
    bool writable() const { return options_.access == backend::Access::write; }

    // Moves the range: whole blocks directly, what lies beside them through a small buffer of host memory. Blocks.
    // ErrorCode::path_unavailable where the kernel keeps the drive away from the memory. Any thread.
    Result<void> move(const DirectRange& range) {
        const Bytes before = base::round_up(range.file_offset, block_) - range.file_offset;
        const bool direct = range.size >= before + block_ &&
                            (reinterpret_cast<std::uintptr_t>(range.address()) + before) % address_unit_ == 0;
        if (!direct && options_.strict && range.size >= block_)
            return Error{
                ErrorCode::path_unavailable,
                fmt::format("the drive cannot move {} bytes at offset {} of {} to or from the address {}",
                            range.size, range.file_offset, path(), static_cast<void*>(range.address())),
                "p2pmem backend",
                fmt::format("begin at a multiple of {} in file and memory", format_bytes(block_))};
        if (!direct) return move(range, false);
        const auto by = [this](bool directly) {
            return [this, directly](const DirectRange& part) { return move(part, directly); };
        };
        return range.move(block_, by(true), by(false));
    }

    Result<void> commit() override { return opened_.commit(options_.sync_file); }
    std::vector<std::string> notes() const override {
        std::vector<std::string> notes = opened_.notes();
        if (const Bytes bytes = cached_bytes_.load(std::memory_order_relaxed); bytes != 0)
            notes.push_back(fmt::format(
                "{} bytes of {} went through host memory: a drive moves only whole blocks of {}, to "
                "addresses in multiples of {} bytes",
                bytes, path(), format_bytes(block_), address_unit_));
        return notes;
    }
    StorageBytes storage_bytes() const override { return {direct_bytes_, 0, cached_bytes_, 0}; }

private:
    // Of one call. Larger ones only keep the end of a copy waiting for its last piece.
    static constexpr Bytes max_at_once = 64_MiB;
    static constexpr Bytes bounce_size = 64_KiB;
    // A call that is interrupted so often in a row without moving a byte will not get anywhere.
    static constexpr int max_idle_tries = 1000;

    DirectFile(const Buffer& buffer, const backend::AttachOptions& options)
        : Registration(buffer), options_(options) {}
    Result<void> go_direct(bool any_file) {
        block_ = std::max<Bytes>(4096, driver::page_size());
        auto direct = driver::open_direct(fd(false), path());
        if (!direct) {
            if (any_file) return {};
            Error error = direct.error();
            error.code = ErrorCode::path_unavailable;
            error.hint = "use a file on ext4 or XFS";
            return error;
        }
        direct_ = std::move(*direct);
        const auto wants = driver::direct_alignment(direct_);
        if (wants && wants->offset == 0 && !any_file)
            return Error{
                ErrorCode::path_unavailable,
                fmt::format(
                    "the file system moves {} through the page cache only (it is encrypted, verified, or "
                    "journalled with its data)",
                    path()),
                buffer().place().to_string(), "use an ordinary file on ext4 or XFS"};
        block_ = std::max(block_, wants ? wants->offset : 0);
        address_unit_ = wants && wants->memory != 0 ? wants->memory : 4096;
        return {};
    }
    const driver::Fd& fd(bool direct) const {
        if (direct && direct_) return direct_;
        return opened_.fd();
    }
    Result<void> move(DirectRange range, bool direct) {
        std::vector<char> bounce;
        for (int idle_tries = 0; range.size > 0;) {
            char* address = range.address();
            const Bytes size = std::min(range.size, direct ? max_at_once : bounce_size);
            if (!direct) {
                bounce.resize(size);
                address = bounce.data();
                if (range.write) std::memcpy(address, range.address(), size);
            }
            const auto at = static_cast<off_t>(range.file_offset);
            const ssize_t result = range.write ? ::pwrite(fd(direct).get(), address, size, at)
                                               : ::pread(fd(direct).get(), address, size, at);
            const bool passing = result < 0 && (errno == EINTR || errno == EAGAIN);
            if (passing && ++idle_tries <= max_idle_tries) continue;
            if (result == 0 && !range.write)
                return driver::ended_early(fd(false), path(), range.file_offset, range.size,
                                           buffer().place().to_string());
            if (result <= 0) return failed(range, direct, result == 0 ? EIO : errno);
            const auto moved = static_cast<Bytes>(result);
            if (!direct && !range.write) {
                std::memcpy(range.address(), address, moved);
                driver::store_fence();
            }
            (direct ? direct_bytes_ : cached_bytes_).fetch_add(moved, std::memory_order_relaxed);
            range = range.part(moved, range.size - moved);
            idle_tries = 0;
            // What is left of a short transfer may no longer begin at a block.
            direct = direct && moved % block_ == 0;
        }
        return {};
    }
    Error failed(const DirectRange& range, bool direct, int number) const {
        const std::string place = buffer().place().to_string();
        const auto why = refusal(number, fmt::format("the drive below {}", path()),
                                 range.memory->buffer().place().to_string());
        if (direct && why) return {ErrorCode::path_unavailable, why->reason, place, why->remedy};
        return driver::system_error(
            number,
            fmt::format("cannot {} {} bytes of {} at offset {}", range.write ? "write" : "read", range.size,
                        path(), range.file_offset),
            place);
    }

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
