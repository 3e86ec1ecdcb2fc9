// Ctrl-C.
#pragma once

#include <functional>
#include <memory>

namespace sidestep::cli {

struct Globals;

// While it lives, SIGINT, SIGTERM and SIGHUP (unless that was ignored before) reach a thread of its own instead of ending
// the process at any instruction. To be made before any other thread, so that those inherit the blocked signals and no
// system call of theirs is interrupted.
//
// A signal ends the process at once with exit code 130, unless `Cancellable` says that there is something
// to cancel first; then requested() turns true, and only a second signal ends the process. `last` is called
// before the process ends, on that thread, while others are at work. With --json a document is printed in any case.
class Interrupt {
public:
    explicit Interrupt(const Globals& globals, std::function<void()> last = {});
    ~Interrupt();
    Interrupt(const Interrupt&) = delete;
    Interrupt& operator=(const Interrupt&) = delete;

    bool requested() const;

    // The time in which a signal is a wish, not the end.
    class Cancellable {
    public:
        explicit Cancellable(Interrupt& interrupt);
        ~Cancellable();
        Cancellable(const Cancellable&) = delete;
        Cancellable& operator=(const Cancellable&) = delete;

    private:
        Interrupt& interrupt_;
    };

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace sidestep::cli
