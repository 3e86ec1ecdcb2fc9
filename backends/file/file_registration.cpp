#include "backends/file/file_registration.hpp"

#include <fcntl.h>

#include <algorithm>

#include <fmt/format.h>

#include "backends/file/file_buffers.hpp"
#include "backends/file/slices.hpp"
#include "base/try.hpp"

namespace sidestep::backends::file {

using driver::FileFacts;
using driver::FileType;

namespace {

// A map costs a few system calls and page tables; smaller files are written at once.
constexpr Bytes min_mapped = 1_MiB;

}  // namespace

Result<std::unique_ptr<FileRegistration>> FileRegistration::open(const Buffer& buffer,
                                                                 const backend::AttachOptions& options,
                                                                 driver::CacheProbe probe, bool maps) {
    std::unique_ptr<FileRegistration> file(new FileRegistration(buffer, options, probe));
    if (!file->writable()) {
        SIDESTEP_CHECK(file->open_source());
    } else {
        SIDESTEP_TRY(const auto facts, inspect(buffer));
        if (buffer.whole_file() && (!facts || facts->type == FileType::regular)) {
            SIDESTEP_CHECK(file->open_whole_target(maps));
        } else {
            // A whole block device is written in place too: there is nothing to rename.
            SIDESTEP_CHECK(
                file->open_in_place(*facts, buffer.whole_file() ? options.expected_size : buffer.size()));
        }
    }
    if (options.page_cache == PageCache::bypass) SIDESTEP_CHECK(file->go_direct());
    // Whoever starts pieces must not wait for a file system.
    if (file->wish(file->writable()) != Wish::cache && options.expected_size >= min_question) {
        file->choose_probe();
        file->goes_around();
    }
    return file;
}

Result<void> FileRegistration::open_source() {
    SIDESTEP_TRY(const auto facts, inspect(buffer()));
    if (!facts) return missing(path());
    SIDESTEP_CHECK(check_read_range(buffer(), *facts));
    SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDONLY));
    SIDESTEP_CHECK(driver::check_opened(plain_, path(), options_.identity, options_.version));
    if (facts->type == FileType::regular && facts->size == 0 && driver::has_hidden_content(plain_)) {
        return Error{ErrorCode::unsupported,
                     fmt::format("{} has content, but says that its size is 0", path()),
                     buffer().place().to_string(), "copy it to an ordinary file first, for example with cat"};
    }
    return {};
}

Result<void> FileRegistration::open_whole_target(bool maps) {
    SIDESTEP_TRY(auto file, driver::ReplacedFile::begin(path()));
    replaced_.emplace(std::move(file));
    notes_ = replaced_->notes();
    const Bytes size = options_.expected_size;
    if (!maps || size < min_mapped || !driver::lives_in_memory(replaced_->fd()))
        return driver::reserve_space(replaced_->fd(), 0, size, false, path());
    SIDESTEP_CHECK(driver::lengthen_in_memory(replaced_->fd(), size, path()));
    map_target();
    return {};
}

// Only what is nobody else's business yet is mapped: a file that others may shorten would end the process
// with a signal.
void FileRegistration::map_target() {
    auto map = driver::TargetMap::create(replaced_->fd(), options_.expected_size, path());
    if (map)
        map_.emplace(std::move(*map));
    else
        notes_.push_back(fmt::format("{}; pwrite takes turns there", map.error().message));
}

Result<void> FileRegistration::open_in_place(const FileFacts& facts, Bytes bytes) {
    SIDESTEP_CHECK(check_write_range(buffer(), bytes, facts));
    if (facts.type == FileType::block_device) {
        // O_EXCL: the kernel refuses a device that is mounted, or part of another one.
        SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDWR | O_EXCL));
        SIDESTEP_CHECK(driver::check_opened(plain_, path(), options_.identity, options_.version));
        return {};
    }
    SIDESTEP_TRY(plain_, driver::open_file(path(), O_RDWR));
    SIDESTEP_CHECK(driver::check_opened(plain_, path(), options_.identity, options_.version));
    return driver::reserve_space(plain_, buffer().offset(), bytes, true, path());
}

FileRegistration::Wish FileRegistration::wish(bool write) const {
    switch (options_.page_cache) {
        case PageCache::use:
            return Wish::cache;
        case PageCache::bypass:
            return Wish::around;
        case PageCache::automatic:
            break;
    }
    if (!write) return Wish::cheaper;
    // What is to be on the device in the end gains nothing from lying in the page cache on the way.
    return options_.sync_file ? Wish::around : Wish::cache;
}

