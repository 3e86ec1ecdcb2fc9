// The file in which `sidestep tune` keeps what it measured.
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/exception_words.hpp"
#include "base/try.hpp"
#include "collective/choose.hpp"

namespace sidestep::collective {

namespace {

using Json = nlohmann::ordered_json;

constexpr int format_version = 1;
constexpr std::uint64_t max_threshold = std::uint64_t{1} << 40;

struct Rate {
    const char* key;
    double Figures::*member;
    double min;
    double max;
};
// Bounds that no machine passes: they catch a figure in the wrong unit.
constexpr std::array<Rate, 8> rates = {{{"launch_us", &Figures::launch_us, 0, 1e4},
                                        {"hop_us", &Figures::hop_us, 0, 1e4},
                                        {"link_gb_per_s", &Figures::link_gb_per_s, 1e-3, 1e6},
                                        {"push_gb_per_s", &Figures::push_gb_per_s, 0, 1e6},
                                        {"ring_gb_per_s", &Figures::ring_gb_per_s, 0, 1e6},
                                        {"local_gb_per_s", &Figures::local_gb_per_s, 1e-3, 1e6},
                                        {"packet_gb_per_s", &Figures::packet_gb_per_s, 1e-3, 1e6},
                                        {"block_gb_per_s", &Figures::block_gb_per_s, 1e-3, 1e6}}};

struct Threshold {
    const char* key;
    std::uint64_t Figures::*member;
};
constexpr std::array<Threshold, 7> thresholds = {{{"one_shot_max", &Figures::one_shot_max},
                                                  {"lamport_min", &Figures::lamport_min},
                                                  {"lamport_max", &Figures::lamport_max},
                                                  {"packets_max", &Figures::packets_max},
                                                  {"lines_max", &Figures::lines_max},
                                                  {"others_max", &Figures::others_max},
                                                  {"others_lines_max", &Figures::others_lines_max}}};

Error bad(std::string what) {
    return {ErrorCode::invalid_argument, std::move(what), "figures for collectives",
            "give a file that `sidestep tune` wrote"};
}

// Fails at the second of two equal keys of the one object.
Result<Json> parse_once(const std::string& text) {
    std::set<std::string> seen;
    std::string twice;
    const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(value.get<std::string>()).second)
            twice = value.get<std::string>();
        return true;
    };
    try {
        Json json = Json::parse(text, watch);
        if (!twice.empty()) return bad(fmt::format("\"{}\" appears twice", twice));
        if (!json.is_object()) return bad("the file holds no object");
        return json;
    } catch (const Json::exception& error) {
        return bad(fmt::format("the file is no JSON: {}", base::words_of(error)));
    }
}

Result<void> check_version(const Json& json) {
    const auto found = json.find("version");
    if (found == json.end()) return bad("the file has no \"version\"");
    if (!found->is_number_integer() || *found != format_version)
        return bad(fmt::format("\"version\" is {}, and this program reads {}",
                               found->dump(-1, ' ', false, Json::error_handler_t::replace), format_version));
    return {};
}

Result<double> rate_of(const Rate& rate, const Json& value) {
    if (!value.is_number()) return bad(fmt::format("\"{}\" is not a number", rate.key));
    const double number = value.get<double>();
    if (!std::isfinite(number) || number < rate.min || number > rate.max)
        return bad(
            fmt::format("\"{}\" is {}: from {} to {} makes sense", rate.key, number, rate.min, rate.max));
    return number;
}

Result<std::uint64_t> whole(const char* key, const Json& value, std::uint64_t min, std::uint64_t max) {
    if (!value.is_number_integer()) return bad(fmt::format("\"{}\" is not a whole number", key));
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < min || value.get<std::uint64_t>() > max)
        return bad(fmt::format("\"{}\" is {}: from {} to {} makes sense", key, value.dump(), min, max));
    return value.get<std::uint64_t>();
}

Result<void> take(const std::string& key, const Json& value, Figures& figures) {
    if (key == "version") return {};
    if (key == "machine") {
        if (!value.is_string()) return bad("\"machine\" is not a string");
        return {};
    }
    if (key == "max_blocks") {
        SIDESTEP_TRY(const std::uint64_t blocks, whole("max_blocks", value, 1, protocol::staging_blocks));
        figures.max_blocks = static_cast<int>(blocks);
        return {};
    }
    for (const Rate& rate : rates) {
        if (key != rate.key) continue;
        SIDESTEP_TRY(figures.*rate.member, rate_of(rate, value));
        return {};
    }
    for (const Threshold& threshold : thresholds) {
        if (key != threshold.key) continue;
        SIDESTEP_TRY(figures.*threshold.member, whole(threshold.key, value, 0, max_threshold));
        return {};
    }
    return bad(fmt::format("\"{}\" is not a figure that this program knows", key));
}

// A range of which one end is missing or above the other is a slip of whoever wrote it, not "no Lamport".
Result<void> check_lamport(const Figures& figures) {
    if (figures.lamport_min <= figures.lamport_max) return {};
    return bad(fmt::format("\"lamport_min\" is {}, above \"lamport_max\", {}", figures.lamport_min,
                           figures.lamport_max));
}

}  // namespace

// Of 16 lanes of PCIe gen 4, 24 GB/s, and between two sockets 16 GB/s: the rates that NCCL reckons with
// (graph/topo.h; gen 3 is 12 GB/s, each generation twice that; sockets of AMD). Each of two GPUs a socket
// that reads and writes all others evenly has two thirds of its bytes cross the sockets, and half of what
// these carry: 12 GB/s. Of a ring one neighbour alone is across, so that the GPU's own link is what counts.
// The times are guesses: twice, and in host memory three times, those of NVLink, since a poll crosses PCIe as
// well. Not measured on any machine.
Figures built_in_figures(Wire wire) {
    Figures figures;
    if (wire == Wire::nvlink) return figures;
    const bool polls_cross = wire == Wire::host_memory;
    figures.hop_us *= polls_cross ? 3 : 2;
    figures.link_gb_per_s = 12;
    figures.push_gb_per_s = 0;
    figures.ring_gb_per_s = 24;
    figures.packet_gb_per_s = 6;  // half of the link: as many bytes are flags
    figures.block_gb_per_s = 4;
    figures.max_blocks = 32;
    return figures;
}

namespace {

Result<Json> checked_file(const std::string& json) {
    if (json.size() > largest_figures)
        return bad(fmt::format("the file has {}: at most {} make sense", format_bytes(json.size()),
                               format_bytes(largest_figures)));
    SIDESTEP_TRY(Json object, parse_once(json));
    SIDESTEP_CHECK(check_version(object));
    return object;
}

}  // namespace

Result<Figures> parse_figures(const std::string& json, Wire wire) {
    SIDESTEP_TRY(const Json object, checked_file(json));
    Figures figures = built_in_figures(wire);
    // Who measured the links and says nothing of this knows nothing of it.
    if (object.contains("link_gb_per_s")) figures.push_gb_per_s = 0;
    for (const auto& [key, value] : object.items()) SIDESTEP_CHECK(take(key, value, figures));
    SIDESTEP_CHECK(check_lamport(figures));
    return figures;
}

Result<std::string> figures_for_others(const std::string& json) {
    SIDESTEP_TRY(Json object, checked_file(json));
    Figures figures;
    for (const auto& [key, value] : object.items()) SIDESTEP_CHECK(take(key, value, figures));
    SIDESTEP_CHECK(check_lamport(figures));
    object.erase("machine");
    return object.dump();
}

}  // namespace sidestep::collective
