// Routes and receipts as text and as JSON (docs/json.md).
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sidestep/receipt.hpp>
#include "route/words.hpp"

namespace sidestep {
namespace {

using Json = nlohmann::ordered_json;

std::string lane_lines(const Lane& lane, const char* indent) {
    std::string text;
    for (std::size_t i = 0; i < lane.hops.size(); ++i) {
        const Hop& hop = lane.hops[i];
        text += fmt::format("{}{}  {}", indent, i + 1, route::engine_words(hop));
        if (!hop.link.empty()) text += " over " + hop.link;
        if (lane.hops.size() > 1) text += ", " + route::arrows({hop.from, hop.to});
        text += fmt::format(", {}", format_rate(hop.gb_per_s));
        if (!hop.reason.empty()) text += fmt::format(" ({})", hop.reason);
        text += '\n';
    }
    return text;
}

std::string refused_lines(const std::vector<Refused>& refused) {
    if (refused.empty()) return {};
    std::size_t width = 0;
    for (const Refused& other : refused)
        width = std::max(width, std::min<std::size_t>(other.path.size(), 48));
    std::string text = "refused\n";
    for (const Refused& other : refused) {
        text += fmt::format("  {:<{}}  {}", other.path, width, other.reason);
        if (other.gb_per_s > 0) text += fmt::format(", {}", format_rate(other.gb_per_s));
        text += '\n';
        if (!other.remedy.empty()) text += fmt::format("  {:<{}}  remedy: {}\n", "", width, other.remedy);
    }
    return text;
}

Json hop_json(const Hop& hop) {
    return {{"from", hop.from.to_string()},
            {"to", hop.to.to_string()},
            {"from_memory", to_string(hop.from_memory)},
            {"to_memory", to_string(hop.to_memory)},
            {"backend", hop.backend},
            {"engine", hop.engine},
            {"link", hop.link},
            {"gb_per_s", hop.gb_per_s},
            {"latency_us", hop.latency_us},
            {"reason", hop.reason}};
}

Json route_json(const Route& route) {
    Json lanes = Json::array();
    for (const Lane& lane : route.lanes) {
        Json hops = Json::array();
        for (const Hop& hop : lane.hops) hops.push_back(hop_json(hop));
        lanes.push_back({{"share", lane.share},
                         {"gb_per_s", lane.gb_per_s},
                         {"latency_us", lane.latency_us},
                         {"hops", std::move(hops)}});
    }
    Json refused = Json::array();
    for (const Refused& other : route.refused)
        refused.push_back({{"path", other.path},
                           {"reason", other.reason},
                           {"remedy", other.remedy},
                           {"gb_per_s", other.gb_per_s}});
    return {{"version", 1},
            {"from", route.from.to_string()},
            {"to", route.to.to_string()},
            {"bytes", route.bytes},
            {"emulated", route.emulated},
            {"direct", route.direct()},
            {"expected_gb_per_s", route.expected_gb_per_s},
            {"expected_seconds", route.expected_seconds},
            {"lanes", std::move(lanes)},
            {"refused", std::move(refused)}};
}

// Paths of files may hold bytes that are no UTF-8; they are replaced rather than thrown over.
std::string dump(const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

// "6 MiB by O_DIRECT, 4 KiB through the page cache"
std::string storage_words(const StorageBytes& storage) {
    std::string text;
    const auto add = [&text](Bytes bytes, const char* how) {
        if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", format_bytes(bytes), how);
    };
    add(storage.gpu_direct, "between storage and device memory");
    add(storage.o_direct, "by O_DIRECT");
    add(storage.page_cache, "through the page cache");
    return text;
}

}  // namespace

bool Route::direct() const {
    return std::ranges::all_of(lanes, [](const Lane& lane) { return lane.hops.size() == 1; });
}

std::string Route::to_string() const {
    std::string text = route::arrows({from, to}) + "   ";
    text += lanes.size() == 1
                ? fmt::format("{} hop{}", lanes[0].hops.size(), lanes[0].hops.size() == 1 ? "" : "s")
                : fmt::format("{} lanes", lanes.size());
    text += fmt::format(", expected {}{}\n", format_rate(expected_gb_per_s), emulated ? " (modelled)" : "");
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (lanes.size() > 1)
            text += fmt::format("  lane {}, {:.0f} % of the bytes\n", i + 1, lanes[i].share * 100);
        text += lane_lines(lanes[i], lanes.size() > 1 ? "    " : "  ");
    }
    return text + refused_lines(refused);
}

std::string Route::to_json() const {
    return dump(route_json(*this));
}

double Receipt::share_of_expected() const {
    if (!route || route->emulated || route->expected_gb_per_s <= 0 || seconds <= 0 || bytes == 0) return 0;
    double latency_us = 0;
    for (const Lane& lane : route->lanes) latency_us = std::max(latency_us, lane.latency_us);
    const double expected = latency_us * 1e-6 + static_cast<double>(bytes) / (route->expected_gb_per_s * 1e9);
    return expected / seconds;
}

std::string Receipt::summary() const {
    std::string text =
        fmt::format("{} in {}, {}", format_bytes(bytes), format_seconds(seconds), format_rate(gb_per_s()));
    if (route) {
        for (std::size_t i = 0; i < route->lanes.size(); ++i)
            text += (i == 0 ? ", " : " + ") + route::arrows(route->lanes[i].hops);
        if (route->emulated)
            text += fmt::format(", emulated: the model expects {}", format_rate(route->expected_gb_per_s));
        else if (const double share = share_of_expected(); share > 0)
            text +=
                fmt::format(", {:.0f} % of the expected {}", share * 100, format_rate(gb_per_s() / share));
    }
    if (verified) text += ", verified";
    return text;
}

std::string Receipt::explain() const {
    std::string text = summary() + "\n";
    if (route) {
        for (std::size_t i = 0; i < route->lanes.size(); ++i) {
            const Bytes carried = i < lane_bytes.size() ? lane_bytes[i] : 0;
            const bool failed = i < lane_failures.size() && !lane_failures[i].empty();
            text += fmt::format("lane {} carried {}{}\n", i + 1, format_bytes(carried),
                                failed ? ", then failed: " + lane_failures[i] : "");
            text += lane_lines(route->lanes[i], "  ");
        }
        text += refused_lines(route->refused);
    }
    if (storage.total() > 0) text += "storage: " + storage_words(storage) + "\n";
    for (const std::string& note : notes) text += "note: " + note + "\n";
    return text;
}

std::string Receipt::to_json() const {
    Json json = {{"version", 1},
                 {"bytes", bytes},
                 {"seconds", seconds},
                 {"gb_per_s", gb_per_s()},
                 {"share_of_expected", share_of_expected()},
                 {"verified", verified},
                 {"verify_seconds", verify_seconds},
                 {"lane_bytes", lane_bytes},
                 {"lane_failures", lane_failures},
                 {"storage",
                  {{"gpu_direct", storage.gpu_direct},
                   {"o_direct", storage.o_direct},
                   {"page_cache", storage.page_cache},
                   {"misses", storage.misses}}},
                 {"notes", notes}};
    Json& list = json["stages"] = Json::array();
    for (const Stage& stage : stages)
        list.push_back({{"name", stage.name},
                        {"bytes", stage.bytes},
                        {"busy_seconds", stage.busy_seconds},
                        {"limit_seconds", stage.limit_seconds}});
    json["route"] = route ? route_json(*route) : Json(nullptr);
    return dump(json);
}

}  // namespace sidestep
