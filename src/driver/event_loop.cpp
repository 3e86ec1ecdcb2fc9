#include "driver/event_loop.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadlines.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"
#include "driver/event_fd.hpp"
#include "driver/fd.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

// What one wait takes; others come with the next.
constexpr std::size_t max_events = 64;
// The id of the descriptor that wakes the thread; no handler has it.
constexpr EventLoop::Id wake_id = 0;
constexpr std::chrono::milliseconds shortest_period{1};

// A descriptor with its handler, or a task with its period.
struct Entry {
    int descriptor = -1;
    bool in = false;
    bool out = false;
    EventLoop::Handler handler;
    std::chrono::milliseconds period{0};
    std::function<void()> task;
    Time due;
};

epoll_event event_of(EventLoop::Id id, bool in, bool out) {
    epoll_event event{};
    event.events = (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u);
    event.data.u64 = id;
    return event;
}

Error not_watched(int number, const std::string& name) {
    Error error = system_error(number, "a descriptor cannot be waited for", name);
    if (number == EBADF || number == EEXIST || number == EPERM) error.code = ErrorCode::invalid_argument;
    if (number == ENOSPC) {
        error.code = ErrorCode::out_of_memory;
        error.hint = "raise fs.epoll.max_user_watches (sysctl)";
    }
    return error;
}

}  // namespace

struct EventLoop::Shared {
    Shared(std::string given, std::chrono::microseconds no_sleep, Fd waits, EventFd event)
        : name(std::move(given)), awake(no_sleep), epoll(std::move(waits)), wake(std::move(event)) {}

    const std::string name;
    const std::chrono::microseconds awake;
    const Fd epoll;
    const EventFd wake;
    std::thread thread;  // written once, before anybody can call a method

    std::mutex mutex;
    // Tells those who remove what runs that it has ended.
    std::condition_variable ended;
    // By id. The thread holds the one whose handler runs.
    std::unordered_map<Id, std::shared_ptr<Entry>> entries;
    std::set<std::pair<Time, Id>> due;
    std::deque<std::function<void()>> posted;
    std::vector<Id> looked_at;
    Id next_id = wake_id + 1;
    Id running = wake_id;
    bool ending = false;
    bool looks = false;  // without sleeping

    bool here() const { return thread.get_id() == std::this_thread::get_id(); }
    int timeout_ms();
    void run();
    void dispatch(std::span<const epoll_event> events);
    void dispatch(const epoll_event& event);
    bool call_due(Time now);
    bool call_posted();
    bool call_looked_at();
    std::shared_ptr<Entry> begin(Id id);
    void end(std::shared_ptr<Entry> entry);
};

int EventLoop::Shared::timeout_ms() {
    const std::lock_guard lock(mutex);
    if (!posted.empty() || !looked_at.empty() || ending) return 0;
    return due.empty() ? -1 : base::milliseconds_left(due.begin()->first);
}

void EventLoop::Shared::run() {
    std::array<epoll_event, max_events> events;
    Time sleeps_from{};
    for (Time now{};;) {
        const bool sleeps = now >= sleeps_from;
        {
            const std::lock_guard lock(mutex);
            if (ending) return;
            looks = !sleeps;
        }
        const int count = ::epoll_wait(epoll.get(), events.data(), max_events, sleeps ? timeout_ms() : 0);
        // Interrupted by a signal, it found nothing.
        dispatch(std::span(events).first(static_cast<std::size_t>(std::max(count, 0))));
        now = Clock::now();
        if (count > 0) sleeps_from = now + awake;
        if (!sleeps && count == 0) std::this_thread::yield();
        while (call_due(now)) continue;
        if (call_posted() || call_looked_at()) sleeps_from = now + awake;
    }
}

