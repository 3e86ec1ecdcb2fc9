// What the fuzz targets share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

// libFuzzer's entry, which replay_test.cpp calls as well.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sidestep::fuzz {

// Ends the process, which is how libFuzzer learns that something is wrong.
inline void require(bool good, std::string_view what, const std::string& more = "") {
    if (good) return;
    std::fprintf(stderr, "broken promise: %.*s\n%s\n", static_cast<int>(what.size()), what.data(),
                 more.c_str());
    std::abort();
}

// Asks a topology what programs ask: nothing may crash, whatever a file said.
inline void ask(const Topology& topology) {
    const auto some = static_cast<DeviceId>(std::min<std::size_t>(topology.devices().size(), 6));
    for (DeviceId a = 0; a < some; ++a) {
        topology.parent(a);
        topology.cpu_of(a);
        for (DeviceId b = 0; b < some; ++b) {
            const Pair pair = topology.pair(a, b);
            require(pair.gb_per_s >= 0, "a rate is never below 0");
            require(pair.pair == topology.pair_class(a, b), "a pair has one class");
        }
    }
    for (int a = 0; a < 3; ++a) {
        for (int b = 0; b < 3; ++b) topology.peer_access(a, b);
    }
    if (topology.devices().size() <= 64) require(!topology.to_text().empty(), "every machine has words");
}

}  // namespace sidestep::fuzz
