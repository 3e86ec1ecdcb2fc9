#include <sidestep/probe_report.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <sidestep/topology.hpp>

#include "base/exception_words.hpp"
#include "base/try.hpp"

namespace sidestep {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format = "sidestep-probe";
constexpr int version = 1;

Json pair_json(const PairProbe& pair) {
    Json object = {{"from", pair.from},           {"to", pair.to},         {"from_bus_id", pair.from_bus_id},
                   {"to_bus_id", pair.to_bus_id}, {"engine", pair.engine}, {"direct", pair.direct}};
    if (!pair.refusal.empty()) object["refusal"] = pair.refusal;
    object["intact"] = pair.intact;
    if (pair.wrong_at) object["wrong_at"] = *pair.wrong_at;
    object["gb_per_s"] = pair.gb_per_s;
    object["expected_gb_per_s"] = pair.expected_gb_per_s;
    object["bounce_gb_per_s"] = pair.bounce_gb_per_s;
    return object;
}

PairProbe pair_of(const Json& object) {
    PairProbe pair;
    pair.from = object.at("from");
    pair.to = object.at("to");
    pair.from_bus_id = object.at("from_bus_id");
    pair.to_bus_id = object.at("to_bus_id");
    pair.engine = object.at("engine");
    pair.direct = object.at("direct");
    pair.refusal = object.value("refusal", "");
    pair.intact = object.at("intact");
    if (object.contains("wrong_at")) pair.wrong_at = object["wrong_at"].get<Bytes>();
    pair.gb_per_s = object.at("gb_per_s");
    pair.expected_gb_per_s = object.at("expected_gb_per_s");
    pair.bounce_gb_per_s = object.at("bounce_gb_per_s");
    return pair;
}

std::string arrow(const PairProbe& pair) {
    return fmt::format("gpu:{} -> gpu:{}", pair.from, pair.to);
}

// One row a pair and engine.
std::string table(const std::vector<PairProbe>& pairs) {
    std::string text =
        fmt::format("  {:<18} {:<12} {:>9} {:>9} {:>9}\n", "pair", "engine", "GB/s", "expected", "bounce");
    for (const PairProbe& pair : pairs) {
        text += fmt::format("  {:<18} {:<12} ", arrow(pair), pair.engine);
        if (!pair.direct) {
            text += fmt::format("{:>9} {:>9} {:>9.1f}  {}\n", "-", "-", pair.bounce_gb_per_s, pair.refusal);
            continue;
        }
        text += fmt::format("{:>9.1f} {:>9.1f} {:>9.1f}", pair.gb_per_s, pair.expected_gb_per_s,
                            pair.bounce_gb_per_s);
        if (!pair.intact) text += fmt::format("  WRONG BYTES from offset {}", pair.wrong_at.value_or(0));
        text += "\n";
    }
    return text;
}

// Whether a pair is worth a line of its own.
bool stands_out(const PairProbe& pair, bool emulated) {
    if (!pair.direct || !pair.intact) return true;
    return !emulated &&
           (pair.gb_per_s < pair.bounce_gb_per_s || pair.gb_per_s < 0.8 * pair.expected_gb_per_s);
}

// GB/s by one engine, a line for each GPU that sends.
std::string matrix(const std::vector<PairProbe>& pairs, const std::string& engine) {
    std::map<int, std::map<int, double>> cells;
    std::set<int> gpus;
    for (const PairProbe& pair : pairs) {
        if (pair.engine != engine) continue;
        gpus.insert({pair.from, pair.to});
        if (pair.direct) cells[pair.from][pair.to] = pair.gb_per_s;
    }
    std::string text = fmt::format("  GB/s by {}\n  {:<9}", engine, "from \\ to");
    for (const int to : gpus) text += fmt::format(" {:>7}", fmt::format("gpu:{}", to));
    for (const int from : gpus) {
        text += fmt::format("\n  {:<9}", fmt::format("gpu:{}", from));
        for (const int to : gpus)
            text += fmt::format(" {:>7}",
                                cells[from].count(to) == 0 ? "-" : fmt::format("{:.1f}", cells[from][to]));
    }
    return text + "\n";
}

// Pairs that no engine joins directly, one line for each reason. Takes them out of `pairs`.
std::string refused_pairs(std::vector<PairProbe>& pairs) {
    std::map<std::string, std::vector<PairProbe>> by_reason;
    for (const PairProbe& pair : pairs)
        if (!pair.direct) by_reason[pair.refusal].push_back(pair);
    std::erase_if(pairs, [](const PairProbe& pair) { return !pair.direct; });
    std::string text;
    for (const auto& [reason, alike] : by_reason) {
        std::set<std::string> engines;
        for (const PairProbe& pair : alike) engines.insert(pair.engine);
        const std::string more = alike.size() > 1 ? fmt::format(" and {} more", alike.size() - 1) : "";
        text += fmt::format("  not direct by {}: {}{}: {}\n", fmt::join(engines, " and "),
                            arrow(alike.front()), more, reason);
    }
    return text;
}

// The matrices of many pairs, and what stands out of them.
std::string matrices(const ProbeReport& report) {
    std::vector<std::string> engines;
    std::vector<PairProbe> odd;
    for (const PairProbe& pair : report.pairs) {
        if (std::find(engines.begin(), engines.end(), pair.engine) == engines.end())
            engines.push_back(pair.engine);
        if (stands_out(pair, report.emulated)) odd.push_back(pair);
    }
    std::string text;
    for (const std::string& engine : engines) text += matrix(report.pairs, engine);
    const auto intact = [](const PairProbe& pair) { return pair.intact; };
    if (std::all_of(report.pairs.begin(), report.pairs.end(), intact)) text += "  every byte arrived\n";
    text += refused_pairs(odd);
    return odd.empty() ? text : text + table(odd);
}

}  // namespace

