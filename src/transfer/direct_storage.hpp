// What backends have against carrying these very bytes between a file and device memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <sidestep/options.hpp>
#include "backend/registry.hpp"

namespace sidestep::transfer {

// Why a backend that is usable on this machine does not carry bytes between files and device memory.
struct Objection {
    std::string backend;
    std::string reason;
    std::string remedy;
};

// Asks every usable backend with Reach::storage_gpu for the ends (Backend::reaches), from each to each, since all go the
// same way, up to its first objection; unless the options rule its path out anyway, or the page cache holds most of
// what is to be read, whichever files it is in. Empty, at no cost, for ends that are not a file and device memory. May
// block.
std::vector<Objection> objections(const backend::Registry& registry, std::span<const Buffer> from,
                                  std::span<const Buffer> to, const CopyOptions& options);
inline std::vector<Objection> objections(const backend::Registry& registry, const Buffer& from,
                                         const Buffer& to, const CopyOptions& options) {
    return objections(registry, std::span(&from, 1), std::span(&to, 1), options);
}

// The offers in which each objection stands as the reason why the backend's paths between files and device
// memory cannot be taken. Positions of the others stay as they are.
std::vector<backend::Offer> without(std::vector<backend::Offer> offers,
                                    const std::vector<Objection>& objections);

}  // namespace sidestep::transfer
