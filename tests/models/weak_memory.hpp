// Runs small programs over every execution that a weak memory model permits.
//
// The model is that of views: Kang et al., "A Promising Semantics for Relaxed-Memory Concurrency", POPL 2017,
// without promises. A location keeps all values ever stored there; a load takes any that is not older than
// what its thread knows. What a store carries along is what a release before it knew.
//
// Not covered: load buffering (there are no promises) and accesses of mixed sizes. A store behind a wait depends on it by
// control, so that load buffering cannot bring it forward. Stores of several threads to one location take the order in
// which they are carried out, so programs say which steps of others have to lie behind them: `behind`.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace sidestep::models {

// take: waits for anything but 0, which has to be the value.
enum class Do { store, store_release, wait, wait_acquire, take, fence, expect };
struct Step {
    Do what;
    unsigned at = 0;
    unsigned value = 0;
    // Of a store: another thread, and how many of its steps lie behind it whenever this one is carried out.
    unsigned other = 0;
    std::size_t behind = 0;
};
using Program = std::vector<Step>;
using View = std::vector<unsigned>;  // per location, the oldest message that may still be read

class Checker {
public:
    Checker(std::vector<Program> threads, unsigned locations) : programs_(std::move(threads)) {
        const View none(locations, 0);
        start_.memory.assign(locations, {{0, none}});
        start_.threads.assign(programs_.size(), {0, none, none, none});
    }

    // An execution in which an expected value is not what a load takes.
    std::optional<std::string> counterexample() { return search(start_, ""); }
    // Whether an execution ran to the end of all programs: waits that nothing ends prove nothing.
    bool ended() const { return ended_; }

private:
    struct Message {
        unsigned value;
        View view;
        auto operator<=>(const Message&) const = default;
    };
    struct Thread {
        unsigned next;
        View now, acquired, released;
        auto operator<=>(const Thread&) const = default;
    };
    struct State {
        std::vector<std::vector<Message>> memory;
        std::vector<Thread> threads;
        auto operator<=>(const State&) const = default;
    };

    static void join(View& into, const View& other) {
        for (unsigned i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
    }

    std::optional<std::string> search(const State& state, const std::string& trace) {
        if (!seen_.insert(state).second) return {};
        bool all = true;
        for (unsigned t = 0; t < programs_.size(); ++t) {
            if (state.threads[t].next == programs_[t].size()) continue;
            all = false;
            if (auto found = step(state, t, trace)) return found;
        }
        ended_ = ended_ || all;
        return {};
    }

    std::optional<std::string> step(const State& state, unsigned t, const std::string& trace) {
        const Step& step = programs_[t][state.threads[t].next];
        const std::string line =
            trace + "thread " + std::to_string(t) + ", location " + std::to_string(step.at);
        State next = state;
        Thread& self = next.threads[t];
        ++self.next;
        if (step.what == Do::fence) {
            join(self.now, self.acquired);
            self.released = self.acquired = self.now;
            return search(next, trace + "thread " + std::to_string(t) + ": fence\n");
        }
        if (step.what == Do::store || step.what == Do::store_release) {
            if (state.threads[step.other].next < step.behind)
                return line + ": stores " + std::to_string(step.value) + " over what thread " +
                       std::to_string(step.other) + " still needs\n";
            self.now[step.at] = static_cast<unsigned>(next.memory[step.at].size());
            join(self.acquired, self.now);
            View view = step.what == Do::store_release ? self.now : self.released;
            view[step.at] = self.now[step.at];
            next.memory[step.at].push_back({step.value, view});
            return search(next, line + ": stores " + std::to_string(step.value) + "\n");
        }
        const auto& messages = state.memory[step.at];
        for (unsigned m = state.threads[t].now[step.at]; m < messages.size(); ++m) {
            const std::string taken = line + ": loads " + std::to_string(messages[m].value);
            if (messages[m].value != step.value) {
                const bool wrong = step.what == Do::take && messages[m].value != 0;
                if (step.what == Do::expect || wrong)
                    return taken + " for " + std::to_string(step.value) + "\n";
                continue;
            }
            State after = next;
            Thread& reader = after.threads[t];
            reader.now[step.at] = m;
            join(reader.acquired, messages[m].view);
            join(reader.acquired, reader.now);
            if (step.what == Do::wait_acquire) join(reader.now, messages[m].view);
            if (auto found = search(after, taken + "\n")) return found;
        }
        return {};
    }

    std::vector<Program> programs_;
    State start_;
    std::set<State> seen_;
    bool ended_ = false;
};

}  // namespace sidestep::models
