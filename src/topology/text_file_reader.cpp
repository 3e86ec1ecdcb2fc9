#include "topology/text_file_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <sidestep/units.hpp>

namespace sidestep::topology {

namespace {

Error file_error(const std::string& path, const TextFileKind& kind, const char* what, int number) {
    ErrorCode code = ErrorCode::io_error;
    std::string hint;
    if (number == ENOENT || number == ENOTDIR) {
        code = ErrorCode::not_found;
        hint = kind.absent;
    }
    if (number == EACCES || number == EPERM) code = ErrorCode::permission_denied;
    return Error{code, fmt::format("the {} cannot be {}: {}", kind.name, what, std::strerror(number)), path,
                 hint};
}

Result<std::string> read_all(int fd, const std::string& path, std::size_t max, const TextFileKind& kind) {
    struct stat status = {};
    if (::fstat(fd, &status) != 0) return file_error(path, kind, "read", errno);
    if (!S_ISREG(status.st_mode)) {
        return Error{ErrorCode::invalid_argument, fmt::format("the {} is not a regular file", kind.name),
                     path, ""};
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size > max) {
        return Error{
            ErrorCode::invalid_argument,
            fmt::format("the {} holds {}, more than {}", kind.name, format_bytes(size), format_bytes(max)),
            path, ""};
    }
    std::string text(size, '\0');
    std::size_t filled = 0;
    while (filled < size) {
        const ssize_t got = ::read(fd, text.data() + filled, size - filled);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return file_error(path, kind, "read", errno);
        if (got == 0) break;  // cut off meanwhile; the parser will say where it ends
        filled += static_cast<std::size_t>(got);
    }
    text.resize(filled);
    return text;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::size_t max, const TextFileKind& kind) {
    // O_NONBLOCK: a pipe without a writer would keep open() waiting.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_error(path, kind, "opened", errno);
    auto text = read_all(fd, path, max, kind);
    ::close(fd);
    return text;
}

Error at_file(Error error, const std::string& where) {
    if (!where.empty()) error.where = error.where.empty() ? where : where + ": " + error.where;
    return error;
}

}  // namespace sidestep::topology
