#include "transfer/engine.hpp"

#include <algorithm>
#include <cstring>

#include "base/kept.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "transfer/batch_plan.hpp"

namespace sidestep::transfer {
namespace {

using Clock = std::chrono::steady_clock;

struct CountedWaiter {
    CountedWaiter(Activity& job, DrivingThread& driver) : job_(job), driver_(driver) {
        job_.waiters.fetch_add(1);
    }
    // Its previous driver sleeps, and has to take it up again, or to let it go.
    ~CountedWaiter() {
        job_.waiters.fetch_sub(1);
        const bool unfinished = job_.needs_driving() || !job_.drained();
        if (unfinished || job_.in_background.load()) driver_.wake(unfinished);
    }
    Activity& job_;
    DrivingThread& driver_;
};

// What Context::allocate gives at a place, for routes between places instead of buffers.
MemoryKind typical_memory(const std::vector<backend::Offer>& offers, const Place& place) {
    if (place.is_file()) return MemoryKind::storage;
    if (place.is_shared()) return MemoryKind::pageable;  // of a node
    if (place.is_gpu()) return MemoryKind::device;
    if (place.is_p2pmem()) return MemoryKind::p2pmem;
    const bool pinned = std::ranges::any_of(offers, [](const backend::Offer& offer) {
        return offer.support.usable && offer.host_memory.has(MemoryKind::pinned);
    });
    return pinned ? MemoryKind::pinned : MemoryKind::pageable;
}

// What stands for the place where there is no buffer.
Buffer buffer_at(const Place& place) {
    return place.is_file() ? Buffer::file(place.path()).on(place.node()) : Buffer::memory(place, nullptr, 0);
}

// Of more bytes none is copied at once, and what follows need not be asked.
constexpr Bytes largest_at_once = Bytes{1} << 20;

bool may_be_copied(const Topology& topology, const Buffer& from, const Buffer& to) {
    const auto is_there = [&](const Place& place) {
        return place.is_host() && place.node().empty() && check_here(topology, place);
    };
    return from.size() > 0 && from.size() <= largest_at_once && to.size() == from.size() &&
           is_there(from.place()) && is_there(to.place()) && check_buffer(from, false) &&
           check_buffer(to, true) && !overlap(from, to, from.size());
}

// A small copy between host memories, carried out by this call; null where it has to be begun: what is refused, or was asked
// for more, a Movement says. That would cost more than twice as much (docs/lab-book.md, "Several lanes, other processes, many
// small copies").
std::shared_ptr<Activity> copy_at_once(Machine& machine, const Buffer& from, const Buffer& to,
                                       const CopyOptions& options) {
    if (!may_be_copied(machine.topology, from, to)) return nullptr;
    if (options.verify || options.prefer != Prefer::automatic || base::logs(base::LogLevel::debug))
        return nullptr;
    const auto begun = Clock::now();
    const Ends ends{from, to, MemoryKind::pageable, MemoryKind::pageable, from.size()};
    const auto plan = machine.plans.get(ends, options, {});  // nobody has anything against memory of the host
    if (!plan || (*plan)->lanes.size() != 1 || (*plan)->lanes[0].size() != 1) return nullptr;
    if (ends.bytes > (*plan)->lanes[0][0].at_once) return nullptr;
    std::memcpy(to.address(), from.address(), ends.bytes);
    Receipt receipt;
    receipt.bytes = ends.bytes;
    receipt.route = std::shared_ptr<const Route>(*plan, &(*plan)->route);
    receipt.lane_bytes = {ends.bytes};
    receipt.lane_failures.resize(1);
    receipt.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    return std::make_shared<EndedActivity>(std::move(receipt));
}

}  // namespace

Engine::Engine(const Topology& topology, const backend::Registry& registry,
               std::chrono::milliseconds drain_limit, std::optional<bool> drive_beside)
    : machine_(
          new Machine{topology, registry, drain_limit, std::make_shared<Lookout>(registry, drive_beside)}) {}

Engine::~Engine() {
    std::vector<std::shared_ptr<Activity>> left = thread_.stop();
    for (auto& job : starting_thread_.stop()) left.push_back(std::move(job));
    for (const auto& job : left) job->cancel();
    const auto give_up = Clock::now() + std::chrono::seconds(1);
    const auto drained = [](const auto& job) { return job->drained(); };
    while (std::erase_if(left, drained), !left.empty() && Clock::now() < give_up) {
        machine_->lookout->look();
        bool moved = false;
        for (const auto& job : left) moved |= job->step(true);
        if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    machine_->lookout->close();
    machine_->calls.wait();
    // What a call held up until now is let go, such as a file that was being opened.
    for (const auto& job : left) job->step(true);
    std::erase_if(left, drained);
    // A device still writes to memory that the job holds: freeing it would corrupt whatever comes next.
    for (auto& job : left) {
        base::log(base::LogLevel::error, "a copy still hangs at the end; its memory is kept");
        base::keep(std::move(job));
    }
    machine_->registrations->clear();
}

std::shared_ptr<Activity> Engine::submit(const Buffer& from, const Buffer& to, const CopyOptions& options,
                                         void* stream, std::shared_ptr<void> held) {
    if (auto ours = check_process(); !ours) return refuse(ours.error());
    if (stream == nullptr)
        if (auto ended = copy_at_once(*machine_, from, to, options)) return ended;
    return begun(begin_copy(*machine_, from, to, options, stream), std::move(held));
}

std::shared_ptr<Activity> Engine::submit_batch(const std::vector<BatchCopy>& copies,
                                               const CopyOptions& options, void* stream,
                                               std::shared_ptr<void> held) {
    if (auto ours = check_process(); !ours) return refuse(ours.error());
    return begun(begin_batch(*machine_, copies, options, stream), std::move(held));
}

std::shared_ptr<Activity> Engine::submit_spread(Spread spread, const CopyOptions& options) {
    if (auto ours = check_process(); !ours) return refuse(ours.error());
    return begun(begin_spread(*machine_, std::move(spread), options));
}

// One that ended at once may have something in flight all the same.
std::shared_ptr<Activity> Engine::begun(std::shared_ptr<Activity> activity, std::shared_ptr<void> held) {
    if (!activity->drained()) activity->count_on(std::move(held));
    if (activity->needs_driving()) driver_of(*activity).add(activity);
    if (activity->finished()) settle(activity);
    return activity;
}

bool Engine::abandoned(Activity& job) const {
    if (!owner_.forked()) return false;
    if (!job.finished()) job.abandon(owner_.check("this transfer").error());
    return true;
}

bool Engine::wait(const std::shared_ptr<Activity>& job, std::chrono::nanoseconds limit) {
    if (job->finished() || abandoned(*job)) return true;
    const CountedWaiter waiter(*job, driver_of(*job));
    const auto until = limit.count() > 0 ? Clock::now() + limit : Clock::time_point::max();
    // A look at other pieces can wait: at those of nodes it is a call of the system.
    if (job->wants_step()) job->step(true);
    for (Rest rest; !job->finished();) {
        const Round round = go_on(*job);
        if (job->finished()) break;
        // Also while bytes move: who waits for a time wants to look at the copy then, or to cancel it.
        if (Clock::now() >= until) return false;
        rest.after(round, *machine_->lookout, until);
    }
    settle(job);
    return true;
}

Round Engine::go_on(Activity& job) {
    Lookout& lookout = *machine_->lookout;
    Round round{.mark = lookout.mark(), .left = lookout.look(), .moved = job.step(true)};
    round.expected = job.expected();
    round.add(job);
    return round;
}

bool Engine::poll(const std::shared_ptr<Activity>& job) {
    if (abandoned(*job)) return true;
    if (!job->finished()) {
        if (!job->wants_step()) machine_->lookout->look();
        job->try_step(false);
    }
    if (!job->finished()) return false;
    settle(job);
    return true;
}

Result<Receipt>& Engine::take(Activity& job) {
    if (!owner_.forked()) job.hand_over(true);
    return job.result();
}

void Engine::let_go(Activity& job) {
    if (owner_.forked()) return;
    job.hand_over(false);
    // The buffers may go after that. Nearly always they may at once, and a Rest would look at the clock.
    if (!job.touches_buffers()) return;
    for (Rest rest; job.touches_buffers();) {
        const Round round = go_on(job);
        if (job.touches_buffers()) rest.after(round, *machine_->lookout);
    }
}

void Engine::drive_in_background(const std::shared_ptr<Activity>& job) {
    driver_of(*job).add(job);
    driver_of(*job).wake();
}

Result<Route> Engine::route(const Buffer& from, const Buffer& to, const CopyOptions& options) {
    SIDESTEP_TRY(const Ends ends, resolve_ends(machine_->topology, machine_->registry, from, to,
                                               machine_->shared, options.deadline));
    SIDESTEP_TRY(auto plan, machine_->plans.get(ends, options));
    return plan->route;
}

Result<Route> Engine::route(const Place& from, const Place& to, Bytes bytes, const CopyOptions& options) {
    for (const Place* place : {&from, &to}) SIDESTEP_CHECK(check_place(machine_->topology, *place));
    const auto& offers = machine_->registry.offers();
    const Ends ends{buffer_at(from), buffer_at(to), typical_memory(offers, from), typical_memory(offers, to),
                    bytes};
    SIDESTEP_TRY(auto plan, machine_->plans.get(ends, options));
    return plan->route;
}

}  // namespace sidestep::transfer
