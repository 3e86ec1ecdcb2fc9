// The one account of what moves at once: flows of bytes, and the links and engines they divide.
#pragma once

#include <string>
#include <vector>

#include "route/hops.hpp"

namespace sidestep::route {

// Flows, counted from 0, and what they take: of each direction of each link they cross, of the engines of
// their hops, and of what else is named.
class Flows {
public:
    explicit Flows(const Topology& topology) : topology_(topology) {}

    // The flow moves `bytes` over this hop for each byte of its own. A hop whose rate nobody knows bounds
    // nothing. The hop is to outlive these flows.
    void cross(std::size_t flow, const HopOption& hop, double bytes = 1);
    // The same of something by name that gives so many GB/s.
    void take(std::size_t flow, const char* name, double gb_per_s, double bytes);

    // GB/s of each flow when all run: what they share is divided max-min fairly (progressive filling:
    // Bertsekas and Gallager, Data Networks, 6.5.2). 0 where nothing that is known bounds the flow.
    std::vector<double> fair_rates() const;

    struct Limit {
        double seconds = 0;  // for a GB of every flow
        std::string name;
    };
    // What takes longest.
    Limit limit() const;

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

    Resource& direction(const Link& link, bool forward);
    std::string name_of(const Resource& resource) const;

    const Topology& topology_;
    std::size_t count_ = 0;
    std::vector<Resource> resources_;
};

}  // namespace sidestep::route
