#include "interrupt.hpp"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "globals.hpp"
#include "report.hpp"

namespace sidestep::cli {

struct Interrupt::State {
    sigset_t signals{};
    sigset_t before{};
    std::mutex mutex;
    bool cancellable = false;
    bool requested = false;
    bool ended = false;
    std::function<void()> last;
    bool json = false;
    std::thread watcher;

    void watch() {
        for (;;) {
            int number = 0;
            if (sigwait(&signals, &number) != 0) return;
            const std::lock_guard lock(mutex);
            if (ended) return;
            // Nothing to cancel, or asked twice. Other threads are at work: no destructor may run.
            if (!cancellable || requested) {
                if (last) last();
                report_interrupt(json);
                _exit(static_cast<int>(ExitCode::interrupted));
            }
            requested = true;
        }
    }
};

Interrupt::Interrupt(const Globals& globals, std::function<void()> last) : state_(std::make_unique<State>()) {
    state_->last = std::move(last);
    state_->json = globals.json;
    sigemptyset(&state_->signals);
    sigaddset(&state_->signals, SIGINT);
    sigaddset(&state_->signals, SIGTERM);
    // A terminal that was lost. Who started this under nohup wants it to go on, and a blocked signal comes though it is
    // ignored.
    struct sigaction hangup {};
    if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(&state_->signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &state_->signals, &state_->before);
    state_->watcher = std::thread([state = state_.get()] { state->watch(); });
}

Interrupt::~Interrupt() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->ended = true;
    }
    // Wakes the watcher; the signal is meant for that thread alone, where it is blocked and waited for.
    pthread_kill(state_->watcher.native_handle(), SIGTERM);
    state_->watcher.join();
    pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
}

bool Interrupt::requested() const {
    const std::lock_guard lock(state_->mutex);
    return state_->requested;
}

Interrupt::Cancellable::Cancellable(Interrupt& interrupt) : interrupt_(interrupt) {
    const std::lock_guard lock(interrupt_.state_->mutex);
    interrupt_.state_->cancellable = true;
}

Interrupt::Cancellable::~Cancellable() {
    const std::lock_guard lock(interrupt_.state_->mutex);
    interrupt_.state_->cancellable = false;
}

}  // namespace sidestep::cli
