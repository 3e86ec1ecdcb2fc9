// Plans ready to run, kept because planning costs more than a small copy.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "transfer/direct_storage.hpp"
#include "transfer/ends.hpp"
#include "transfer/staging.hpp"

namespace sidestep::transfer {

// One hop of a plan with the backend it names looked up.
struct ReadyHop {
    backend::Backend* backend = nullptr;
    std::size_t capability = 0;  // which of its engines
    bool streams = false;        // the engine enqueues on a caller's stream
    Place to;
    MemoryKind to_memory = MemoryKind::automatic;
    Prefer meets = Prefer::automatic;  // as Capability's
    Bytes at_once = 0;                 // the same
};

// What the planner chose, wherever it leads. It chooses usable backends alone, all of which the registry has.
inline ReadyHop chosen(const backend::Registry& registry, const std::vector<backend::Offer>& offers,
                       const route::Choice& choice) {
    ReadyHop hop;
    hop.backend = registry.find(offers[choice.offer].name);
    hop.capability = choice.capability;
    return hop;
}

// A plan with the backends it names looked up.
struct ReadyPlan {
    Route route;
    std::vector<std::vector<ReadyHop>> lanes;
};

// Plans over one machine. Safe to use from several threads.
class Plans {
public:
    Plans(const Topology& topology, const backend::Registry& registry, const StagingPool& pool)
        : topology_(topology), registry_(registry), pool_(pool) {}

    // The plan for bytes between two ends. Plans between memory are kept and shared by requests whose sizes fall between
    // the same two powers of two (Route::bytes says which size the prices were made for). What backends have
    // against carrying just these bytes becomes part of the route; without `against` they are asked (objections()).
    Result<std::shared_ptr<const ReadyPlan>> get(const Ends& ends, const CopyOptions& options);
    Result<std::shared_ptr<const ReadyPlan>> get(const Ends& ends, const CopyOptions& options,
                                                 const std::vector<Objection>& against);

private:
    struct Kept {
        route::Request request;
        unsigned relay_changes;  // StagingPool's, when it was made
        std::vector<Objection> against;
        std::shared_ptr<const ReadyPlan> plan;
    };
    static constexpr std::size_t max_kept = 256;

    Result<std::shared_ptr<const ReadyPlan>> make(const route::Request& request,
                                                  const std::vector<backend::Offer>& offers) const;

    const Topology& topology_;
    const backend::Registry& registry_;
    const StagingPool& pool_;
    std::mutex mutex_;
    std::vector<Kept> kept_;  // newest last; few in practice, so a scan is quick
};

}  // namespace sidestep::transfer