// The entry of a handler that is to be called now; null where it was removed meanwhile, or the loop is ending. Called
// with the mutex held.
std::shared_ptr<Entry> EventLoop::Shared::begin(Id id) {
    const auto found = entries.find(id);
    if (ending || found == entries.end()) return nullptr;
    running = id;
    return found->second;
}

// A handler has returned. What it holds goes before remove() returns, if it was removed while it ran.
void EventLoop::Shared::end(std::shared_ptr<Entry> entry) {
    entry.reset();
    const std::lock_guard lock(mutex);
    running = wake_id;
    ended.notify_all();
}

void EventLoop::Shared::dispatch(std::span<const epoll_event> events) {
    for (const epoll_event& event : events) {
        if (event.data.u64 != wake_id) {
            dispatch(event);
            continue;
        }
        std::uint64_t count = 0;
        (void)!::read(wake.get(), &count, sizeof(count));
    }
}

void EventLoop::Shared::dispatch(const epoll_event& event) {
    std::shared_ptr<Entry> entry;
    Ready ready;
    {
        const std::lock_guard lock(mutex);
        const auto found = entries.find(event.data.u64);
        if (found == entries.end()) return;
        // A handler before this one may have changed what is waited for.
        ready.in = found->second->in && (event.events & (EPOLLIN | EPOLLHUP)) != 0;
        ready.out = found->second->out && (event.events & EPOLLOUT) != 0;
        ready.ended = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
        if (!ready.in && !ready.out && !ready.ended) return;
        entry = begin(event.data.u64);
    }
    if (entry == nullptr) return;
    entry->handler(ready);
    end(std::move(entry));
}

// Calls the first task that is due by `now`; false where there is none.
bool EventLoop::Shared::call_due(Time now) {
    std::shared_ptr<Entry> entry;
    {
        const std::lock_guard lock(mutex);
        if (due.empty() || due.begin()->first > now) return false;
        const Id id = due.begin()->second;
        entry = begin(id);
        if (entry == nullptr) return false;
        due.erase(due.begin());
        // What was missed is not made up for.
        entry->due += entry->period;
        if (entry->due <= now) entry->due = now + entry->period;
        due.emplace(entry->due, id);
    }
    entry->task();
    end(std::move(entry));
    return true;
}

// Those that are there now: what they post themselves waits until descriptors had their turn. True where there were any.
bool EventLoop::Shared::call_posted() {
    std::size_t count = 0;
    {
        const std::lock_guard lock(mutex);
        count = posted.size();
    }
    const bool any = count > 0;
    for (; count > 0; --count) {
        std::function<void()> task;
        {
            const std::lock_guard lock(mutex);
            if (ending) return any;
            task = std::move(posted.front());
            posted.pop_front();
        }
        task();
    }
    return any;
}

// One turn of each. True where there are any.
bool EventLoop::Shared::call_looked_at() {
    for (std::size_t i = 0;; ++i) {
        std::shared_ptr<Entry> entry;
        {
            const std::lock_guard lock(mutex);
            if (i >= looked_at.size()) return i > 0;
            entry = begin(looked_at[i]);
        }
        if (entry == nullptr) continue;
        entry->handler({.look = true});
        end(std::move(entry));
    }
}

Result<std::unique_ptr<EventLoop>> EventLoop::create(std::string name, std::chrono::microseconds awake) {
    Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll) return system_error(errno, "cannot wait for descriptors", name);
    SIDESTEP_TRY(EventFd wake, EventFd::create());
    epoll_event event = event_of(wake_id, true, false);
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) return not_watched(errno, name);
    auto shared = std::make_shared<Shared>(std::move(name), awake, std::move(epoll), std::move(wake));
    SIDESTEP_TRY(shared->thread, base::start_thread([shared] { shared->run(); }, shared->name));
    return std::unique_ptr<EventLoop>(new EventLoop(std::move(shared)));
}