Result<driver::Fd> FileRegistration::open_around() {
    const auto refuse = [this](std::string why) {
        return Error{ErrorCode::unsupported, std::move(why), buffer().place().to_string(), {}};
    };
    if (driver::lives_in_memory(fd(false))) {
        return refuse(
            fmt::format("{} lies in memory (tmpfs), so that nothing goes around the page cache", path()));
    }
    SIDESTEP_TRY(driver::Fd direct, driver::open_direct(fd(false), writable() ? O_RDWR : O_RDONLY, path()));
    const auto wants = driver::direct_alignment(direct);
    if (wants && wants->offset == 0)
        return refuse(fmt::format("the file system refuses O_DIRECT for {}", path()));
    if (wants && (wants->offset > direct_block || wants->memory > direct_block)) {
        return refuse(
            fmt::format("O_DIRECT wants {} to be read and written in multiples of {}, larger than {}", path(),
                        format_bytes(std::max(wants->offset, wants->memory)), format_bytes(direct_block)));
    }
    memory_alignment_ = wants && wants->memory != 0 ? wants->memory : direct_block;
    return direct;
}

bool FileRegistration::goes_around() {
    std::call_once(tried_around_, [this] {
        auto direct = open_around();
        if (direct) {
            direct_ = std::move(*direct);
        } else {
            why_not_around_ = direct.error();
        }
    });
    return static_cast<bool>(direct_) && !refused_.load(std::memory_order_relaxed);
}

// For those who insist: finds out at once, and says so where it is not to be had.
Result<void> FileRegistration::go_direct() {
    if (goes_around()) return {};
    Error error = *why_not_around_;
    if (options_.strict) {
        error.code = ErrorCode::path_unavailable;
        error.hint = "let the page cache be used, or use a file system that knows it (ext4, XFS)";
        return error;
    }
    notes_.push_back(fmt::format("{}; the bytes went through the page cache", error.message));
    return {};
}

void FileRegistration::choose_probe() {
    std::call_once(probe_chosen_, [this] {
        probe_.store(driver::cache_probe_for(fd(false), probe_.load(std::memory_order_relaxed)),
                     std::memory_order_relaxed);
    });
}

std::optional<driver::CachedPart> FileRegistration::cached(Bytes offset, Bytes size) {
    choose_probe();
    while (tells_.load(std::memory_order_relaxed)) {
        const driver::CacheProbe probe = probe_.load(std::memory_order_relaxed);
        if (const auto part = driver::cached_part(probe, fd(false), offset, size)) return part;
        if (const auto next = driver::next_cache_probe(probe)) {
            probe_.store(*next, std::memory_order_relaxed);
        } else {
            tells_.store(false, std::memory_order_relaxed);
        }
    }
    return std::nullopt;
}

Result<void> FileRegistration::commit() {
    if (!writable()) return {};
    if (replaced_) {
        const std::size_t known = replaced_->notes().size();
        SIDESTEP_CHECK(replaced_->commit(options_.sync_file));
        notes_.insert(notes_.end(), replaced_->notes().begin() + static_cast<std::ptrdiff_t>(known),
                      replaced_->notes().end());
        return {};
    }
    if (options_.sync_file) return driver::flush_file(plain_, path());
    return {};
}

std::vector<std::string> FileRegistration::notes() const {
    std::vector<std::string> notes = notes_;
    const Bytes bytes = through_cache_.load(std::memory_order_relaxed);
    if (options_.page_cache == PageCache::bypass && direct_ && bytes != 0) {
        notes.push_back(
            fmt::format("{} bytes of {} went through the page cache: O_DIRECT moves only whole blocks of {} "
                        "between addresses aligned to them",
                        bytes, path(), format_bytes(direct_block)));
    }
    if (missed_threads_.load(std::memory_order_relaxed)) {
        notes.push_back(fmt::format(
            "no thread could be started to copy the bytes of {}: the engine of the other requests did it",
            path()));
    }
    if (map_) {
        const Bytes mapped = through_map_.load(std::memory_order_relaxed);
        const bool lost = unmapped_.load(std::memory_order_relaxed);
        notes.push_back(fmt::format("{} lies in memory: {} of {} bytes were copied into a map of it{}{}",
                                    path(), mapped, bytes, mapped < bytes ? ", the rest with pwrite" : "",
                                    lost ? ", since pages of the map could not be allocated" : ""));
    }
    return notes;
}

StorageBytes FileRegistration::storage_bytes() const {
    StorageBytes bytes;
    bytes.o_direct = around_cache_.load(std::memory_order_relaxed);
    bytes.page_cache = through_cache_.load(std::memory_order_relaxed);
    return bytes;
}

}  // namespace sidestep::backends::file
