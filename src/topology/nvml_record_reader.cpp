#include "topology/nvml_record_reader.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "base/exception_words.hpp"
#include "base/printable.hpp"

namespace sidestep::topology {

namespace {

using driver::CommonAncestor;
using driver::Nvml;
using driver::NvmlCounters;
using driver::NvmlFabric;
using driver::NvmlGpu;
using driver::NvmlLink;
using driver::P2pCapability;
using driver::P2pStatus;
using Json = nlohmann::ordered_json;

constexpr const char* format = "sidestep-nvml";
constexpr int version = 1;
constexpr P2pCapability capabilities[] = {P2pCapability::read, P2pCapability::write, P2pCapability::nvlink,
                                          P2pCapability::atomics, P2pCapability::pci};

// A refusal is an answer too: the readers print its words.
Json error_json(const Error& error) {
    return {{"error", error.message}, {"unsupported", error.code == ErrorCode::unsupported}};
}

// Texts of a record go to terminals.
std::string text_of(const Json& json) {
    std::string text = json;
    base::make_printable(text);
    return text;
}

Error error_of(const Json& json) {
    const bool unsupported = json.value("unsupported", true);
    return Error{unsupported ? ErrorCode::unsupported : ErrorCode::device_error, text_of(json.at("error")),
                 "record", ""};
}

Json facts_json(const NvmlGpu& gpu) {
    Json json = {{"name", gpu.name},
                 {"bus_id", gpu.bus_id},
                 {"memory", gpu.memory},
                 {"bar1", gpu.bar1},
                 {"cc", {gpu.cc_major, gpu.cc_minor}},
                 {"pcie", {gpu.pcie_generation, gpu.pcie_width}},
                 {"pcie_now", {gpu.pcie_generation_now, gpu.pcie_width_now}},
                 {"numa_node", gpu.numa_node},
                 {"c2c", {gpu.c2c_links, gpu.c2c_gb_per_s}}};
    if (gpu.pcie_replays) json["pcie_replays"] = *gpu.pcie_replays;
    if (gpu.mig) json["mig"] = *gpu.mig;
    if (gpu.virtualization) json["virtualization"] = static_cast<int>(*gpu.virtualization);
    return json;
}

NvmlGpu facts_of(const Json& json) {
    NvmlGpu gpu;
    gpu.name = text_of(json.at("name"));
    gpu.bus_id = text_of(json.at("bus_id"));
    gpu.memory = json.at("memory");
    gpu.bar1 = json.at("bar1");
    gpu.cc_major = json.at("cc").at(0);
    gpu.cc_minor = json.at("cc").at(1);
    gpu.pcie_generation = json.at("pcie").at(0);
    gpu.pcie_width = json.at("pcie").at(1);
    gpu.pcie_generation_now = json.at("pcie_now").at(0);
    gpu.pcie_width_now = json.at("pcie_now").at(1);
    gpu.numa_node = json.at("numa_node");
    gpu.c2c_links = json.at("c2c").at(0);
    gpu.c2c_gb_per_s = json.at("c2c").at(1);
    if (json.contains("pcie_replays")) gpu.pcie_replays = json["pcie_replays"].get<unsigned>();
    if (json.contains("mig")) gpu.mig = json["mig"].get<bool>();
    if (json.contains("virtualization"))
        gpu.virtualization = static_cast<driver::NvmlVirtualization>(json["virtualization"].get<int>());
    return gpu;
}

Json link_json(const NvmlLink& link) {
    return {{"active", link.active},
            {"remote", static_cast<int>(link.remote)},
            {"remote_bus_id", link.remote_bus_id},
            {"gb_per_s", link.gb_per_s}};
}

NvmlLink link_of(const Json& json) {
    return {json.at("active"), static_cast<driver::NvlinkRemote>(json.at("remote").get<int>()),
            text_of(json.at("remote_bus_id")), json.at("gb_per_s")};
}

// The cluster UUID says no more than whether there is one: that is all a check asks.
Json fabric_json(const NvmlFabric& fabric) {
    const bool any = fabric.cluster_uuid.find_first_not_of('0') != std::string::npos;
    return {{"state", static_cast<int>(fabric.state)},
            {"status", fabric.status},
            {"cluster", any},
            {"clique", fabric.clique},
            {"health", fabric.health}};
}

NvmlFabric fabric_of(const Json& json) {
    const std::string digits(32, json.at("cluster").get<bool>() ? 'f' : '0');
    return {static_cast<driver::FabricState>(json.at("state").get<int>()), json.at("status"), digits,
            json.at("clique"), json.at("health")};
}

using Counter = std::pair<const char*, NvmlCounters::Count NvmlCounters::*>;
constexpr Counter counter_names[] = {{"ecc_corrected", &NvmlCounters::ecc_corrected},
                                     {"ecc_uncorrected", &NvmlCounters::ecc_uncorrected},
                                     {"remapped_rows", &NvmlCounters::remapped_rows},
                                     {"nvlink_crc_errors", &NvmlCounters::nvlink_crc_errors},
                                     {"nvlink_replays", &NvmlCounters::nvlink_replays},
                                     {"nvlink_recoveries", &NvmlCounters::nvlink_recoveries},
                                     {"slowed_by", &NvmlCounters::slowed_by}};

Json counters_json(const NvmlCounters& counters) {
    Json json = Json::object();
    for (const auto& [name, member] : counter_names)
        if (counters.*member) json[name] = *(counters.*member);
    if (counters.remap_pending) json["remap_pending"] = *counters.remap_pending;
    if (counters.remap_failed) json["remap_failed"] = *counters.remap_failed;
    return json;
}

NvmlCounters counters_of(const Json& json) {
    NvmlCounters counters;
    for (const auto& [name, member] : counter_names)
        if (json.contains(name)) counters.*member = json[name].get<unsigned long long>();
    if (json.contains("remap_pending")) counters.remap_pending = json["remap_pending"].get<bool>();
    if (json.contains("remap_failed")) counters.remap_failed = json["remap_failed"].get<bool>();
    return counters;
}

template <typename Value, typename Write>
Json answer_json(const Result<Value>& answer, Write write) {
    return answer.ok() ? Json(write(*answer)) : error_json(answer.error());
}

Json gpu_json(const Nvml& nvml, int index) {
    const auto links = [](const std::vector<NvmlLink>& all) {
        Json json = Json::array();
        for (const NvmlLink& link : all) json.push_back(link_json(link));
        return json;
    };
    return {{"facts", answer_json(nvml.gpu(index), facts_json)},
            {"links", answer_json(nvml.links(index), links)},
            {"fabric", answer_json(nvml.fabric(index), fabric_json)},
            {"counters", answer_json(nvml.counters(index), counters_json)}};
}

Json pair_json(const Nvml& nvml, int a, int b) {
    Json json = {{"from", a}, {"to", b}};
    const auto number = [](auto value) { return static_cast<int>(value); };
    Json p2p = Json::array();
    for (const P2pCapability capability : capabilities)
        p2p.push_back(answer_json(nvml.p2p(a, b, capability), number));
    json["p2p"] = p2p;
    json["ancestor"] = answer_json(nvml.common_ancestor(a, b), number);
    return json;
}

template <typename Value, typename Read>
Result<Value> answer_of(const Json& json, Read read) {
    if (json.is_object() && json.contains("error")) return error_of(json);
    return Value(read(json));
}

class RecordedNvml final : public Nvml {
public:
    explicit RecordedNvml(const Json& json);

