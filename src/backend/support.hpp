// Whether something works here, as data: the reason is what the product is about.
#pragma once

#include <string>
#include <utility>

namespace sidestep::backend {

struct Support {
    bool usable = false;
    std::string reason;  // why not; or, when usable, what was found ("4 GPUs, driver 580.159.04")
    std::string remedy;  // what would make it usable; may be empty

    static Support yes(std::string found) { return {true, std::move(found), {}}; }
    static Support no(std::string reason, std::string remedy = {}) {
        return {false, std::move(reason), std::move(remedy)};
    }
};

}  // namespace sidestep::backend
