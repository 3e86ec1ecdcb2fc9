// Files as ends of copies: what a file buffer refers to, and opening it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/buffer.hpp>
#include "driver/fd.hpp"
#include "driver/files.hpp"
#include "driver/replaced_file.hpp"

namespace sidestep::driver {

// Nothing where no file is there but one can be made: a whole-file target. Fails where the path is
// neither a regular file nor a block device, where it leads nowhere and its folder is missing or a range
// was asked for, and where a range begins beyond the end.
Result<std::optional<FileFacts>> inspect(const Buffer& buffer);

struct OpenedFileOptions {
    bool write = false;
    std::uint64_t identity = 0;  // as for check_opened(); like the next
    std::uint64_t version = 0;
    Bytes expected_size = 0;  // of a target that has no size: bytes that will be written
    bool unnamed = true;      // as for ReplacedFile::begin(), like the next
    OpenFolders* folders = nullptr;
    bool sparse = false;      // of a whole-file target: not all of its bytes will be written
    bool never_read = false;  // of a range to be written: the right to write is enough
};

// A source, which may be read as far as the buffer says; a range of a file or a block device that is written in place; or
// a whole-file target, which takes the place of what has its name when it is committed.
class OpenedFile {
public:
    OpenedFile() = default;
    OpenedFile(const OpenedFile&) = delete;
    OpenedFile& operator=(const OpenedFile&) = delete;
    ~OpenedFile() {
        if (reserved_) give_back_space(plain_, begin_, bytes_);
    }

    // Once, before all else. Fails as inspect(), and where the range does not lie in the file. A regular file may grow, but only from its end on,
    // so that no holes come about by accident; a block device cannot (ErrorCode::no_space).
    Result<void> open(const Buffer& buffer, const OpenedFileOptions& options);

    const Fd& fd() const { return replaced_ ? replaced_->fd() : plain_; }
    FileType type() const { return type_; }
    bool replaces() const { return replaced_.has_value(); }
    // It has its size, and holes wherever nothing is written.
    bool is_sparse() const { return replaces() && sparse_; }

    // Of targets: takes space for what will be written, so that a full disk shows early. ErrorCode::no_space. One that
    // is sparse only gets its size.
    Result<void> reserve();
    // Makes what was written final; of a source nothing. At most once; without it a whole-file target leaves no trace, and
    // one that is written in place gives back what it took beyond its end.
    Result<void> commit(bool sync);
    // What went otherwise than wished.
    std::vector<std::string> notes() const {
        return replaced_ ? replaced_->notes() : std::vector<std::string>();
    }

private:
    Result<void> open_source(const Buffer& buffer, const OpenedFileOptions& options);
    Result<void> open_target(const Buffer& buffer, const OpenedFileOptions& options);

    std::string path_;
    bool writes_ = false;
    FileType type_ = FileType::regular;
    Fd plain_;                              // of a source, or a target written in place
    std::optional<ReplacedFile> replaced_;  // a whole-file target
    Bytes begin_ = 0;                       // what will be written
    Bytes bytes_ = 0;
    bool sparse_ = false;
    bool reserved_ = false;  // for a target written in place that is not final
};

}  // namespace sidestep::driver
