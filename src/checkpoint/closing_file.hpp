// A small file that tells of large ones: written aside while they have no names yet, named after them.
#pragma once

#include <optional>
#include <string>

#include "driver/replaced_file.hpp"

namespace sidestep::checkpoint {

// An index or a manifest. A full disk shows in prepare(), before anything is lost. None of the four does
// anything where nothing was prepared.
class ClosingFile {
public:
    // Writes the content aside, and a copy of the file of an earlier checkpoint. `meanwhile` is what stands
    // under the name while the large files get theirs; empty: nothing does; none: the earlier file.
    Result<void> prepare(const std::string& path, const std::string& text,
                         const std::optional<std::string>& meanwhile);
    // Takes the one of an earlier checkpoint away, all at once, so that at no time it tells of files that it
    // was not made for.
    Result<void> set_aside(bool sync);
    // Undoes set_aside(), where no file has got its name.
    Result<void> put_back(bool sync);
    // Gives the prepared one its name. At most once.
    Result<void> commit(bool sync);

private:
    Result<void> remove() const;

    std::string path_;
    std::optional<driver::ReplacedFile> file_;
    std::optional<driver::ReplacedFile> meanwhile_;
    std::optional<driver::ReplacedFile> earlier_;
    bool stays_ = false;  // the earlier file, until commit()
    bool is_aside_ = false;
};

}  // namespace sidestep::checkpoint
