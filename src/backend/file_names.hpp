// The names in folders that are not on this machine.
#pragma once

#include <string>
#include <vector>

#include <sidestep/place.hpp>
#include <sidestep/result.hpp>

namespace sidestep::backend {

// A backend whose places have folders. Any thread; may block.
class FileNames {
public:
    virtual ~FileNames() = default;
    // As driver::names_in: of the files right in the folder, sorted, none that begins with a dot.
    virtual Result<std::vector<std::string>> names_in(const Place& folder) = 0;
};

}  // namespace sidestep::backend
