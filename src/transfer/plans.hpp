// Plans ready to run, kept because planning costs more than a small copy.
#pragma once

#include <bit>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/try.hpp"
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
    Result<std::shared_ptr<const ReadyPlan>> get(const Ends& ends, const CopyOptions& options) {
        return get(ends, options, objections(registry_, ends.from, ends.to, options));
    }
    Result<std::shared_ptr<const ReadyPlan>> get(const Ends& ends, const CopyOptions& options,
                                                 const std::vector<Objection>& against) {
        const bool keep = !touches_file(ends);
        const unsigned relay_changes = pool_.relay_changes();
        if (keep) {
            std::lock_guard lock(mutex_);
            for (const Kept& kept : kept_)
                if (kept.relay_changes == relay_changes && serves(kept.request, ends, options) &&
                    kept.against == against)
                    return kept.plan;
        }
        const route::Request request{{ends.from.place(), ends.from_memory},
                                     {ends.to.place(), ends.to_memory},
                                     ends.bytes,
                                     options.require,
                                     options.prefer,
                                     options.max_staging,
                                     options.lanes,
                                     pool_.relay_limits()};
        SIDESTEP_TRY(auto plan, against.empty() ? make(request, registry_.offers())
                                                : make(request, with(registry_.offers(), against)));
        if (!keep) return plan;
        std::lock_guard lock(mutex_);
        if (kept_.size() >= max_kept) kept_.erase(kept_.begin());
        kept_.push_back({request, relay_changes, against, plan});
        return plan;
    }

private:
    struct Kept {
        route::Request request;
        unsigned relay_changes;  // StagingPool's, when it was made
        std::vector<Objection> against;
        std::shared_ptr<const ReadyPlan> plan;
    };
    static constexpr std::size_t max_kept = 256;

    // Whether the plan for a request serves this copy too.
    static bool serves(const route::Request& request, const Ends& ends, const CopyOptions& options) {
        return std::bit_width(request.bytes) == std::bit_width(ends.bytes) &&
               request.from.memory == ends.from_memory && request.to.memory == ends.to_memory &&
               request.require == options.require && request.prefer == options.prefer &&
               request.lanes == options.lanes && request.max_staging == options.max_staging &&
               request.from.place == ends.from.place() && request.to.place == ends.to.place();
    }

    Result<std::shared_ptr<const ReadyPlan>> make(const route::Request& request,
                                                  const std::vector<backend::Offer>& offers) const {
        SIDESTEP_TRY(auto plan, route::plan(topology_, offers, request));
        auto ready = std::make_shared<ReadyPlan>();
        for (std::size_t l = 0; l < plan.choices.size(); ++l) {
            std::vector<ReadyHop> hops;
            for (std::size_t h = 0; h < plan.choices[l].size(); ++h) {
                const route::Choice& choice = plan.choices[l][h];
                const Hop& hop = plan.route.lanes[l].hops[h];
                const backend::Capability& engine = offers[choice.offer].capabilities[choice.capability];
                hops.push_back({registry_.find(offers[choice.offer].name), choice.capability, engine.streams,
                                hop.to, hop.to_memory, engine.meets, engine.at_once});
            }
            ready->lanes.push_back(std::move(hops));
        }
        ready->route = std::move(plan.route);
        return std::shared_ptr<const ReadyPlan>(std::move(ready));
    }

    const Topology& topology_;
    const backend::Registry& registry_;
    const StagingPool& pool_;
    std::mutex mutex_;
    std::vector<Kept> kept_;  // newest last; few in practice, so a scan is quick
};

}  // namespace sidestep::transfer
