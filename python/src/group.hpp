// One rank of a group of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <pybind11/pybind11.h>

#include <sidestep/group.hpp>

namespace sidestep::python {

// Leaving waits for others: without the GIL.
class PyGroup {
public:
    explicit PyGroup(Group group) : group_(std::make_unique<Group>(std::move(group))) {}
    PyGroup(const PyGroup&) = delete;
    PyGroup& operator=(const PyGroup&) = delete;
    ~PyGroup() {
        const pybind11::gil_scoped_release released;
        group_.reset();
    }
    Group& operator*() const { return *group_; }
    Group* operator->() const { return group_.get(); }

private:
    std::unique_ptr<Group> group_;
};

// Joins as `rank` of `ranks` of the group `id`, at `place`; with an empty id as the launcher's environment says. Waits for
// the others, without the GIL.
std::unique_ptr<PyGroup> join_group(const Context& context, const std::string& id, int rank, int ranks,
                                    const std::string& place, std::optional<double> timeout,
                                    const std::string& name);

void define_group(pybind11::module_& module);

}  // namespace sidestep::python
