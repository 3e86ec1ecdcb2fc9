// Threads of backends that go on with the copies whose pieces they carry out.
#pragma once

#include <condition_variable>
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
    // An activity, and a thread that is at it.
    struct Place {
        explicit Place(Activity& whose) : activity(whose) {}
        Activity& activity;
        bool taken = false;
        bool asked = false;  // somebody came since its last look began
    };

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
        std::shared_ptr<Place> place_;
    };

    Entry enter(Activity& activity);

    // Called by threads of backends: takes each activity on that nobody else is at. Whoever is at one has another look
    // for those that come meanwhile, who go on to the next activity: one that opens a file for long keeps nobody from
    // the others.
    void progress();

    // None is driven so any more. Waits for threads that are at it.
    void close();

private:
    std::mutex mutex_;  // guards what follows; never held while an activity is taken on
    std::condition_variable left_;
    std::vector<std::shared_ptr<Place>> places_;
};

}  // namespace sidestep::transfer
