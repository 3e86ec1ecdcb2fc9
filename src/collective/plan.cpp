// What a group would do, as text and as JSON (docs/collectives.md).
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collective/choose.hpp"

namespace sidestep {

namespace {

using Json = nlohmann::ordered_json;

std::string blocks_words(int blocks) {
    if (blocks == 0) return "no thread block";
    return fmt::format("{} thread block{}", blocks, blocks == 1 ? "" : "s");
}

}  // namespace

std::string CollectivePlan::to_string() const {
    std::string text =
        fmt::format("{}  {}   {}, {}, expected {}", sidestep::to_string(collective), format_bytes(bytes),
                    algorithm, blocks_words(blocks), format_seconds(expected_us * 1e-6));
    if (expected_bus_gb_per_s > 0)
        text += fmt::format(", {} of bus bandwidth", format_rate(expected_bus_gb_per_s));
    text += fmt::format("\n  why     {}\n", reason);
    if (!memory.empty()) text += fmt::format("  mapped  {}\n", memory);
    if (!refused.empty()) text += "refused\n";
    std::size_t width = 0;
    for (const Refused& other : refused) width = std::max(width, other.path.size());
    for (const Refused& other : refused) {
        text += fmt::format("  {:<{}}  {}", other.path, width, other.reason);
        if (other.gb_per_s > 0) text += fmt::format(", {}", format_rate(other.gb_per_s));
        text += '\n';
    }
    return text;
}

std::string CollectivePlan::to_json() const {
    Json others = Json::array();
    for (const Refused& other : refused)
        others.push_back(
            {{"algorithm", other.path}, {"reason", other.reason}, {"bus_gb_per_s", other.gb_per_s}});
    const Json json = {{"version", 1},
                       {"collective", sidestep::to_string(collective)},
                       {"bytes", bytes},
                       {"algorithm", algorithm},
                       {"blocks", blocks},
                       {"expected_us", expected_us},
                       {"expected_bus_gb_per_s", expected_bus_gb_per_s},
                       {"reason", reason},
                       {"memory", memory},
                       {"refused", std::move(others)}};
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

namespace collective {

std::optional<Refused> multicast_refused(const Operation& operation, int ranks) {
    // 475 GB/s of bus bandwidth on eight H200 (NVIDIA/nccl-tests issue 272) and a latency of 25 us (the NVLS entry of
    // NCCL's tuning.cc), against 340 GB/s here: equal at 14 MB. Computed, not measured.
    constexpr Bytes least = Bytes{16} << 20;
    const bool reduces =
        operation.collective == Collective::all_reduce || operation.collective == Collective::reduce_scatter;
    if (!reduces || ranks <= 2 || counted_bytes(operation, ranks) < least) return std::nullopt;
    return Refused{
        "NVLink multicast",
        fmt::format("not built. This machine has it, and NCCL reduces within the NVSwitch by it (NVLS, where "
                    "nothing switches it off): from about {} on it is likely quicker",
                    format_bytes(least)),
        {},
        0};
}

CollectivePlan plan_of(const Operation& operation, const Choice& choice, int ranks, std::string memory) {
    CollectivePlan plan;
    plan.collective = operation.collective;
    plan.bytes = counted_bytes(operation, ranks);
    plan.algorithm = choice.algorithm;
    plan.blocks = choice.blocks;
    plan.expected_us = choice.expected_us;
    plan.expected_bus_gb_per_s = bus_rate(operation, ranks, choice.expected_us);
    plan.reason = choice.reason;
    plan.refused = choice.refused;
    plan.memory = std::move(memory);
    return plan;
}

}  // namespace collective
}  // namespace sidestep
