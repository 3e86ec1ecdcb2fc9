#include "backends/file/file_registration.hpp"

#include <fcntl.h>

#include <fmt/format.h>

#include "backends/file/file_buffers.hpp"
#include "backends/file/slices.hpp"
#include "base/try.hpp"

namespace sidestep::backends::file {

using driver::FileFacts;
using driver::FileType;

Result<std::unique_ptr<FileRegistration>> FileRegistration::open(const Buffer& buffer,
                                                                 const backend::AttachOptions& options) {
    std::unique_ptr<FileRegistration> file(new FileRegistration(buffer, options));
    if (!file->writable()) {
        SIDESTEP_CHECK(file->open_source());
    } else {
        SIDESTEP_TRY(const auto facts, inspect(buffer));
        if (buffer.whole_file() && (!facts || facts->type == FileType::regular)) {
            SIDESTEP_CHECK(file->open_whole_target());
        } else {
            // A whole block device is written in place too: there is nothing to rename.
            SIDESTEP_CHECK(
                file->open_in_place(*facts, buffer.whole_file() ? options.expected_size : buffer.size()));
        }
    }
    if (options.page_cache == PageCache::bypass) SIDESTEP_CHECK(file->go_direct());
    return file;
}

Result<void> FileRegistration::open_source() {
    SIDESTEP_TRY(const auto facts, inspect(buffer()));
    if (!facts) return missing(path());
    SIDESTEP_CHECK(check_read_range(buffer(), *facts));
    SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDONLY));
    if (facts->type == FileType::regular && facts->size == 0 && driver::has_hidden_content(plain_)) {
        return Error{ErrorCode::unsupported,
                     fmt::format("{} has content, but says that its size is 0", path()),
                     buffer().place().to_string(), "copy it to an ordinary file first, for example with cat"};
    }
    return {};
}

Result<void> FileRegistration::open_whole_target() {
    SIDESTEP_TRY(auto file, driver::ReplacedFile::begin(path()));
    replaced_.emplace(std::move(file));
    notes_ = replaced_->notes();
    return driver::reserve_space(replaced_->fd(), 0, options_.expected_size, false, path());
}

Result<void> FileRegistration::open_in_place(const FileFacts& facts, Bytes bytes) {
    SIDESTEP_CHECK(check_write_range(buffer(), bytes, facts));
    if (facts.type == FileType::block_device) {
        // O_EXCL: the kernel refuses a device that is mounted, or part of another one.
        SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDWR | O_EXCL));
        return {};
    }
    SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDWR));
    return driver::reserve_space(plain_, buffer().offset(), bytes, true, path());
}

Result<void> FileRegistration::go_direct() {
    auto direct = driver::open_direct(fd(false), writable() ? O_RDWR : O_RDONLY, path());
    if (direct) {
        direct_ = std::move(*direct);
        return {};
    }
    if (options_.strict) {
        Error error = direct.error();
        error.code = ErrorCode::path_unavailable;
        error.hint = "let the page cache be used, or use a file system that knows it (ext4, XFS)";
        return error;
    }
    notes_.push_back(direct.error().message + "; the bytes went through the page cache");
    return {};
}

Result<void> FileRegistration::commit() {
    if (!writable()) return {};
    if (replaced_) {
        SIDESTEP_CHECK(replaced_->commit(options_.sync_file));
        notes_ = replaced_->notes();
        return {};
    }
    if (options_.sync_file) return driver::flush_file(plain_, path());
    return {};
}

std::vector<std::string> FileRegistration::notes() const {
    std::vector<std::string> notes = notes_;
    if (const Bytes bytes = through_cache_.load(std::memory_order_relaxed); bytes != 0) {
        notes.push_back(
            fmt::format("{} bytes of {} went through the page cache: O_DIRECT moves only whole blocks of {} "
                        "between addresses aligned to them",
                        bytes, path(), format_bytes(direct_block)));
    }
    return notes;
}

}  // namespace sidestep::backends::file