    std::string driver_version() const override { return driver_version_; }
    Result<int> gpu_count() const override { return count_; }
    Result<NvmlGpu> gpu(int index) const override { return at(facts_, index); }
    Result<std::vector<NvmlLink>> links(int index) const override { return at(links_, index); }
    Result<P2pStatus> p2p(int from, int to, P2pCapability capability) const override {
        const auto found = p2p_.find({from, to, capability});
        if (found == p2p_.end()) return not_recorded();
        return found->second;
    }
    Result<CommonAncestor> common_ancestor(int a, int b) const override {
        const auto found = ancestors_.find({a, b});
        if (found == ancestors_.end()) return not_recorded();
        return found->second;
    }
    Result<NvmlFabric> fabric(int index) const override { return at(fabrics_, index); }
    Result<NvmlCounters> counters(int index) const override { return at(counters_, index); }
    Result<bool> confidential_computing() const override { return confidential_; }

private:
    static Error not_recorded() {
        return Error{ErrorCode::unsupported, "this was not recorded", "record", ""};
    }
    template <typename Value>
    static Result<Value> at(const std::vector<Result<Value>>& all, int index) {
        if (index < 0 || static_cast<std::size_t>(index) >= all.size()) return not_recorded();
        return all[static_cast<std::size_t>(index)];
    }
    void read_pair(const Json& pair);

