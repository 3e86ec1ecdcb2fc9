#include "wire/own_memory.hpp"

#include <fmt/format.h>

#include "base/kept.hpp"
#include "base/try.hpp"
#include "transfer/ends.hpp"

namespace sidestep::wire {
namespace {

constexpr Bytes tried_bytes = Bytes{64} << 10;

}  // namespace

OwnMemory::OwnMemory(const Topology& topology, const backend::Registry& registry, transfer::Engine& engine,
                     const Engines& engines, std::function<void()> freed)
    : topology_(topology),
      registry_(registry),
      engine_(engine),
      engines_(engines),
      freed_(std::move(freed)) {}

OwnMemory::~OwnMemory() {
    for (auto& [where, slots] : slots_) {
        slots->tell({});
        if (!slots->idle()) base::keep(std::move(slots));
    }
}

backend::Support OwnMemory::reaches(const Place& gpu, std::string_view engine) {
    const auto now = std::chrono::steady_clock::now();
    const std::pair key(std::string(engine), gpu);
    {
        std::lock_guard lock(mutex_);
        if (const auto found = tried_.find(key); found != tried_.end())
            if (found->second.answer.usable || now - found->second.at < tried_again)
                return found->second.answer;
    }
    auto answer = try_out(gpu, engine);
    std::lock_guard lock(mutex_);
    tried_[key] = {answer, now};
    return answer;
}

backend::Support OwnMemory::try_out(const Place& gpu, std::string_view engine) const {
    const auto no = [&](const Error& why) {
        return backend::Support::no(
            fmt::format("the cards do not reach {}: {}", gpu.to_string(), why.message), why.hint);
    };
    const auto way = slot_way(topology_, registry_, {gpu, MemoryKind::device}, false);
    if (!way) return no(way.error());
    backend::DmaBufs* const exporter = backend::dma_bufs_of(*way->backend);
    if (exporter == nullptr) return backend::Support::no("memory of that GPU is handed out to nobody", {});
    const auto scratch = exporter->scratch(gpu, tried_bytes);
    if (!scratch) return no(scratch.error());
    const auto reached = ready_device(engines_, engine, scratch->buffer(), *exporter);
    if (!reached) return no(reached.error());
    if (!*reached) return backend::Support::no("that engine takes no memory of GPUs", {});
    return backend::Support::yes((*reached)->words);
}

Result<std::shared_ptr<Region>> OwnMemory::region(const Buffer& buffer, const backend::AttachOptions& options,
                                                  std::string& way) {
    const bool in = options.access == backend::Access::write;
    SIDESTEP_TRY(const auto what, transfer::describe(registry_, buffer));
    SIDESTEP_TRY(const SlotWay by, slot_way(topology_, registry_, {buffer.place(), what.memory}, in));
    SIDESTEP_TRY(std::shared_ptr<backend::Registration> end, by.backend->attach(buffer, options));
    auto region = std::make_shared<Region>();
    region->size = buffer.size();
    region->name = buffer.place().to_string();
    region->device_address = static_cast<unsigned char*>(buffer.address());
    way = by.words;
    // Which of them carries a session may change.
    for (const std::string& name : engines_.names())
        reach_device(*region, engines_, engines_.find(name)->name(), buffer, *by.backend, way);
    SIDESTEP_TRY(auto ring, slots(by.slot, in));
    SIDESTEP_CHECK(add_slots(*region, by, std::move(end), in, std::move(ring)));
    return region;
}

Result<std::shared_ptr<Slots>> OwnMemory::slots(const route::End& slot, bool in) {
    std::lock_guard lock(mutex_);
    auto& known = slots_[{slot.place, in}];
    if (known) return known;
    if (!pieces_) {
        pieces_ = std::make_shared<Pieces>(engine_.machine().lookout);
        engine_.drive_in_background(pieces_);
    }
    SIDESTEP_TRY(known, Slots::create(pool_, pieces_, slot.place, slot.memory));
    known->keep(engines_.prepare(known->ring().address(), known->ring().size()));
    known->tell(freed_);
    return known;
}

}  // namespace sidestep::wire
