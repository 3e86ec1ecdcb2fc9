#include "operand.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fmt/format.h>

#include "base/nearest_name.hpp"
#include "base/try.hpp"

namespace sidestep::cli {
namespace {

// The range in "PATH@OFFSET+SIZE", and in `path` what stands before it.
std::optional<FileRange> take_range(std::string_view& path) {
    const std::size_t at = path.rfind('@');
    if (at == std::string_view::npos || at == 0) return std::nullopt;
    const std::string_view suffix = path.substr(at + 1);
    const std::size_t plus = suffix.find('+');
    if (plus == std::string_view::npos) return std::nullopt;
    const auto offset = parse_bytes(suffix.substr(0, plus));
    const auto size = parse_bytes(suffix.substr(plus + 1));
    if (!offset || !size) return std::nullopt;
    path = path.substr(0, at);
    return FileRange{*offset, *size};
}

Error system_error(int number, const std::string& path) {
    ErrorCode code = ErrorCode::io_error;
    if (number == ENOENT || number == ENOTDIR) code = ErrorCode::not_found;
    if (number == ENAMETOOLONG || number == ELOOP) code = ErrorCode::invalid_argument;
    if (number == EACCES || number == EPERM) code = ErrorCode::permission_denied;
    return Error{code, fmt::format("file:{}: {}", path, std::generic_category().message(number)), "SRC", {}};
}

Result<Bytes> block_device_size(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return system_error(errno, path);
    const off_t size = ::lseek(fd, 0, SEEK_END);
    const int number = errno;
    ::close(fd);
    if (size < 0) return system_error(number, path);
    return static_cast<Bytes>(size);
}

const char* kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "directory";
    if (S_ISFIFO(mode)) return "pipe";
    if (S_ISSOCK(mode)) return "socket";
    return "character device";
}

// A memory target has to be allocated before the copy, so the size is asked here.
Result<Bytes> file_size(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return system_error(errno, path);
    if (S_ISREG(status.st_mode)) return static_cast<Bytes>(status.st_size);
    if (S_ISBLK(status.st_mode)) return block_device_size(path);
    return Error{ErrorCode::invalid_argument, fmt::format("file:{} is a {}", path, kind_of(status.st_mode)),
                 "SRC", "only regular files and block devices have a size"};
}

// Published memory with a range, which no place is by itself: its name does not hold these characters.
std::optional<Operand> parse_range_of_shared(std::string_view text) {
    const auto range = take_range(text);
    const auto place = Place::parse(text);
    if (!range || !place || !place->is_shared()) return std::nullopt;
    return Operand{*place, range};
}

}  // namespace

Error bad_place(std::string_view text, Error error, const char* where) {
    std::string_view kind = text.substr(0, text.find(':'));
    const std::string_view node = kind.substr(0, kind.rfind('/') + 1);
    kind.remove_prefix(node.size());
    const std::string near = base::nearest_name(kind, {"host", "gpu", "file", "shared", "p2pmem"});
    if (!near.empty() && near != kind)
        error.hint = fmt::format("did you mean '{}{}{}'? {}", node, near,
                                 text.substr(node.size() + kind.size()), error.hint);
    error.where = where;
    return error;
}

Result<Operand> parse_operand(std::string_view text, const char* where) {
    if (auto shared = parse_range_of_shared(text)) return *shared;
    auto place = Place::parse(text);
    if (!place) return bad_place(text, place.error(), where);
    Operand operand{*place, std::nullopt};
    if (!place->is_file()) return operand;
    std::string_view path = place->path();
    operand.range = take_range(path);
    if (!operand.range) return operand;
    if (operand.range->offset + operand.range->size < operand.range->offset)
        return Error{
            ErrorCode::invalid_argument, fmt::format("'{}' ends beyond 2^64 bytes", text), where, {}};
    operand.place = Place::file(std::string(path)).on(place->node());
    return operand;
}

std::vector<std::string> checkpoint_paths(std::vector<std::string> words) {
    for (std::string& word : words)
        if (const auto place = Place::parse(word); place && place->is_file() && place->node().empty())
            word = place->path();
    return words;
}

Result<Bytes> copy_size(const Operand& from, const Operand& to, const CopyFlags& flags) {
    if (from.place.is_file()) {
        if (flags.size)
            return Error{ErrorCode::invalid_argument,
                         fmt::format("--size is for memory sources, {} has a size", from.place.to_string()),
                         "--size",
                         fmt::format("for a part of it write {}@OFFSET+SIZE", from.place.to_string())};
        if (from.range) return from.range->size;
        if (!from.place.node().empty()) return Buffer::whole;
        return file_size(from.place.path());
    }
    if (from.place.is_shared() && from.range) return from.range->size;
    if (flags.size) return *flags.size;
    if (from.place.is_shared() && to.place.is_file()) return Buffer::whole;
    if (from.place.is_shared())
        return Error{ErrorCode::invalid_argument, "how many bytes of it are to be copied?",
                     from.place.to_string(),
                     fmt::format("give --size, or write {}@OFFSET+SIZE", from.place.to_string())};
    return to.range ? to.range->size : default_size;
}

Result<End> open_end(const Context& context, const Operand& operand, Bytes bytes) {
    const std::string& node = operand.place.node();
    if (operand.place.is_file()) {
        const std::string& path = operand.place.path();
        if (!operand.range) return End{Buffer::file(path).on(node), {}};
        return End{Buffer::file(path, operand.range->offset, operand.range->size).on(node), {}};
    }
    if (operand.place.is_shared()) {
        const Bytes offset = operand.range ? operand.range->offset : 0;
        const Bytes size = operand.range ? operand.range->size : bytes;
        return End{Buffer::shared(operand.place.path(), offset, size).on(node), {}};
    }
    // An empty file still needs an address to go to.
    SIDESTEP_TRY(auto memory, context.allocate(operand.place, std::max<Bytes>(bytes, 1)));
    End end;
    end.buffer = memory.buffer().slice(0, bytes);
    end.memory = std::move(memory);
    return end;
}

}  // namespace sidestep::cli
