// How bytes go between a link and memory or files of this machine: by pinned slots and the machine's own engines; straight,
// where the link's engine reaches memory of a GPU. For what a node serves and for what a client copies.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/registry.hpp"
#include "route/hops.hpp"
#include "wire/engines.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {

// Between slots of that memory and an end.
struct SlotWay {
    route::End slot;
    bool to_gpu = false;   // the end is memory of a GPU
    route::HopOption in;   // to the end
    route::HopOption out;  // the other way, if it is possible by the same backend
    backend::Backend* backend = nullptr;
    std::string words;  // "by pinned memory and its copy engine"
};

// path_unavailable where nothing moves them in the direction that is needed.
Result<SlotWay> slot_way(const Topology& topology, const backend::Registry& registry, const route::End& end,
                         bool writes);

// Gives a region its slots for what comes in, or goes out. `end`: of the way's backend.
Result<void> add_slots(Region& region, const SlotWay& way, std::shared_ptr<backend::Registration> end,
                       bool in, std::shared_ptr<Slots> slots);

// As Engines::prepare_device(); nor is memory reached where its GPU would not see what has come.
Engines::Device ready_device(const Engines& engines, std::string_view engine, const Buffer& memory,
                             backend::DmaBufs& exporter);

// Has an engine of the network reach memory of a GPU, which `backend` moves, and says so in `way`, or why not: the slots stay
// the way for what is small, for other engines, and where this one is lost.
void reach_device(Region& region, const Engines& engines, std::string_view engine, const Buffer& memory,
                  backend::Backend& backend, std::string& way);

}  // namespace sidestep::wire
