#include "backends/p2pmem/direct_file.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "backends/p2pmem/refusals.hpp"
#include "backends/p2pmem/store_fence.hpp"
#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/memory_map.hpp"
#include "driver/system_error.hpp"

namespace sidestep::backends::p2pmem {
namespace {

// Of one call. Larger ones only keep the end of a copy waiting for its last piece.
constexpr Bytes max_at_once = 64_MiB;
constexpr Bytes bounce_size = 64_KiB;
// A call that is interrupted so often in a row without moving a byte will not get anywhere.
constexpr int max_idle_tries = 1000;

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::open(const Buffer& buffer,
                                                     const backend::AttachOptions& options, bool any_file) {
    std::unique_ptr<DirectFile> file(new DirectFile(buffer, options));
    const bool write = file->writable();
    SIDESTEP_CHECK(
        file->opened_.open(buffer, {write, options.identity, options.version, options.expected_size}));
    if (write) SIDESTEP_CHECK(file->opened_.reserve());
    SIDESTEP_CHECK(file->go_direct(any_file));
    return file;
}

Result<void> DirectFile::go_direct(bool any_file) {
    block_ = std::max<Bytes>(4096, driver::page_size());
    auto direct = driver::open_direct(fd(false), writable() ? O_RDWR : O_RDONLY, path());
    if (!direct) {
        if (any_file) return {};
        Error error = direct.error();
        error.code = ErrorCode::path_unavailable;
        error.hint = "use a file on ext4 or XFS";
        return error;
    }
    direct_ = std::move(*direct);
    const driver::DirectUnits units = driver::direct_units(direct_);
    if (units.refused && !any_file)
        return Error{
            ErrorCode::path_unavailable,
            fmt::format("the file system moves {} through the page cache only (it is encrypted, verified, or "
                        "journalled with its data)",
                        path()),
            buffer().place().to_string(), "use an ordinary file on ext4 or XFS"};
    block_ = std::max(block_, units.offset);
    address_unit_ = units.address;
    return {};
}

Result<void> DirectFile::move(const DirectRange& range, const MakeFileCall& make) {
    const Bytes last = range.offset + range.size;
    const Bytes begin = base::round_up(range.offset, block_);
    const Bytes end = last / block_ * block_;
    const auto first = reinterpret_cast<std::uintptr_t>(range.address) + (begin - range.offset);
    const bool direct = begin < end && first % address_unit_ == 0;
    if (!direct && options_.strict && range.size >= block_)
        return Error{
            ErrorCode::path_unavailable,
            fmt::format("the drive cannot move {} bytes at offset {} of {} to or from the address {}",
                        range.size, range.offset, path(), static_cast<void*>(range.address)),
            "p2pmem backend",
            fmt::format("begin at a multiple of {} in file and memory", format_bytes(block_))};
    if (!direct) return move(range, false, make);
    const auto part = [&range](Bytes from, Bytes to) {
        DirectRange cut = range;
        cut.address += from - range.offset;
        cut.offset = from;
        cut.size = to - from;
        return cut;
    };
    SIDESTEP_CHECK(move(part(range.offset, begin), false, make));
    SIDESTEP_CHECK(move(part(begin, end), true, make));
    return move(part(end, last), false, make);
}

Result<void> DirectFile::move(DirectRange range, bool direct, const MakeFileCall& make) {
    std::vector<char> bounce;
    for (int idle_tries = 0; range.size > 0;) {
        FileCall call{range.write, fd(direct).get(), range.address, std::min(range.size, max_at_once),
                      range.offset};
        if (!direct) {
            bounce.resize(std::min(range.size, bounce_size));
            call.address = bounce.data();
            call.size = bounce.size();
            if (range.write) std::memcpy(call.address, range.address, call.size);
        }
        const std::int64_t result = make(call);
        const bool passing = result == -EINTR || result == -EAGAIN;
        if (passing && ++idle_tries <= max_idle_tries) continue;
        if (result == 0 && !range.write)
            return driver::ended_early(fd(false), path(), range.offset, range.size,
                                       buffer().place().to_string());
        if (result <= 0) return failed(range, direct, result == 0 ? EIO : static_cast<int>(-result));
        const auto moved = std::min(static_cast<Bytes>(result), call.size);
        if (!direct && !range.write) {
            std::memcpy(range.address, call.address, moved);
            store_fence();
        }
        (direct ? direct_bytes_ : cached_bytes_).fetch_add(moved, std::memory_order_relaxed);
        range.address += moved;
        range.offset += moved;
        range.size -= moved;
        idle_tries = 0;
        // What is left of a short transfer may no longer begin at a block.
        direct = direct && moved % block_ == 0;
    }
    return {};
}

Error DirectFile::failed(const DirectRange& range, bool direct, int number) const {
    const std::string place = buffer().place().to_string();
    if (direct && is_refusal(number)) {
        backend::Support why = refusal(number, fmt::format("the drive below {}", path()), range.memory);
        return {ErrorCode::path_unavailable, std::move(why.reason), place, std::move(why.remedy)};
    }
    return driver::system_error(number,
                                fmt::format("cannot {} {} bytes of {} at offset {}",
                                            range.write ? "write" : "read", range.size, path(), range.offset),
                                place);
}

Result<void> DirectFile::commit() {
    return writable() ? opened_.commit(options_.sync_file) : Result<void>();
}

std::vector<std::string> DirectFile::notes() const {
    std::vector<std::string> notes = opened_.notes();
    if (const Bytes bytes = cached_bytes_.load(std::memory_order_relaxed); bytes != 0)
        notes.push_back(
            fmt::format("{} bytes of {} went through host memory: a drive moves only whole blocks of {}, to "
                        "addresses in multiples of {} bytes",
                        bytes, path(), format_bytes(block_), address_unit_));
    return notes;
}

StorageBytes DirectFile::storage_bytes() const {
    StorageBytes bytes;
    bytes.gpu_direct = direct_bytes_.load(std::memory_order_relaxed);
    bytes.page_cache = cached_bytes_.load(std::memory_order_relaxed);
    return bytes;
}

}  // namespace sidestep::backends::p2pmem
