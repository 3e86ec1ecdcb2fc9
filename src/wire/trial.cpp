#include "wire/trial.hpp"

#include <array>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/random.hpp"

namespace sidestep::wire {
namespace {

// Kept by whoever still moves it.
struct Trial {
    std::vector<std::uint64_t> there = std::vector<std::uint64_t>(trial_bytes / sizeof(std::uint64_t));
    std::vector<std::uint64_t> back = there;
    std::array<std::vector<std::shared_ptr<const void>>, 2> ready;
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::optional<Result<void>> moved;

    Trial() { driver::fill_unknown(there.data(), trial_bytes); }
    void told(const Result<void>& result) {
        std::lock_guard lock(mutex);
        moved = result;
        changed.notify_all();
    }
    Result<void> wait(Peer::Time until) {
        std::unique_lock lock(mutex);
        if (!changed.wait_until(lock, until, [this] { return moved.has_value(); }))
            return Error{
                ErrorCode::timed_out, "bytes sent to try the network out did not come", "network", {}};
        return *std::exchange(moved, std::nullopt);
    }
};

unsigned char* bytes_of(std::vector<std::uint64_t>& numbers) {
    return reinterpret_cast<unsigned char*>(numbers.data());
}

}  // namespace

Result<void> try_out(Peer& peer, Session& session, const Engines& engines, Peer::Time until) {
    SIDESTEP_TRY(const std::string answer, peer.ask(Word::trial, {}, until));
    SIDESTEP_TRY(const Attached lent, parse_attached(answer));
    const auto trial = std::make_shared<Trial>();
    const auto told = [trial](const Result<void>& result) { trial->told(result); };
    trial->ready = {engines.prepare(trial->there.data(), trial_bytes),
                    engines.prepare(trial->back.data(), trial_bytes)};
    session.bring({{lent.region, 0, trial_bytes, bytes_of(trial->there)}}, told);
    Result<void> done = trial->wait(until);
    if (done) {
        session.fetch({{lent.region, 0, trial_bytes, bytes_of(trial->back)}}, told);
        done = trial->wait(until);
    }
    peer.tell(Word::detach, to_body(lent.region));
    SIDESTEP_CHECK(done);
    if (trial->there == trial->back) return {};
    return Error{ErrorCode::mismatch,
                 fmt::format("{} brought other bytes than those that were sent", peer.engine()), "network",
                 "see whether the cards' drivers and firmware are of one version"};
}

}  // namespace sidestep::wire
