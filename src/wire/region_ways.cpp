#include "wire/region_ways.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "route/words.hpp"

namespace sidestep::wire {

Result<SlotWay> slot_way(const Topology& topology, const backend::Registry& registry, const route::End& end,
                         bool writes) {
    const auto& offers = registry.offers();
    const auto stops = route::host_stops(topology, offers, end, end);
    const std::string name = end.place.to_string();
    if (stops.empty())
        return Error{ErrorCode::unsupported, "no backend gives host memory to stage bytes in", name, {}};
    SlotWay way;
    way.slot = stops.front();
    way.to_gpu = end.place.is_gpu();
    way.in = route::best_hop(topology, offers, way.slot, end);
    way.out = route::best_hop(topology, offers, end, way.slot);
    const auto& first = writes ? way.in : way.out;
    if (!first.possible()) return Error{ErrorCode::path_unavailable, first.refusal, name, first.remedy};
    way.backend = registry.find(first.hop.backend);
    if (way.backend == nullptr)
        return Error{ErrorCode::internal, "a backend is missing", first.hop.backend, {}};
    way.words =
        fmt::format("by {} memory and its {}", to_string(way.slot.memory), route::engine_words(first.hop));
    return way;
}

Result<void> add_slots(Region& region, const SlotWay& way, std::shared_ptr<backend::Registration> end,
                       bool in, std::shared_ptr<Slots> slots) {
    const auto access = in ? backend::Access::read : backend::Access::write;
    SIDESTEP_TRY(auto ring, slots->attach(*way.backend, access));
    const std::size_t capability = (in ? way.in : way.out).choice.capability;
    (in ? region.in : region.out) = Way{way.backend, capability, std::move(end), std::move(ring), way.to_gpu};
    (in ? region.slots_in : region.slots_out) = std::move(slots);
    return {};
}

Engines::Device ready_device(const Engines& engines, std::string_view engine, const Buffer& memory,
                             backend::DmaBufs& exporter) {
    SIDESTEP_TRY(auto reached, engines.prepare_device(engine, memory, exporter));
    if (reached) SIDESTEP_CHECK(exporter.see_writes(memory.place()));
    return reached;
}

void reach_device(Region& region, const Engines& engines, std::string_view engine, const Buffer& memory,
                  backend::Backend& backend, std::string& way) {
    backend::DmaBufs* const exporter = backend::dma_bufs_of(backend);
    if (exporter == nullptr) return;
    auto reached = ready_device(engines, engine, memory, *exporter);
    if (!reached) {
        way += fmt::format(", since its cards do not reach {}: {}", memory.place().to_string(),
                           reached.error().message);
        return;
    }
    if (!*reached) return;
    way = fmt::format("{} straight into {} and out of it, {}; else {}", (*reached)->over,
                      memory.place().to_string(), (*reached)->words, way);
    region.device_address = static_cast<unsigned char*>(memory.address());
    region.reached.push_back({engine, std::move((*reached)->ready)});
    region.see_writes = [exporter, place = memory.place()] { return exporter->see_writes(place); };
}

}  // namespace sidestep::wire
