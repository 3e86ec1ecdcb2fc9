#include "driver/opened_file.hpp"

#include <fcntl.h>

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::driver {
namespace {

Error missing(const std::string& path) {
    return {ErrorCode::not_found, fmt::format("there is no file {}", path), "file:" + path, "check the path"};
}

Error wrong_kind(const std::string& path, FileType type) {
    std::string hint = "give a regular file or a block device";
    if (type == FileType::directory) hint = "give a file in it";
    if (type == FileType::fifo || type == FileType::socket) hint = "write its bytes to a file first";
    return {ErrorCode::invalid_argument, fmt::format("{} is a {}", path, to_string(type)), "file:" + path,
            std::move(hint)};
}

Result<void> check_folder(const std::string& path) {
    SIDESTEP_TRY(const std::string target, follow_links(path));
    const auto [folder, name] = split_path(target);
    if (name.empty()) return missing(path);
    SIDESTEP_TRY(const auto facts, file_facts(folder));
    if (facts && facts->type == FileType::directory) return {};
    if (facts)
        return Error{ErrorCode::not_found,
                     fmt::format("there is no {}: {} is a {}", path, folder, to_string(facts->type)),
                     "file:" + path, "check the path"};
    return Error{ErrorCode::not_found, fmt::format("there is no {}, nor the folder {}", path, folder),
                 "file:" + path, "create the folder, or check the path"};
}

Result<void> check_read_range(const Buffer& buffer, const FileFacts& facts) {
    if (buffer.size() == Buffer::whole || buffer.offset() + buffer.size() <= facts.size) return {};
    return Error{ErrorCode::end_of_file,
                 fmt::format("{} bytes from {} on were asked for, but {} has {} bytes", buffer.size(),
                             buffer.offset(), buffer.place().path(), facts.size),
                 buffer.to_string(), "give a range within the file"};
}

Result<void> check_write_range(const Buffer& buffer, Bytes bytes, const FileFacts& facts) {
    if (facts.type != FileType::block_device || buffer.offset() + bytes <= facts.size) return {};
    return Error{ErrorCode::no_space,
                 fmt::format("{} bytes from {} on do not fit in {}, which has {} bytes", bytes,
                             buffer.offset(), buffer.place().path(), facts.size),
                 buffer.to_string(), "write less, or to a larger device"};
}

}  // namespace

Result<std::optional<FileFacts>> inspect(const Buffer& buffer) {
    const std::string& path = buffer.place().path();
    if (path.empty() || path.find('\0') != std::string::npos) {
        return Error{ErrorCode::invalid_argument, "a file needs a path", "file:" + path, {}};
    }
    constexpr auto highest = static_cast<Bytes>(std::numeric_limits<std::int64_t>::max());
    if (buffer.offset() > highest ||
        (buffer.size() != Buffer::whole && buffer.size() > highest - buffer.offset())) {
        return Error{ErrorCode::invalid_argument, "no file reaches so far", buffer.to_string(), {}};
    }
    SIDESTEP_TRY(const auto facts, file_facts(path));
    if (!facts) {
        if (!buffer.whole_file()) return missing(path);
        SIDESTEP_CHECK(check_folder(path));
        return std::optional<FileFacts>{};
    }
    if (facts->type != FileType::regular && facts->type != FileType::block_device) {
        return wrong_kind(path, facts->type);
    }
    if (buffer.offset() > facts->size) {
        return Error{ErrorCode::end_of_file,
                     fmt::format("offset {} lies beyond the end of {}, which has {} bytes", buffer.offset(),
                                 path, facts->size),
                     buffer.to_string(), "give an offset within the file"};
    }
    return facts;
}

Result<void> OpenedFile::open(const Buffer& buffer, const OpenedFileOptions& options) {
    path_ = buffer.place().path();
    writes_ = options.write;
    return options.write ? open_target(buffer, options) : open_source(buffer, options);
}

Result<void> OpenedFile::open_source(const Buffer& buffer, const OpenedFileOptions& options) {
    SIDESTEP_TRY(const auto facts, inspect(buffer));
    if (!facts) return missing(path_);
    type_ = facts->type;
    SIDESTEP_CHECK(check_read_range(buffer, *facts));
    SIDESTEP_TRY(plain_, open_file(path_, O_RDONLY));
    SIDESTEP_CHECK(check_opened(plain_, path_, options.identity, options.version));
    if (type_ == FileType::regular && facts->size == 0 && has_hidden_content(plain_))
        return Error{ErrorCode::unsupported,
                     fmt::format("{} has content, but says that its size is 0", path_),
                     buffer.place().to_string(), "copy it to an ordinary file first, for example with cat"};
    return {};
}

Result<void> OpenedFile::open_target(const Buffer& buffer, const OpenedFileOptions& options) {
    SIDESTEP_TRY(const auto facts, inspect(buffer));
    if (facts) type_ = facts->type;
    begin_ = buffer.offset();
    sparse_ = options.sparse;
    bytes_ = buffer.whole_file() ? options.expected_size : buffer.size();
    // A whole block device is written in place too: there is nothing to rename.
    if (buffer.whole_file() && type_ == FileType::regular) {
        SIDESTEP_TRY(auto replaced, ReplacedFile::begin(path_, options.unnamed, options.folders));
        replaced_.emplace(std::move(replaced));
        return {};
    }
    SIDESTEP_CHECK(check_write_range(buffer, bytes_, *facts));
    // O_EXCL: the kernel refuses a device that is mounted, or part of another one.
    auto opened = open_file(path_, type_ == FileType::block_device ? O_RDWR | O_EXCL : O_RDWR);
    if (!opened && opened.error().code == ErrorCode::permission_denied && options.never_read &&
        type_ == FileType::regular)
        opened = open_file(path_, O_WRONLY);
    SIDESTEP_TRY(plain_, std::move(opened));
    return check_opened(plain_, path_, options.identity, options.version);
}

Result<void> OpenedFile::reserve() {
    if (type_ == FileType::block_device) return {};
    if (is_sparse()) return set_size(fd(), bytes_, path_);
    reserved_ = !replaces();
    return reserve_space(fd(), begin_, bytes_, !replaces(), path_);
}

Result<void> OpenedFile::commit(bool sync) {
    reserved_ = false;
    if (replaced_) return replaced_->commit(sync);
    return writes_ && sync ? flush_file(plain_, path_) : Result<void>();
}

}  // namespace sidestep::driver
