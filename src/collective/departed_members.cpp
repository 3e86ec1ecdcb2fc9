#include "collective/departed_members.hpp"

#include <chrono>
#include <thread>

#include "collective/ending.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// What a context that is closed still waits for ranks that left.
constexpr std::chrono::seconds closing_limit{5};
// What the last member of a process to leave waits for all that left before; and of that, for other processes
// in groups that have failed.
constexpr std::chrono::seconds last_one_limit{5};
constexpr std::chrono::milliseconds failed_limit{300};
constexpr std::chrono::microseconds departed_pause{50};

}  // namespace

DepartedMembers::~DepartedMembers() {
    if (maker_.forked()) {
        for (auto& member : leaving_) ending::keep(member.release());
        return;
    }
    const std::lock_guard lock(mutex_);
    for (auto& member : leaving_) {
        if (ending::begun())
            ending::keep(member.release());
        else
            member->hurry(Clock::now() + closing_limit);
    }
    leaving_.clear();
}

void DepartedMembers::joined() {
    const std::lock_guard lock(mutex_);
    ++living_;
}

std::vector<std::unique_ptr<Member>> DepartedMembers::take_finished() {
    std::vector<std::unique_ptr<Member>> ended;
    for (auto& one : leaving_)
        if (one->finished()) ended.push_back(std::move(one));
    std::erase(leaving_, nullptr);
    return ended;
}

void DepartedMembers::take(std::unique_ptr<Member> member) {
    if (!member) return;
    // What is left then goes with the process.
    if (ending::begun() || member->forked()) return ending::keep(member.release());
    member->leave();
    bool last = false;
    {
        const std::lock_guard lock(mutex_);
        leaving_.push_back(std::move(member));
        last = --living_ == 0;
        // A failed group has no users left for its shared memory, so a rank that does not release it has
        // hung.
        for (const auto& one : leaving_)
            if (last && one->failed()) one->leave_other_processes_behind(Clock::now() + failed_limit);
    }
    const auto until = Clock::now() + last_one_limit;
    for (;;) {
        std::vector<std::unique_ptr<Member>> ended;  // joins their threads without the lock
        bool done = false;
        {
            const std::lock_guard lock(mutex_);
            ended = take_finished();
            done = !last || leaving_.empty() || living_ > 0 || Clock::now() >= until;
        }
        if (done) return;
        ended.clear();
        std::this_thread::sleep_for(departed_pause);
    }
}

}  // namespace sidestep::collective
