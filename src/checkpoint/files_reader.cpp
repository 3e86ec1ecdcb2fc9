#include "checkpoint/files_reader.hpp"

#include <fmt/format.h>

#include <sidestep/place.hpp>
#include "base/try.hpp"

namespace sidestep::checkpoint {

namespace {

Result<OpenFile> open_far(const std::string& path, const FarFilesPtr& far) {
    SIDESTEP_TRY(const auto facts, far->facts(path));
    if (!facts)
        return Error{ErrorCode::not_found,
                     fmt::format("there is no {}", Place::file(path).on(far->node).to_string()),
                     path,
                     {}};
    return OpenFile{driver::Fd(), *facts, path, far};
}

}  // namespace

Result<std::optional<driver::FileFacts>> facts_of(const std::string& path, const FarFilesPtr& far) {
    return far ? far->facts(path) : driver::file_facts(path);
}

Result<OpenFile> open_regular(const std::string& path, const FarFilesPtr& far) {
    if (far) return open_far(path, far);
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
    if (file.far) {
        if (offset > file.facts.size || size > file.facts.size - offset)
            return Error{ErrorCode::end_of_file,
                         fmt::format("{} ends before byte {}", file.path, offset + size),
                         file.path,
                         {}};
        if (size > 0) SIDESTEP_CHECK(file.far->read(file.path, offset, text.data(), size));
        return text;
    }
    SIDESTEP_CHECK(driver::read_range(file.fd, offset, text.data(), size, file.path));
    return text;
}

Result<std::string> read_whole(const std::string& path, Bytes max, const std::string& what,
                               const FarFilesPtr& far) {
    SIDESTEP_TRY(const OpenFile file, open_regular(path, far));
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