    std::string driver_version_;
    Result<int> count_ = not_recorded();
    Result<bool> confidential_ = not_recorded();
    std::vector<Result<NvmlGpu>> facts_;
    std::vector<Result<std::vector<NvmlLink>>> links_;
    std::vector<Result<NvmlFabric>> fabrics_;
    std::vector<Result<NvmlCounters>> counters_;
    std::map<std::tuple<int, int, P2pCapability>, Result<P2pStatus>> p2p_;
    std::map<std::pair<int, int>, Result<CommonAncestor>> ancestors_;
};

RecordedNvml::RecordedNvml(const Json& json) {
    driver_version_ = text_of(json.at("driver_version"));
    count_ = answer_of<int>(json.at("count"), [](const Json& number) { return number.get<int>(); });
    confidential_ =
        answer_of<bool>(json.at("confidential_computing"), [](const Json& on) { return on.get<bool>(); });
    const auto links = [](const Json& all) {
        std::vector<NvmlLink> read;
        for (const Json& link : all) read.push_back(link_of(link));
        return read;
    };
    for (const Json& gpu : json.at("gpus")) {
        facts_.push_back(answer_of<NvmlGpu>(gpu.at("facts"), facts_of));
        links_.push_back(answer_of<std::vector<NvmlLink>>(gpu.at("links"), links));
        fabrics_.push_back(answer_of<NvmlFabric>(gpu.at("fabric"), fabric_of));
        // Records from before there were counters have none.
        counters_.push_back(gpu.contains("counters") ? answer_of<NvmlCounters>(gpu["counters"], counters_of)
                                                     : Result<NvmlCounters>(not_recorded()));
    }
    for (const Json& pair : json.at("pairs")) read_pair(pair);
}

void RecordedNvml::read_pair(const Json& pair) {
    const int a = pair.at("from");
    const int b = pair.at("to");
    for (std::size_t i = 0; i < std::size(capabilities); ++i) {
        p2p_.emplace(std::tuple(a, b, capabilities[i]),
                     answer_of<P2pStatus>(pair.at("p2p").at(i), [](const Json& status) {
                         return static_cast<P2pStatus>(status.get<int>());
                     }));
    }
    ancestors_.emplace(std::pair(a, b), answer_of<CommonAncestor>(pair.at("ancestor"), [](const Json& level) {
                           return static_cast<CommonAncestor>(level.get<int>());
                       }));
}

}  // namespace

std::string nvml_to_json(const Nvml& nvml) {
    Json json = {{"format", format}, {"version", version}, {"driver_version", nvml.driver_version()}};
    const auto count = nvml.gpu_count();
    json["count"] = answer_json(count, [](int number) { return number; });
    json["confidential_computing"] = answer_json(nvml.confidential_computing(), [](bool on) { return on; });
    json["gpus"] = Json::array();
    json["pairs"] = Json::array();
    const int gpus = count.ok() ? *count : 0;
    for (int a = 0; a < gpus; ++a) {
        json["gpus"].push_back(gpu_json(nvml, a));
        for (int b = 0; b < gpus; ++b) {
            if (a != b) json["pairs"].push_back(pair_json(nvml, a, b));
        }
    }
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::unique_ptr<Nvml>> nvml_from_json(std::string_view text, const std::string& where) {
    try {
        const Json json = Json::parse(text);
        if (json.at("format") != format || json.at("version") != version)
            return Error{ErrorCode::invalid_argument, "this is not a record of NVML that this program reads",
                         where, "record the machine again with sidestep topo --record"};
        const std::size_t gpus = json.at("gpus").size();
        if (json.at("count").is_number() && json.at("count") != gpus)
            return Error{ErrorCode::invalid_argument,
                         fmt::format("the record of NVML counts {} GPUs and tells of {}",
                                     json.at("count").dump(), gpus),
                         where, "record the machine again with sidestep topo --record"};
        return std::unique_ptr<Nvml>(std::make_unique<RecordedNvml>(json));
    } catch (const Json::exception& error) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the record of NVML cannot be read: {}", base::words_of(error)), where, ""};
    }
}

}  // namespace sidestep::topology
