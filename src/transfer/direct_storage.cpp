#include "transfer/direct_storage.hpp"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/object_store.hpp"
#include "driver/files.hpp"
#include "driver/page_cache.hpp"

namespace sidestep::transfer {
namespace {

using backend::Capability;
using backend::Offer;
using backend::Reach;
using backend::Support;

bool is_device(const Place& place) {
    return (place.is_gpu() || place.is_p2pmem()) && place.node().empty();
}

bool are_file_and_device(const Buffer& from, const Buffer& to) {
    const auto is_file = [](const Place& place) { return place.is_file() && place.node().empty(); };
    return (is_file(from.place()) && is_device(to.place())) ||
           (is_device(from.place()) && is_file(to.place()));
}

bool connects(const Offer& offer, const Buffer& from, const Buffer& to) {
    return std::ranges::any_of(offer.capabilities, [&](const Capability& capability) {
        return capability.reach == Reach::storage_gpu && capability.from == from.place().kind() &&
               capability.to == to.place().kind();
    });
}

struct Cached {
    Bytes bytes = 0;
    Bytes of = 0;
};

// How much of what is to be read the page cache holds, judged by looks at a few places of it. Nothing where it cannot be
// told.
std::optional<Cached> cached_of(const Buffer& file) {
    constexpr Bytes looks = 16;
    constexpr Bytes look = Bytes{1} << 20;
    const auto facts = driver::file_facts(file.place().path());
    const auto fd = driver::open_file(file.place().path(), O_RDONLY);
    if (!facts || !*facts || !fd || file.offset() >= (*facts)->size) return std::nullopt;
    const Bytes size = std::min(file.size(), (*facts)->size - file.offset());
    const auto probe = driver::cache_probe_for(*fd, driver::best_cache_probe());
    if (probe == driver::CacheProbe::nowait)
        return std::nullopt;  // it reads, and may make the kernel read ahead
    Bytes seen = 0, held = 0;
    for (Bytes i = 0; i < looks; ++i) {
        const Bytes at = size <= looks * look ? i * look : size / looks * i;
        if (at >= size) break;
        const Bytes part = std::min(look, size - at);
        const auto cached = driver::cached_part(probe, *fd, file.offset() + at, part);
        if (!cached) return std::nullopt;
        seen += part;
        held += std::min(cached->bytes, part);
    }
    if (seen == 0) return std::nullopt;
    return Cached{
        static_cast<Bytes>(static_cast<double>(size) / static_cast<double>(seen) * static_cast<double>(held)),
        size};
}

// Whether it holds most of all of them. False where that is not known for one of them.
bool are_warm(std::span<const Buffer> files) {
    Cached all;
    for (const Buffer& file : files) {
        const auto one = cached_of(file);
        if (!one) return false;
        all.bytes += one->bytes;
        all.of += one->of;
    }
    return all.bytes >= all.of / 2;
}

// What the copy's own options have against a path that leaves host memory out.
Support wished(std::span<const Buffer> from, std::span<const Buffer> to, const CopyOptions& options) {
    if (options.page_cache == PageCache::use && options.require != Require::direct)
        return Support::no("the page cache is to be used, and this path goes around it",
                           "leave PageCache::use out");
    // Verification reads the new file through the backend that wrote it, before it has a name; only the file
    // backend reads into host memory.
    if (options.verify && to.front().place().is_file())
        return Support::no("a written file is verified through the file backend, which has to write it then",
                           "leave verification out");
    const bool are_gpus = std::ranges::any_of(to, [](const Buffer& end) { return end.place().is_gpu(); });
    // Of GPUs only: their links carry several times what a drive gives, unlike those of controllers' memory.
    if (options.page_cache == PageCache::automatic && options.require == Require::any &&
        from.front().place().is_file() && are_gpus && are_warm(from))
        return Support::no("the page cache holds most of it, and is quicker than the drive",
                           "ask for PageCache::bypass or Require::direct");
    return Support::yes({});
}

// What one backend has against it. Each question opens a file: every file is asked about once, and of those in one folder,
// which are stored alike, one with every place. `wish`: what wished() says, asked once, and only where somebody could take
// the path.
std::vector<Objection> objections_of(backend::Backend& backend, const Offer& offer,
                                     std::span<const Buffer> from, std::span<const Buffer> to,
                                     const CopyOptions& options, std::optional<Support>& wish) {
    std::set<std::string> files;
    std::set<std::pair<std::string, Place>> pairs;
    std::map<Place, Support> answers;
    const auto objection = [&](std::optional<Place> place, const Support& answer) {
        return Objection{offer.name, std::move(place), answer.reason, answer.remedy};
    };
    for (const Buffer& source : from)
        for (const Buffer& target : to) {
            if (!are_file_and_device(source, target) || !connects(offer, source, target)) continue;
            if (!wish) wish = wished(from, to, options);
            if (!wish->usable) return {objection({}, *wish)};
            const auto& [file, memory] =
                source.place().is_file() ? std::tie(source, target) : std::tie(target, source);
            Support& known = answers.emplace(memory.place(), Support::yes({})).first->second;
            if (!known.usable) continue;
            const std::string& path = file.place().path();
            const bool new_pair = pairs.emplace(driver::split_path(path).folder, memory.place()).second;
            if (!files.insert(path).second && !new_pair) continue;
            Support answer = backend.reaches(source, target);
            if (!answer.usable && !new_pair) return {objection({}, answer)};
            known = std::move(answer);
        }
    std::vector<Objection> found;
    for (const auto& [place, answer] : answers)
        if (!answer.usable) found.push_back(objection(place, answer));
    const auto alike = [&](const Objection& one) { return one.reason == found.front().reason; };
    // The same against all places: one against the file.
    if (!found.empty() && found.size() == answers.size() && std::ranges::all_of(found, alike))
        return {objection({}, answers.begin()->second)};
    return found;
}

// Whether the node at one end reaches the other; or, of this machine's GPUs, whether their memory goes to or from it as it is.
std::vector<Objection> objections_of_nodes(const backend::Registry& registry, std::span<const Buffer> from,
                                           std::span<const Buffer> to) {
    std::vector<Objection> found;
    const auto is_of_node = [](const Buffer& end) { return !end.place().node().empty(); };
    if (std::ranges::none_of(from, is_of_node) && std::ranges::none_of(to, is_of_node)) return found;
    for (const Offer& offer : registry.offers()) {
        backend::Backend* const backend = offer.support.usable ? registry.find(offer.name) : nullptr;
        if (backend == nullptr || !backend->reaches_nodes()) continue;
        for (const Buffer& source : from)
            for (const Buffer& target : to) {
                const bool nodes = is_of_node(source) && is_of_node(target);
                const Place& here = is_of_node(source) ? target.place() : source.place();
                const bool gpu = here.is_gpu() && is_of_node(source) != is_of_node(target);
                const auto known = [&](const Objection& one) { return gpu && one.place == here; };
                if ((!nodes && !gpu) || base::is_object(source.place()) || std::ranges::any_of(found, known))
                    continue;
                Support answer = backend->reaches(source, target);
                if (answer.usable) continue;
                const auto place = gpu ? std::optional(here) : std::nullopt;
                found.push_back({offer.name, place, answer.reason, answer.remedy});
                if (nodes) return found;
            }
    }
    return found;
}

}  // namespace

std::vector<Objection> objections(const backend::Registry& registry, std::span<const Buffer> from,
                                  std::span<const Buffer> to, const CopyOptions& options) {
    std::vector<Objection> found = objections_of_nodes(registry, from, to);
    const auto is_file = [](const Buffer& end) { return end.place().is_file(); };
    if (options.require == Require::host ||
        (std::ranges::none_of(from, is_file) && std::ranges::none_of(to, is_file)))
        return found;
    std::optional<Support> wish;
    for (const Offer& offer : registry.offers())
        if (backend::Backend* const backend = offer.support.usable ? registry.find(offer.name) : nullptr)
            for (Objection& one : objections_of(*backend, offer, from, to, options, wish))
                found.push_back(std::move(one));
    return found;
}

std::vector<Offer> with(std::vector<Offer> offers, const std::vector<Objection>& objections) {
    for (const Objection& objection : objections)
        for (Offer& offer : offers)
            if (offer.name == objection.backend) offer.objections.push_back(objection);
    return offers;
}

}  // namespace sidestep::transfer
