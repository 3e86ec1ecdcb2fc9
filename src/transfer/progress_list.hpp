// Threads of backends that go on with the copies whose pieces they carry out.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "transfer/activity.hpp"

namespace sidestep::transfer {

// A thread that has just read a piece takes its copy on at once, where a thread that drives has to look for
// it all the time and keeps a processor from reading meanwhile, or sleeps and is late.
//
// The activities are not owned: a thread of a backend must never be the one that drops the last handle of a
// copy, which may hold the backend. Safe to use from several threads.
class ProgressList : public std::enable_shared_from_this<ProgressList> {
public:
    // An activity that threads of backends drive as long as this lives. Its end waits for a thread that is at it.
    class Entry {
    public:
        Entry() = default;
        Entry(Entry&& other) noexcept { *this = std::move(other); }
        Entry& operator=(Entry&& other) noexcept;
        ~Entry() { leave(); }
        void leave();

    private:
        friend class ProgressList;
        std::shared_ptr<ProgressList> of_;
        Activity* activity_ = nullptr;
    };

    Entry enter(Activity& activity);

    // Called by threads of backends: takes each activity on that nobody else is at. One thread at a time; for
    // the others it is over at once, so that they go back to their work, and that one has another look for
    // them.
    void progress();

    // None is driven so any more.
    void close();

private:
    std::atomic<bool> asked_{false};  // somebody came since the last look began
    std::mutex mutex_;                // guards what follows, and held while activities are taken on
    std::vector<Activity*> activities_;
};

}  // namespace sidestep::transfer