std::string ProbeReport::to_string() const {
    std::string text = fmt::format(
        "machine {}: {} directions and engines, {} a copy{}\n", machine, pairs.size(), format_bytes(bytes),
        emulated ? "; emulated: the rates are those of this machine's memory" : "");
    const auto beyond_two = [](const PairProbe& pair) { return pair.from > 1 || pair.to > 1; };
    return text + (std::any_of(pairs.begin(), pairs.end(), beyond_two) ? matrices(*this) : table(pairs));
}

std::string ProbeReport::to_json() const {
    Json json = {{"format", format},
                 {"version", version},
                 {"machine", machine},
                 {"emulated", emulated},
                 {"bytes", bytes}};
    json["pairs"] = Json::array();
    for (const PairProbe& pair : pairs) json["pairs"].push_back(pair_json(pair));
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<ProbeReport> ProbeReport::from_json(std::string_view text, const std::string& where) {
    const char* hint = "give a file that sidestep doctor --probe --save wrote";
    try {
        const Json json = Json::parse(text);
        if (json.at("format") != format)
            return Error{ErrorCode::invalid_argument, "the file is not a report of a probe", where, hint};
        if (json.at("version") != version) {
            return Error{ErrorCode::invalid_argument,
                         fmt::format("the report is of version {}, and this program reads {}",
                                     json.at("version").dump(), version),
                         where, hint};
        }
        ProbeReport report;
        report.machine = json.at("machine");
        report.emulated = json.at("emulated");
        report.bytes = json.at("bytes");
        for (const Json& pair : json.at("pairs")) report.pairs.push_back(pair_of(pair));
        return report;
    } catch (const Json::exception& error) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the report of a probe cannot be read: {}", base::words_of(error)), where,
                     hint};
    }
}

namespace {

// What all engines together found about one direction of one pair.
struct Judgement {
    bool wrong = false;
    std::string what;  // of the wrong bytes
    double best = 0;   // of the direct rates
    double bounce = 0;
};

Result<int> gpu_with(const Topology& topology, const std::string& bus_id, int index) {
    for (const Device& device : topology.devices()) {
        if (device.kind != DeviceKind::gpu) continue;
        if (bus_id.empty() ? device.index == index : device.bus_id == bus_id) return device.index;
    }
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the probe saw a GPU at {}, which {} does not have",
                             bus_id.empty() ? fmt::format("gpu:{}", index) : bus_id, topology.name()),
                 "probe", "probe this machine again: sidestep doctor --probe --save FILE"};
}

void judge(const PairProbe& pair, Judgement& judgement) {
    if (!pair.direct) return;
    if (!pair.intact) {
        judgement.wrong = true;
        judgement.what = fmt::format("by {} from offset {} on", pair.engine, pair.wrong_at.value_or(0));
    }
    judgement.best = std::max(judgement.best, pair.gb_per_s);
    judgement.bounce = std::max(judgement.bounce, pair.bounce_gb_per_s);
}

}  // namespace

Result<Topology> Topology::with_probe(const ProbeReport& report) const {
    std::map<std::pair<int, int>, Judgement> judgements;
    for (const PairProbe& pair : report.pairs) {
        SIDESTEP_TRY(const int from, gpu_with(*this, pair.from_bus_id, pair.from));
        SIDESTEP_TRY(const int to, gpu_with(*this, pair.to_bus_id, pair.to));
        judge(pair, judgements[{from, to}]);
    }
    Parts parts = parts_;
    for (const auto& [ends, judgement] : judgements) {
        PeerAccess access{false, false, "", ""};
        if (judgement.wrong) {
            access.reason = fmt::format("a probe found wrong bytes after a direct copy, {}", judgement.what);
            access.remedy = "sidestep doctor says what may cause it; probe again once it is mended";
        } else if (!report.emulated && judgement.best > 0 && judgement.best < judgement.bounce) {
            access.reason =
                fmt::format("a probe measured {:.1f} GB/s directly and {:.1f} GB/s through host memory",
                            judgement.best, judgement.bounce);
            access.remedy = "sidestep doctor says what may slow it down; probe again once it is mended";
        } else {
            continue;
        }
        const auto known = std::find_if(
            parts.peers.begin(), parts.peers.end(),
            [&, at = ends](const auto& peer) { return peer.from == at.first && peer.to == at.second; });
        if (known != parts.peers.end()) {
            known->access = std::move(access);
        } else {
            parts.peers.push_back({ends.first, ends.second, std::move(access)});
        }
    }
    return create(std::move(parts));
}

}  // namespace sidestep
