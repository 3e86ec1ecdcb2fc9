#include "checkpoint/closing_file.hpp"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/files_reader.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr Bytes largest = Bytes{512} << 20;

Result<driver::ReplacedFile> aside(const std::string& path, const std::string& text) {
    SIDESTEP_TRY(auto file, driver::ReplacedFile::begin(path));
    SIDESTEP_CHECK(driver::write_range(file.fd(), 0, text.data(), text.size(), path));
    return file;
}

}  // namespace

Result<void> ClosingFile::prepare(const std::string& path, const std::string& text,
                                  const std::optional<std::string>& meanwhile) {
    SIDESTEP_TRY(auto file, aside(path, text));
    SIDESTEP_TRY(const auto facts, driver::file_facts(path));
    if (facts) {
        SIDESTEP_TRY(const std::string before, read_whole(path, largest, "the one of an earlier checkpoint"));
        SIDESTEP_TRY(auto earlier, aside(path, before));
        earlier_.emplace(std::move(earlier));
    }
    stays_ = !meanwhile;
    if (meanwhile && !meanwhile->empty()) {
        SIDESTEP_TRY(auto in_place, aside(path, *meanwhile));
        meanwhile_.emplace(std::move(in_place));
    }
    path_ = path;
    file_.emplace(std::move(file));
    return {};
}

Result<void> ClosingFile::remove() const {
    SIDESTEP_TRY(const std::string target, driver::follow_links(path_));
    std::error_code failure;
    std::filesystem::remove(target, failure);
    if (!failure) return {};
    return Error{ErrorCode::io_error,
                 fmt::format("{} of an earlier checkpoint cannot be removed: {}", path_, failure.message()),
                 path_,
                 {}};
}

Result<void> ClosingFile::set_aside(bool sync) {
    if (!file_ || stays_) return {};
    SIDESTEP_CHECK(meanwhile_ ? meanwhile_->commit(sync) : remove());
    meanwhile_.reset();
    is_aside_ = true;
    return {};
}

Result<void> ClosingFile::put_back(bool sync) {
    if (!is_aside_) return {};
    is_aside_ = false;
    return earlier_ ? earlier_->commit(sync) : remove();
}

Result<void> ClosingFile::commit(bool sync) {
    if (!file_) return {};
    const Result<void> done = file_->commit(sync);
    file_.reset();
    earlier_.reset();
    is_aside_ = false;
    return done;
}

}  // namespace sidestep::checkpoint
