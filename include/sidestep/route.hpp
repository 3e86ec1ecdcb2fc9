// The way bytes take, and the ways that were refused.
#pragma once

#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/memory_kind.hpp>
#include <sidestep/place.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

// One step of a lane, carried out by one backend.
struct Hop {
    Place from;
    Place to;
    MemoryKind from_memory = MemoryKind::automatic;
    MemoryKind to_memory = MemoryKind::automatic;
    std::string backend;    // "cuda", "host", "file"
    std::string engine;     // "copy engine", "kernel", "memcpy", "file I/O"
    std::string link;       // "NVLink (18 links through NVSwitch)"; empty inside one device
    double gb_per_s = 0;    // expected
    double latency_us = 0;  // expected, of one piece
    std::string reason;     // why this hop is there

    bool operator==(const Hop&) const = default;
};

// Hops in order. Between two hops the bytes wait in staging memory at the place they share.
struct Lane {
    std::vector<Hop> hops;
    double share = 1;     // of the bytes, 0 to 1
    double gb_per_s = 0;  // expected of the whole lane, hops overlapping
    double latency_us = 0;

    bool operator==(const Lane&) const = default;
};

// A candidate that was not taken.
struct Refused {
    std::string path;     // "gpu:0 -> host -> gpu:5"
    std::string reason;   // never empty
    std::string remedy;   // what would make it possible; empty where nothing would, or nothing should
    double gb_per_s = 0;  // expected; 0 where the path cannot be used at all

    bool operator==(const Refused&) const = default;
};

// Plain data: two routes over the same topology can be compared, printed and tested.
struct SIDESTEP_API Route {
    Place from;
    Place to;
    Bytes bytes = 0;        // that the prices were made for
    bool emulated = false;  // the rates are those of a modelled machine
    std::vector<Lane> lanes;
    std::vector<Refused> refused;
    double expected_gb_per_s = 0;
    double expected_seconds = 0;

    // No staging anywhere: every lane is a single hop.
    bool direct() const;

    // The lines `sidestep route` prints.
    std::string to_string() const;
    // The object documented in docs/json.md.
    std::string to_json() const;

    bool operator==(const Route&) const = default;
};

}  // namespace sidestep
