#include "transfer/progress_list.hpp"

#include <algorithm>
#include <utility>

namespace sidestep::transfer {

ProgressList::Entry& ProgressList::Entry::operator=(Entry&& other) noexcept {
    std::swap(of_, other.of_);
    std::swap(activity_, other.activity_);
    return *this;
}

void ProgressList::Entry::leave() {
    if (!of_) return;
    {
        const std::lock_guard lock(of_->mutex_);
        std::erase(of_->activities_, activity_);
    }
    of_.reset();
}

ProgressList::Entry ProgressList::enter(Activity& activity) {
    const std::lock_guard lock(mutex_);
    activities_.push_back(&activity);
    Entry entry;
    entry.of_ = shared_from_this();
    entry.activity_ = &activity;
    return entry;
}

void ProgressList::progress() {
    asked_.store(true);
    // Whoever finds the lock taken leaves what it has just ended to the one that holds it.
    while (asked_.load()) {
        const std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock.owns_lock()) return;
        asked_.store(false);
        for (Activity* activity : activities_) activity->assist();
    }
}

void ProgressList::close() {
    const std::lock_guard lock(mutex_);
    activities_.clear();
}

}  // namespace sidestep::transfer
