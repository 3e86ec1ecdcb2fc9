#include "backends/file/file_registration.hpp"

#include <fcntl.h>

#include <algorithm>

#include <fmt/format.h>

#include "backends/file/slices.hpp"
#include "base/try.hpp"

namespace sidestep::backends::file {

namespace {

// A map costs a few system calls and page tables; smaller files are written at once.
constexpr Bytes min_mapped = 1_MiB;

// A question about so many pages takes some microseconds, less than to open the file once more.
constexpr Bytes small_file = 8_MiB;

}  // namespace

Result<std::unique_ptr<FileRegistration>> FileRegistration::open(const Buffer& buffer,
                                                                 const backend::AttachOptions& options,
                                                                 driver::CacheProbe probe, bool maps,
                                                                 driver::OpenFolders* folders) {
    std::unique_ptr<FileRegistration> file(new FileRegistration(buffer, options, probe));
    const bool write = file->writable();
    SIDESTEP_CHECK(
        file->opened_.open(buffer, {write, options.identity, options.version, options.expected_size, true,
                                    folders, options.sparse, options.never_read}));
    if (write) SIDESTEP_CHECK(file->make_room(maps));
    if (options.page_cache == PageCache::bypass) SIDESTEP_CHECK(file->go_direct());
    // Whoever starts pieces must not wait for a file system.
    if (options.expected_size < min_question) return file;
    file->choose_probe();
    if (file->wish(write) == Wish::cheaper && buffer.size() <= small_file) {
        const auto part = file->cached(buffer.offset(), buffer.size());
        file->was_warm_ = part && part->bytes == buffer.size();
        if (file->was_warm_) return file;
    }
    const bool around = file->wish(write) != Wish::cache && file->goes_around();
    if (!write && !around) file->missing_share();
    return file;
}

Result<void> FileRegistration::make_room(bool maps) {
    const Bytes size = options_.expected_size;
    if (!maps || !opened_.replaces() || opened_.is_sparse() || size < min_mapped ||
        !driver::lives_in_memory(opened_.fd()))
        return opened_.reserve();
    SIDESTEP_CHECK(driver::lengthen_in_memory(opened_.fd(), size, path()));
    // Only what is nobody else's business yet is mapped: a file that others may shorten would end the process
    // with a signal.
    auto map = driver::TargetMap::create(opened_.fd(), size, path());
    if (map)
        map_.emplace(std::move(*map));
    else
        notes_.push_back(fmt::format("{}; pwrite takes turns there", map.error().message));
    return {};
}

FileRegistration::Wish FileRegistration::wish(bool write) const {
    if (options_.page_cache == PageCache::use) return Wish::cache;
    if (options_.page_cache == PageCache::bypass) return Wish::around;
    if (!write) return Wish::cheaper;
    // What is to be on the device in the end gains nothing from lying in the page cache on the way.
    return options_.sync_file ? Wish::around : Wish::cache;
}

Result<driver::Fd> FileRegistration::open_around() {
    const auto refuse = [this](std::string why) {
        return Error{ErrorCode::unsupported, std::move(why), buffer().place().to_string()};
    };
    if (driver::lives_in_memory(fd(false))) {
        return refuse(
            fmt::format("{} lies in memory (tmpfs), so that nothing goes around the page cache", path()));
    }
    SIDESTEP_TRY(driver::Fd direct, driver::open_direct(fd(false), path()));
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
    const std::lock_guard lock(around_);
    if (!direct_ && !why_not_around_) {
        auto direct = open_around();
        if (direct) {
            direct_ = std::move(*direct);
            was_around_ = true;
            // A few warm pages would else bring their neighbours into the cache, and these the next ones, until all of the file had
            // gone through it: what is not there is read around it, so nothing is to be read ahead.
            if (!writable()) (void)::posix_fadvise(fd(false).get(), 0, 0, POSIX_FADV_RANDOM);
        } else {
            why_not_around_ = direct.error();
        }
    }
    return static_cast<bool>(direct_) && !refused_.load();
}

std::optional<std::vector<backend::Span>> FileRegistration::extents() const {
    if (writable()) return std::nullopt;
    const Bytes begin = buffer().offset();
    const auto found = driver::extents_of(fd(false), begin, begin + buffer().size());
    if (!found) return std::nullopt;
    std::vector<backend::Span> extents;
    for (const auto& each : *found) extents.push_back({each.begin - begin, each.end - each.begin});
    return extents;
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
    std::call_once(probe_chosen_, [this] { probe_ = driver::cache_probe_for(fd(false), *probe_.load()); });
}

std::optional<driver::CachedPart> FileRegistration::cached(Bytes offset, Bytes size) {
    choose_probe();
    for (auto probe = probe_.load(); probe; probe_ = probe = driver::next_cache_probe(*probe))
        if (const auto part = driver::cached_part(*probe, fd(false), offset, size)) return part;
    return std::nullopt;
}

double FileRegistration::missing_share() {
    std::call_once(looked_, [this] {
        const Bytes size = buffer().size();
        if (size == 0 || driver::lives_in_memory(fd(false))) return;
        if (const auto part = cached(buffer().offset(), size))
            missing_share_ = static_cast<double>(size - part->bytes) / static_cast<double>(size);
    });
    return missing_share_;
}

std::vector<std::string> FileRegistration::notes() const {
    std::vector<std::string> notes = opened_.notes();
    notes.insert(notes.end(), notes_.begin(), notes_.end());
    const Bytes bytes = through_cache_.load();
    if (options_.page_cache == PageCache::bypass && was_around_ && bytes != 0) {
        notes.push_back(
            fmt::format("{} bytes of {} went through the page cache: O_DIRECT moves only whole blocks of {} "
                        "between addresses aligned to them",
                        bytes, path(), format_bytes(direct_block)));
    }
    if (missed_threads_.load()) {
        notes.push_back(fmt::format(
            "no thread could be started to copy the bytes of {}: the engine of the other requests did it",
            path()));
    }
    if (missed_ring_.load())
        notes.push_back(fmt::format("io_uring takes no request any more: threads moved bytes of {}", path()));
    if (map_) {
        const Bytes mapped = through_map_.load();
        const bool lost = unmapped_.load();
        notes.push_back(fmt::format("{} lies in memory: {} of {} bytes were copied into a map of it{}{}",
                                    path(), mapped, bytes, mapped < bytes ? ", the rest with pwrite" : "",
                                    lost ? ", since pages of the map could not be allocated" : ""));
    }
    return notes;
}

}  // namespace sidestep::backends::file
