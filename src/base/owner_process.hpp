// Objects that a child of fork() has a copy of: without the threads behind them, and with rings, sockets and shared
// memory that are still their maker's.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include <sidestep/result.hpp>

namespace sidestep::base {

// The process that made this object. A look costs a load; from any thread.
class OwnerProcess {
public:
    OwnerProcess();
    // This is a child of it, or a child's child, by fork().
    bool forked() const;
    // ErrorCode::unsupported there. `what` begins the sentence: "this Context".
    Result<void> check(std::string_view what) const;

private:
    unsigned forks_;
};

// Like std::make_shared, but a forked child never ends the object: that would wait for threads which it does not have,
// take locks which one of them held, or undo what is still its parent's.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_shared_here(Arguments&&... arguments) {
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), [here = OwnerProcess()](T* last) {
        if (!here.forked()) delete last;
    });
}

}  // namespace sidestep::base
