#include "transfer/direct_storage.hpp"

#include <fcntl.h>

#include <algorithm>

#include "driver/files.hpp"
#include "driver/page_cache.hpp"

namespace sidestep::transfer {
namespace {

using backend::Capability;
using backend::Offer;
using backend::Reach;
using backend::Support;

bool is_device(const Place& place) {
    return place.is_gpu() || place.is_p2pmem();
}

bool connects(const Capability& capability, const Buffer& from, const Buffer& to) {
    return capability.reach == Reach::storage_gpu && capability.from == from.place().kind() &&
           capability.to == to.place().kind();
}

// Whether the page cache holds most of what is to be read, judged by looks at a few places of it. No where it
// cannot be told.
bool is_warm(const Buffer& file) {
    constexpr Bytes looks = 16;
    constexpr Bytes look = Bytes{1} << 20;
    const auto facts = driver::file_facts(file.place().path());
    const auto fd = driver::open_file(file.place().path(), O_RDONLY);
    if (!facts || !*facts || !fd || file.offset() >= (*facts)->size) return false;
    const Bytes size = std::min(file.size(), (*facts)->size - file.offset());
    const auto probe = driver::cache_probe_for(*fd, driver::best_cache_probe());
    if (probe == driver::CacheProbe::nowait) return false;  // it reads, and may make the kernel read ahead
    Bytes seen = 0, held = 0;
    for (Bytes i = 0; i < looks; ++i) {
        const Bytes at = size <= looks * look ? i * look : size / looks * i;
        if (at >= size) break;
        const Bytes part = std::min(look, size - at);
        const auto cached = driver::cached_part(probe, *fd, file.offset() + at, part);
        if (!cached) return false;
        seen += part;
        held += std::min(cached->bytes, part);
    }
    return seen > 0 && held >= seen / 2;
}

// What the copy's own options have against a path that leaves host memory out.
Support wished(const Buffer& from, const Buffer& to, const CopyOptions& options) {
    if (options.page_cache == PageCache::use && options.require != Require::direct)
        return Support::no("the page cache is to be used, and this path goes around it",
                           "leave PageCache::use out");
    // Verification reads the new file through the backend that wrote it, before it has a name; only the file
    // backend reads into host memory.
    if (options.verify && to.place().is_file())
        return Support::no("a written file is verified through the file backend, which has to write it then",
                           "leave verification out");
    // Of GPUs only: their links carry several times what a drive gives, unlike those of controllers' memory.
    if (options.page_cache == PageCache::automatic && options.require == Require::any &&
        from.place().is_file() && to.place().is_gpu() && is_warm(from))
        return Support::no("the page cache holds most of it, and is quicker than the drive",
                           "ask for PageCache::bypass or Require::direct");
    return Support::yes({});
}

}  // namespace

std::vector<Objection> objections(const backend::Registry& registry, const Buffer& from, const Buffer& to,
                                  const CopyOptions& options) {
    std::vector<Objection> found;
    const bool pair = (from.place().is_file() && is_device(to.place())) ||
                      (is_device(from.place()) && to.place().is_file());
    if (!pair || options.require == Require::host) return found;
    for (const Offer& offer : registry.offers()) {
        backend::Backend* const backend = offer.support.usable ? registry.find(offer.name) : nullptr;
        const bool offered =
            std::any_of(offer.capabilities.begin(), offer.capabilities.end(),
                        [&](const Capability& capability) { return connects(capability, from, to); });
        if (backend == nullptr || !offered) continue;
        Support answer = wished(from, to, options);
        if (answer.usable) answer = backend->reaches(from, to);
        if (!answer.usable) found.push_back({offer.name, std::move(answer.reason), std::move(answer.remedy)});
    }
    return found;
}

std::vector<Offer> without(std::vector<Offer> offers, const std::vector<Objection>& objections) {
    for (const Objection& objection : objections) {
        const auto offer = std::find_if(offers.begin(), offers.end(),
                                        [&](const Offer& other) { return other.name == objection.backend; });
        if (offer == offers.end()) continue;
        Offer refused;
        refused.name = offer->name;
        refused.support = Support::no(objection.reason, objection.remedy);
        for (Capability& capability : offer->capabilities) {
            if (capability.reach != Reach::storage_gpu) continue;
            refused.capabilities.push_back(capability);
            // No copy begins or ends at a shared place once its ends are resolved: nothing asks for this one.
            capability.from = capability.to = PlaceKind::shared;
        }
        offers.push_back(std::move(refused));
    }
    return offers;
}

}  // namespace sidestep::transfer
