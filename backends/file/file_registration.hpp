// Files opened for reading or writing.
#pragma once

#include <atomic>
#include <optional>

#include "backend/backend.hpp"
#include "driver/fd.hpp"
#include "driver/files.hpp"
#include "driver/replaced_file.hpp"

namespace sidestep::backends::file {

// An open file. One opened for writing can be read as well.
class FileRegistration final : public backend::Registration {
public:
    static Result<std::unique_ptr<FileRegistration>> open(const Buffer& buffer,
                                                          const backend::AttachOptions& options);

    const std::string& path() const { return buffer().place().path(); }
    bool writable() const { return options_.access == backend::Access::write; }
    bool strict() const { return options_.strict; }
    // Whether bytes are to go around the page cache, and can.
    bool direct() const { return static_cast<bool>(direct_); }
    const driver::Fd& fd(bool around_cache) const {
        if (around_cache) return direct_;
        return replaced_ ? replaced_->fd() : plain_;
    }

    // Counts bytes that were to go around the page cache but did not. Any thread.
    void count_through_cache(Bytes bytes) { through_cache_.fetch_add(bytes, std::memory_order_relaxed); }

    Result<void> commit() override;
    std::vector<std::string> notes() const override;

private:
    FileRegistration(const Buffer& buffer, const backend::AttachOptions& options)
        : Registration(buffer), options_(options) {}
    Result<void> open_source();
    Result<void> open_whole_target();
    Result<void> open_in_place(const driver::FileFacts& facts, Bytes bytes);
    Result<void> go_direct();

    const backend::AttachOptions options_;
    driver::Fd plain_;                              // of a source, or a target written in place
    std::optional<driver::ReplacedFile> replaced_;  // a whole-file target
    driver::Fd direct_;                             // the same file with O_DIRECT
    std::vector<std::string> notes_;
    std::atomic<Bytes> through_cache_{0};
};

}  // namespace sidestep::backends::file
