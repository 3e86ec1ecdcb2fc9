// A file that appears under its name all at once.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include "driver/fd.hpp"
#include "driver/open_folders.hpp"

namespace sidestep::driver {

// Takes what is written to fd() aside, in the folder of the target, and gives it the target's name in
// commit(). Where the file system knows O_TMPFILE the new file has no name until then; elsewhere, and for a moment in
// commit() where it replaces another, it is called ".NAME.sidestep-N" and locked (flock(2)). The destructor removes it. What
// a killed process left under such a name nobody locks: the next file of that name removes it, and remove_leftovers(). Links at the target's path stay: what they point at is replaced. The new file keeps the
// mode, and where the process may, the owner of the old one; other hard links keep the old content.
// Not thread-safe; fd() may be written by any thread.
class ReplacedFile {
public:
    // `unnamed` = false goes without O_TMPFILE, as on a file system that does not know it. `folders`: those that other
    // files have open; null: this one opens its own.
    static Result<ReplacedFile> begin(const std::string& path, bool unnamed = true,
                                      OpenFolders* folders = nullptr);

    ReplacedFile(ReplacedFile&&) noexcept = default;
    ReplacedFile& operator=(ReplacedFile&&) = delete;
    ~ReplacedFile();

    const Fd& fd() const { return fd_; }

    // Gives the file its name; with `sync` after its bytes, and before the folder's entry, were flushed.
    // At most once.
    Result<void> commit(bool sync);

    // What went otherwise than wished ("the new file belongs to user 0").
    const std::vector<std::string>& notes() const { return notes_; }

private:
    ReplacedFile() = default;
    Result<void> open_unnamed_or_named(bool unnamed);
    bool open_named(int& number);
    void keep_owner_and_mode();
    Result<void> link_as(const std::string& name, bool& exists) const;
    Result<void> name_unnamed();

    std::string path_;       // as the caller knows it
    std::string name_;       // of the target, in folder_
    std::string temporary_;  // the name it has meanwhile, in folder_; empty: none
    std::shared_ptr<const Fd> folder_;
    Fd fd_;
    bool replaces_ = false;  // the target was there when this began
    std::vector<std::string> notes_;
};

// Removes what killed processes left of files that were to appear in the folder, and answers their names. Files that are
// being written are locked, and stay. Waits that long in all for locks: the kernel may let go of what a killed process had
// open a moment after the process is gone (io_uring's writes, FUSE).
Result<std::vector<std::string>> remove_leftovers(const std::string& folder, std::chrono::milliseconds wait);

}  // namespace sidestep::driver
