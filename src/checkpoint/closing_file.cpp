#include "checkpoint/closing_file.hpp"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"

namespace sidestep::checkpoint {

Result<void> ClosingFile::prepare(const std::string& path, const std::string& text) {
    auto file = driver::ReplacedFile::begin(path);
    if (!file) return file.error();
    SIDESTEP_CHECK(driver::write_range(file->fd(), 0, text.data(), text.size(), path));
    path_ = path;
    file_.emplace(std::move(*file));
    return {};
}

Result<void> ClosingFile::remove_earlier() const {
    if (!file_) return {};
    SIDESTEP_TRY(const std::string target, driver::follow_links(path_));
    std::error_code failure;
    std::filesystem::remove(target, failure);
    if (failure)
        return Error{
            ErrorCode::io_error,
            fmt::format("{} of an earlier checkpoint cannot be removed: {}", path_, failure.message()),
            path_,
            {}};
    return {};
}

Result<void> ClosingFile::commit(bool sync) {
    if (!file_) return {};
    const Result<void> done = file_->commit(sync);
    file_.reset();
    return done;
}

}  // namespace sidestep::checkpoint
