// What becomes of a session when its link ends.
#include <utility>
#include <vector>

#include "wire/session.hpp"

namespace sidestep::wire {

void Session::ended(Error error) {
    std::function<void(const Error&)> lost;
    bool goes_on = false;
    {
        std::lock_guard lock(mutex_);
        link_ended_ = true;
        goes_on = outlives_links_ && !end_;
        lost = lost_;
    }
    if (goes_on)
        wait_for_link();
    else
        end_all(error);
    if (lost) lost(error);
}

void Session::outlive_links(std::function<void(const Error&)> lost) {
    std::lock_guard lock(mutex_);
    outlives_links_ = true;
    lost_ = std::move(lost);
}

// What has failed already is not begun again; what the link carried is neither landing nor leaving any more.
void Session::wait_for_link() {
    std::vector<Request> over;
    std::deque<Fetch> fetches;
    {
        std::lock_guard lock(mutex_);
        waits_for_link_ = true;
        fetches.swap(fetches_);
        fetch_places_ = 0;
        confirms_.clear();
        places_.clear();
        on_the_way_ = 0;
        for (auto next = requests_.begin(); next != requests_.end();) {
            const auto one = next++;
            one->second.landing = 0;
            one->second.leaving = 0;
            if (one->second.error) one->second.left = 0;
            if (one->second.over()) over.push_back(take(one));
        }
    }
    for (const Request& request : over) request.end();
}

bool Session::settle(std::chrono::steady_clock::time_point until) const {
    std::unique_lock lock(mutex_);
    return settled_.wait_until(lock, until, [this] { return moving_ == 0; });
}

void Session::moving(int more, std::uint64_t own) {
    Lock lock(mutex_);
    moving_ += more;
    if (moving_ == 0 && waits_for_link_) settled_.notify_all();
    const auto found = requests_.find(own);
    if (found == requests_.end()) return;
    found->second.moving += more;
    end_if_over(std::move(lock), found);
}

Result<void> Session::renew(std::shared_ptr<backend::Link> link) {
    std::lock_guard lock(mutex_);
    if (end_) return *end_;
    if (!waits_for_link_ || !link_ended_)
        return Error{ErrorCode::internal, "a link is replaced that has not ended", "session", {}};
    line_ = line_of(std::move(link), line_.epoch + 1);
    link_ended_ = false;
    return {};
}

Result<void> Session::replay() {
    std::vector<Gap> gaps;
    Line line;
    {
        std::lock_guard lock(mutex_);
        if (end_) return *end_;
        if (link_ended_) return Error{ErrorCode::io_error, "the new link has ended too", "session", {}};
        waits_for_link_ = false;
        renewed_.fetch_add(1, std::memory_order_relaxed);
        line = line_;
        for (auto& [number, request] : requests_)
            for (const Range& range : request.missing()) {
                if (!request.asks()) request.leaving += range.size();
                gaps.push_back({number, request, range});
            }
    }
    for (const Gap& gap : gaps)
        gap.what.asks() ? send_question(line, gap.request, gap.what, gap.range)
                        : send_push(line, gap.request, gap.what, gap.range);
    ask_waiting();
    return {};
}

bool Session::waits_for_link() const {
    std::lock_guard lock(mutex_);
    return waits_for_link_;
}

void Session::give_up(const Error& why) {
    std::shared_ptr<backend::Link> link;
    {
        std::lock_guard lock(mutex_);
        outlives_links_ = false;
        lost_ = {};
        if (!link_ended_) link = line_.link;
    }
    if (link)
        link->close(why);
    else
        end_all(why);
}

void Session::end_all(const Error& why) {
    std::map<std::uint64_t, Request> requests;
    std::map<std::uint64_t, std::shared_ptr<Region>> regions;
    std::deque<Fetch> fetches;
    {
        std::lock_guard lock(mutex_);
        if (!end_) end_ = why;
        requests.swap(requests_);
        // Whose memory slots are being filled from, or emptied into, ends with the last of them: see moving().
        for (auto next = requests.begin(); next != requests.end();) {
            const auto one = next++;
            if (one->second.moving == 0) continue;
            one->second.error = why;
            one->second.left = one->second.leaving = 0;
            one->second.small = false;
            requests_.insert(requests.extract(one));
        }
        small_.store(0, std::memory_order_relaxed);
        regions.swap(regions_);
        fetches.swap(fetches_);
        fetch_places_ = 0;
        waiting_.clear();
    }
    for (auto& [number, request] : requests) {
        request.error = why;
        request.end();
    }
}

}  // namespace sidestep::wire