void EventLoop::end() {
    if (!shared_->thread.joinable()) return;
    if (shared_->here())
        abort_on_error(
            {ErrorCode::internal, "an event loop ends from one of its handlers", shared_->name, {}});
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->ending = true;
    }
    shared_->wake.signal();
    shared_->thread.join();
    // What tasks and handlers hold may call this loop as it goes, so they go first, and without the mutex.
    decltype(shared_->posted) posted;
    decltype(shared_->entries) entries;
    const std::lock_guard lock(shared_->mutex);
    posted.swap(shared_->posted);
    entries.swap(shared_->entries);
}

Result<EventLoop::Id> EventLoop::add(int descriptor, bool in, bool out, Handler handler) {
    auto entry = std::make_shared<Entry>();
    entry->descriptor = descriptor;
    entry->in = in;
    entry->out = out;
    entry->handler = std::move(handler);
    const std::lock_guard lock(shared_->mutex);
    const Id id = shared_->next_id++;
    epoll_event event = event_of(id, in, out);
    // The thread may see it at once, and waits for the mutex then.
    if (::epoll_ctl(shared_->epoll.get(), EPOLL_CTL_ADD, descriptor, &event) != 0)
        return not_watched(errno, shared_->name);
    shared_->entries.emplace(id, std::move(entry));
    return id;
}

void EventLoop::change(Id id, bool in, bool out) {
    const std::lock_guard lock(shared_->mutex);
    const auto found = shared_->entries.find(id);
    if (found == shared_->entries.end() || found->second->descriptor < 0) return;
    Entry& entry = *found->second;
    if (entry.in == in && entry.out == out) return;
    entry.in = in;
    entry.out = out;
    epoll_event event = event_of(id, in, out);
    ::epoll_ctl(shared_->epoll.get(), EPOLL_CTL_MOD, entry.descriptor, &event);
}

bool EventLoop::look_at(Id id, bool look) {
    bool wakes = false;
    {
        const std::lock_guard lock(shared_->mutex);
        std::erase(shared_->looked_at, id);
        if (shared_->ending || !shared_->entries.contains(id)) return false;
        if (look) shared_->looked_at.push_back(id);
        wakes = look && !shared_->looks;
    }
    if (wakes && !shared_->here()) shared_->wake.signal();
    return true;
}

EventLoop::Id EventLoop::every(std::chrono::milliseconds period, std::function<void()> task) {
    auto entry = std::make_shared<Entry>();
    entry->period = std::max(period, shortest_period);
    entry->task = std::move(task);
    entry->due = Clock::now() + entry->period;
    Id id = 0;
    {
        const std::lock_guard lock(shared_->mutex);
        id = shared_->next_id++;
        shared_->due.emplace(entry->due, id);
        shared_->entries.emplace(id, std::move(entry));
    }
    // It waits until what was due before.
    if (!shared_->here()) shared_->wake.signal();
    return id;
}

void EventLoop::remove(Id id) {
    // Goes after the mutex: what the handler holds may call this loop as it goes.
    std::shared_ptr<Entry> entry;
    std::unique_lock lock(shared_->mutex);
    if (const auto found = shared_->entries.find(id); found != shared_->entries.end()) {
        entry = std::move(found->second);
        shared_->entries.erase(found);
        std::erase(shared_->looked_at, id);
        if (entry->descriptor >= 0)
            ::epoll_ctl(shared_->epoll.get(), EPOLL_CTL_DEL, entry->descriptor, nullptr);
        else
            shared_->due.erase({entry->due, id});
    }
    if (shared_->here()) return;
    shared_->ended.wait(lock, [&] { return shared_->running != id; });
}

bool EventLoop::post(std::function<void()> task) {
    bool looks = false;
    {
        const std::lock_guard lock(shared_->mutex);
        if (shared_->ending) return false;
        shared_->posted.push_back(std::move(task));
        looks = shared_->looks;
    }
    if (!looks && !shared_->here()) shared_->wake.signal();
    return true;
}

}  // namespace sidestep::driver
