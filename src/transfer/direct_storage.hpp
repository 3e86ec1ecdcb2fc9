// What backends have against carrying these very bytes, between a file and device memory or between two nodes.
#pragma once

#include <span>
#include <vector>

#include <sidestep/options.hpp>
#include "backend/registry.hpp"

namespace sidestep::transfer {

using backend::Objection;

// Asks every usable backend with Reach::storage_gpu for the ends (Backend::reaches), from each to each; unless the options
// rule its path out anyway, or the page cache holds most of what is to be read, whichever files it is in. What it has
// against a place counts for that place, what it has against a file or all places for all. Of two nodes the
// backend that reaches them is asked. Empty, at no cost, for all other ends. May block.
std::vector<Objection> objections(const backend::Registry& registry, std::span<const Buffer> from,
                                  std::span<const Buffer> to, const CopyOptions& options);
inline std::vector<Objection> objections(const backend::Registry& registry, const Buffer& from,
                                         const Buffer& to, const CopyOptions& options) {
    return objections(registry, std::span(&from, 1), std::span(&to, 1), options);
}

// The offers with what their backends have against them.
std::vector<backend::Offer> with(std::vector<backend::Offer> offers,
                                 const std::vector<Objection>& objections);

}  // namespace sidestep::transfer
