#include "backends/p2pmem/direct_file.hpp"

#include <fcntl.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::p2pmem {
namespace {

using driver::FileFacts;
using driver::FileType;

Error missing(const std::string& path) {
    return {ErrorCode::not_found, fmt::format("there is no file {}", path), "file:" + path, "check the path"};
}

Result<std::optional<FileFacts>> facts_of(const std::string& path) {
    SIDESTEP_TRY(auto facts, driver::file_facts(path));
    if (facts && facts->type != FileType::regular && facts->type != FileType::block_device)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is a {}, which no drive reads at an offset", path,
                                 driver::to_string(facts->type)),
                     "file:" + path, "give a regular file or a block device"};
    return facts;
}

Error outside(const Buffer& buffer, Bytes size, ErrorCode code) {
    return {code,
            fmt::format("{} bytes from {} on do not lie in {}, which has {} bytes", buffer.size(),
                        buffer.offset(), buffer.place().path(), size),
            buffer.to_string(), "give a range within the file"};
}

bool within(const Buffer& buffer, Bytes bytes, Bytes size) {
    return buffer.offset() <= size && bytes <= size - buffer.offset();
}

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::open(const Buffer& buffer,
                                                     const backend::AttachOptions& options, bool any_file) {
    if (buffer.place().path().empty())
        return Error{ErrorCode::invalid_argument, "a file needs a path", buffer.to_string(), {}};
    std::unique_ptr<DirectFile> file(new DirectFile(buffer, options));
    SIDESTEP_CHECK(file->writable() ? file->open_target() : file->open_source());
    SIDESTEP_CHECK(file->go_direct(any_file));
    return file;
}

Result<void> DirectFile::open_source() {
    SIDESTEP_TRY(const auto facts, facts_of(path()));
    if (!facts) return missing(path());
    if (buffer().size() != Buffer::whole && !within(buffer(), buffer().size(), facts->size))
        return outside(buffer(), facts->size, ErrorCode::end_of_file);
    SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDONLY));
    SIDESTEP_CHECK(driver::check_opened(plain_, path(), options_.identity, options_.version));
    return {};
}

Result<void> DirectFile::open_target() {
    SIDESTEP_TRY(const auto facts, facts_of(path()));
    if (buffer().whole_file() && (!facts || facts->type == FileType::regular)) {
        SIDESTEP_TRY(auto file, driver::ReplacedFile::begin(path()));
        replaced_.emplace(std::move(file));
        return driver::reserve_space(replaced_->fd(), 0, options_.expected_size, false, path());
    }
    if (!facts) return missing(path());
    const Bytes bytes = buffer().whole_file() ? options_.expected_size : buffer().size();
    const bool device = facts->type == FileType::block_device;
    if (!within(buffer(), device ? bytes : 0, facts->size))
        return outside(buffer(), facts->size, device ? ErrorCode::no_space : ErrorCode::end_of_file);
    // O_EXCL: the kernel refuses a device that is mounted, or part of another one.
    SIDESTEP_TRY(plain_, driver::open_file(path(), device ? O_RDWR | O_EXCL : O_RDWR));
    SIDESTEP_CHECK(driver::check_opened(plain_, path(), options_.identity, options_.version));
    if (device) return {};
    return driver::reserve_space(plain_, buffer().offset(), bytes, true, path());
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

Result<void> DirectFile::commit() {
    if (!writable()) return {};
    if (replaced_) return replaced_->commit(options_.sync_file);
    if (options_.sync_file) return driver::flush_file(plain_, path());
    return {};
}

std::vector<std::string> DirectFile::notes() const {
    std::vector<std::string> notes;
    if (replaced_) notes = replaced_->notes();
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
