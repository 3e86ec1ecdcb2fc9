// A small file that tells of large ones: written aside while they have no names yet, named after them.
#pragma once

#include <optional>
#include <string>

#include "driver/replaced_file.hpp"

namespace sidestep::checkpoint {

// An index or a manifest. A full disk shows in prepare(), before anything is lost. None of the three does
// anything where nothing was prepared.
class ClosingFile {
public:
    // Writes the content aside.
    Result<void> prepare(const std::string& path, const std::string& text);
    // Takes the one of an earlier checkpoint away, so that at no time it tells of files that it was not made
    // for.
    Result<void> remove_earlier() const;
    // Gives the prepared one its name. At most once.
    Result<void> commit(bool sync);

private:
    std::string path_;
    std::optional<driver::ReplacedFile> file_;
};

}  // namespace sidestep::checkpoint
