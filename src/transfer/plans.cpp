#include "transfer/plans.hpp"

#include <bit>

#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

// Whether the plan for a request serves this copy too.
bool serves(const route::Request& request, const Ends& ends, const CopyOptions& options) {
    return std::bit_width(request.bytes) == std::bit_width(ends.bytes) &&
           request.from.memory == ends.from_memory && request.to.memory == ends.to_memory &&
           request.require == options.require && request.prefer == options.prefer &&
           request.lanes == options.lanes && request.max_staging == options.max_staging &&
           request.from.place == ends.from.place() && request.to.place == ends.to.place();
}

}  // namespace

Result<std::shared_ptr<const ReadyPlan>> Plans::get(const Ends& ends, const CopyOptions& options) {
    return get(ends, options, objections(registry_, ends.from, ends.to, options));
}

Result<std::shared_ptr<const ReadyPlan>> Plans::get(const Ends& ends, const CopyOptions& options,
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

Result<std::shared_ptr<const ReadyPlan>> Plans::make(const route::Request& request,
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

}  // namespace sidestep::transfer
