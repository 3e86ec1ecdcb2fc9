#include "transfer/progress_list.hpp"

#include <algorithm>
#include <utility>

namespace sidestep::transfer {

ProgressList::Entry& ProgressList::Entry::operator=(Entry&& other) noexcept {
    std::swap(of_, other.of_);
    std::swap(place_, other.place_);
    return *this;
}

void ProgressList::Entry::leave() {
    if (!of_) return;
    {
        std::unique_lock lock(of_->mutex_);
        std::erase(of_->places_, place_);
        of_->left_.wait(lock, [this] { return !place_->taken; });
    }
    of_.reset();
}

ProgressList::Entry ProgressList::enter(Activity& activity) {
    const std::lock_guard lock(mutex_);
    places_.push_back(std::make_shared<Place>(activity));
    Entry entry;
    entry.of_ = shared_from_this();
    entry.place_ = places_.back();
    return entry;
}

void ProgressList::progress() {
    std::unique_lock lock(mutex_);
    const std::vector<std::shared_ptr<Place>> places = places_;
    for (const std::shared_ptr<Place>& place : places) {
        if (std::find(places_.begin(), places_.end(), place) == places_.end()) continue;  // it has left
        place->asked = true;
        // Whoever is at it has another look.
        if (place->taken) continue;
        place->taken = true;
        while (std::exchange(place->asked, false)) {
            lock.unlock();
            place->activity.assist();
            lock.lock();
        }
        place->taken = false;
        left_.notify_all();
    }
}

void ProgressList::close() {
    std::unique_lock lock(mutex_);
    for (const std::shared_ptr<Place>& place : std::exchange(places_, {}))
        left_.wait(lock, [&] { return !place->taken; });
}

}  // namespace sidestep::transfer
