// The one account of what moves at once: flows of bytes, and the links and engines they divide.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "route/hops.hpp"

namespace sidestep::route {

// Flows, counted from 0, and what they take: of each direction of each link they cross, of the engines of
// their hops, and of what else is named.
class Flows {
public:
    explicit Flows(const Topology& topology) : topology_(topology) {}

    // The flow moves `bytes` over this hop for each byte of its own. A hop whose rate nobody knows bounds
    // nothing. The hop is to outlive these flows.
    void cross(std::size_t flow, const HopOption& option, double bytes = 1) {
        count_ = std::max(count_, flow + 1);
        const Hop& hop = option.hop;
        if (hop.gb_per_s <= 0 || bytes <= 0) return;
        resources_.push_back({.engine = &hop, .gb_per_s = hop.gb_per_s, .uses = {{flow, bytes}}});
        DeviceId at = option.start;
        for (std::uint32_t position : option.path.links) {
            const Link& link = topology_.links()[position];
            const bool forward = link.a == at;
            at = forward ? link.b : link.a;
            Resource& crossed = direction(link, forward);
            // A walk over several switches counts them all in its rate, and names the links of one.
            crossed.gb_per_s = std::max({crossed.gb_per_s, link.gb_per_s, option.path.gb_per_s});
            // What the engine does not reach of a link is lost to others too.
            crossed.uses.push_back({flow, bytes * option.path.gb_per_s / hop.gb_per_s});
        }
    }
    // The same of something by name that gives so many GB/s.
    void take(std::size_t flow, const char* name, double gb_per_s, double bytes) {
        count_ = std::max(count_, flow + 1);
        if (gb_per_s > 0 && bytes > 0)
            resources_.push_back({.name = name, .gb_per_s = gb_per_s, .uses = {{flow, bytes}}});
    }

    // GB/s of each flow when all run: what they share is divided max-min fairly (progressive filling:
    // Bertsekas and Gallager, Data Networks, 6.5.2). 0 where nothing that is known bounds the flow.
    std::vector<double> fair_rates() const {
        std::vector<double> rates(count_, 0);
        std::vector<bool> rising(count_, false);
        for (const Resource& resource : resources_)
            for (const Use& use : resource.uses) rising[use.flow] = true;
        // All rise together; those that take from what is full first stay at that level, the others go on.
        constexpr double never = std::numeric_limits<double>::infinity();
        std::vector<double> full_at(resources_.size());
        for (;;) {
            for (std::size_t i = 0; i < resources_.size(); ++i) {
                const Resource& resource = resources_[i];
                double left = resource.gb_per_s, load = 0;
                for (const Use& use : resource.uses)
                    if (rising[use.flow])
                        load += use.bytes;
                    else
                        left -= rates[use.flow] * use.bytes;
                // What alone crosses a link is held to its rate by the engine already.
                const bool bounds = load > 0 && (resource.link == nullptr || resource.uses.size() > 1);
                full_at[i] = bounds ? std::max(0.0, left) / load : never;
            }
            const double level = full_at.empty() ? never : *std::ranges::min_element(full_at);
            if (level == never) return rates;
            for (std::size_t i = 0; i < resources_.size(); ++i) {
                if (full_at[i] > level) continue;
                for (const Use& use : resources_[i].uses)
                    if (rising[use.flow]) {
                        rates[use.flow] = level;
                        rising[use.flow] = false;
                    }
            }
        }
    }

    struct Limit {
        double seconds = 0;  // for a GB of every flow
        std::string name;
    };
    // What takes longest.
    Limit limit() const {
        Limit limit;
        const Resource* slowest = nullptr;
        for (const Resource& resource : resources_) {
            double bytes = 0;
            for (const Use& use : resource.uses) bytes += use.bytes;
            // Of equal ones the first.
            if (bytes / resource.gb_per_s <= limit.seconds * (1 + 1e-9)) continue;
            limit.seconds = bytes / resource.gb_per_s;
            slowest = &resource;
        }
        if (slowest != nullptr) limit.name = name_of(*slowest);
        return limit;
    }

private:
    struct Use {
        std::size_t flow = 0;
        double bytes = 0;
    };
    // One of an engine, one direction of a link, and what has a name.
    struct Resource {
        const Hop* engine = nullptr;
        const Link* link = nullptr;
        const char* name = nullptr;
        bool forward = true;  // of a link: from a to b
        double gb_per_s = 0;
        std::vector<Use> uses;
    };

    Resource& direction(const Link& link, bool forward) {
        for (Resource& resource : resources_)
            if (resource.link == &link && resource.forward == forward) return resource;
        Resource& made = resources_.emplace_back();
        made.link = &link;
        made.forward = forward;
        return made;
    }
    std::string name_of(const Resource& resource) const {
        if (resource.name != nullptr) return resource.name;
        if (resource.engine != nullptr)
            return fmt::format("the {} -> {} copies", resource.engine->from.to_string(),
                               resource.engine->to.to_string());
        return fmt::format("the link between {} and {}", topology_.device(resource.link->a).name,
                           topology_.device(resource.link->b).name);
    }

    const Topology& topology_;
    std::size_t count_ = 0;
    std::vector<Resource> resources_;
};

}  // namespace sidestep::route
