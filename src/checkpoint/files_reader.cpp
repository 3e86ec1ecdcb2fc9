#include "checkpoint/files_reader.hpp"

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::checkpoint {

Result<OpenFile> open_regular(const std::string& path) {
    OpenFile file;
    SIDESTEP_TRY(file.fd, driver::open_to_read(path));
    SIDESTEP_TRY(file.facts, driver::file_facts(file.fd, path));
    file.path = path;
    if (file.facts.type != driver::FileType::regular) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is a {}, where a regular file is expected", path,
                                 driver::to_string(file.facts.type)),
                     path,
                     {}};
    }
    return file;
}

Result<std::string> read_text(const OpenFile& file, Bytes offset, Bytes size) {
    std::string text(size, '\0');
    SIDESTEP_CHECK(driver::read_range(file.fd, offset, text.data(), size, file.path));
    return text;
}

Result<std::string> read_whole(const std::string& path, Bytes max, const std::string& what) {
    SIDESTEP_TRY(const OpenFile file, open_regular(path));
    if (file.facts.size > max) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} has {}, and at most {} are read", what, format_bytes(file.facts.size),
                                 format_bytes(max)),
                     path,
                     {}};
    }
    return read_text(file, 0, file.facts.size);
}

}  // namespace sidestep::checkpoint
