// Offers and requests that tests of routes share.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "route/planner.hpp"
#include "topology/link_rates.hpp"

namespace sidestep::test {

using backend::Capability;
using backend::MemorySet;
using backend::Offer;
using backend::Reach;
using backend::Support;

inline constexpr MemorySet on_gpu{MemoryKind::device};
inline constexpr MemorySet on_pinned{MemoryKind::pinned};
inline constexpr MemorySet on_host{MemoryKind::pinned, MemoryKind::pageable};
inline constexpr MemorySet in_file{MemoryKind::storage};

inline Capability capability(PlaceKind from, PlaceKind to, MemorySet reads, MemorySet writes, Reach reach,
                             const char* engine, double efficiency, double max = 0) {
    Capability made;
    made.from = from;
    made.to = to;
    made.from_memory = reads;
    made.to_memory = writes;
    made.reach = reach;
    made.engine = engine;
    if (made.engine == "kernel") made.meets = Prefer::kernel;
    if (made.engine == "copy engine") made.meets = Prefer::copy_engine;
    made.efficiency = efficiency;
    made.max_gb_per_s = max;
    made.latency_us = 2;
    return made;
}

// What an engine has to make of a link of the newest generation, so that `share` of its rate comes out.
inline double for_share(LinkKind link, double share) {
    return share / topology::reached_part(link);
}

inline std::vector<Offer> offers(bool cuda_usable = true) {
    using enum PlaceKind;
    const double over_pcie = for_share(LinkKind::pcie, 0.9);
    Offer host_offer{"host",
                     Support::yes(""),
                     {capability(host, host, on_host, on_host, Reach::host_memory, "memcpy", 1, 40)},
                     {},
                     {}};
    host_offer.host_memory = {MemoryKind::pageable};
    Offer file_offer{"file",
                     Support::yes(""),
                     {capability(file, host, in_file, on_host, Reach::storage, "file I/O", 1, 5),
                      capability(host, file, on_host, in_file, Reach::storage, "file I/O", 1, 4)},
                     {},
                     {}};
    Offer cuda{
        "cuda",
        cuda_usable ? Support::yes("") : Support::no("no NVIDIA driver", "install one"),
        {capability(host, gpu, on_pinned, on_gpu, Reach::host_link, "copy engine", over_pcie),
         capability(gpu, host, on_gpu, on_pinned, Reach::host_link, "copy engine", over_pcie),
         capability(gpu, gpu, on_gpu, on_gpu, Reach::peer_access, "copy engine",
                    for_share(LinkKind::nvlink, 0.8)),
         capability(gpu, gpu, on_gpu, on_gpu, Reach::peer_access, "kernel", for_share(LinkKind::nvlink, 0.7)),
         capability(gpu, gpu, on_gpu, on_gpu, Reach::same_gpu, "copy engine", 1, 2000)},
        {},
        {}};
    cuda.host_memory = {MemoryKind::pinned};
    cuda.gpu_memory = {MemoryKind::device};
    Offer cufile{"cufile",
                 Support::no("not part of this build"),
                 {capability(file, gpu, in_file, on_gpu, Reach::storage_gpu, "direct storage", 1)},
                 {},
                 {}};
    return {host_offer, file_offer, cuda, cufile};
}

inline route::Request request(Place from, MemoryKind from_memory, Place to, MemoryKind to_memory,
                              Bytes bytes = 1_GiB) {
    route::Request made;
    made.from = {std::move(from), from_memory};
    made.to = {std::move(to), to_memory};
    made.bytes = bytes;
    return made;
}

inline route::Request between_gpus(int a, int b) {
    return request(Place::gpu(a), MemoryKind::device, Place::gpu(b), MemoryKind::device);
}

inline bool refuses(const Route& route, std::string_view path, std::string_view reason) {
    return std::any_of(route.refused.begin(), route.refused.end(), [&](const Refused& refused) {
        return refused.path.find(path) != std::string::npos &&
               refused.reason.find(reason) != std::string::npos;
    });
}

}  // namespace sidestep::test
