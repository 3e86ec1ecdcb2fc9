#include "diagnose/driver_records.hpp"
#include "base/exception_words.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sidestep::diagnose {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Runs a reader; exceptions of the JSON library stay in here.
template <typename Facts, typename Read>
Result<Facts> read_json(std::string_view text, const std::string& where, Read read) {
    try {
        return read(Json::parse(text));
    } catch (const Json::exception& error) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the record cannot be read: {}", base::words_of(error)), where,
                     "record the machine again with sidestep topo --record"};
    }
}

}  // namespace

std::string cuda_to_json(const driver::CudaFacts& facts) {
    Json json = {{"loaded", facts.loaded},
                 {"reason", facts.reason},
                 {"init_code", facts.init_code},
                 {"init_words", facts.init_words},
                 {"version", facts.version}};
    json["gpus"] = Json::array();
    for (const driver::CudaGpuFacts& gpu : facts.gpus)
        json["gpus"].push_back({{"bus_id", gpu.bus_id}, {"attributes", gpu.attributes}});
    return text_of(json);
}

std::string verbs_to_json(const driver::VerbsFacts& facts) {
    Json json = {{"loaded", facts.loaded}, {"reason", facts.reason}};
    json["devices"] = Json::array();
    for (const driver::VerbsDevice& device : facts.devices) {
        Json entry = {{"name", device.name},
                      {"opens", device.opens},
                      {"reason", device.reason},
                      {"dma_buf_words", device.dma_buf_words}};
        if (device.dma_buf) entry["dma_buf"] = *device.dma_buf;
        json["devices"].push_back(entry);
    }
    return text_of(json);
}

Result<driver::CudaFacts> cuda_from_json(std::string_view text, const std::string& where) {
    return read_json<driver::CudaFacts>(text, where, [](const Json& json) {
        driver::CudaFacts facts;
        facts.loaded = json.at("loaded");
        facts.reason = json.at("reason");
        facts.init_code = json.at("init_code");
        facts.init_words = json.at("init_words");
        facts.version = json.at("version");
        for (const Json& gpu : json.at("gpus"))
            facts.gpus.push_back({gpu.at("bus_id"), gpu.at("attributes").get<std::map<std::string, int>>()});
        return facts;
    });
}

Result<driver::VerbsFacts> verbs_from_json(std::string_view text, const std::string& where) {
    return read_json<driver::VerbsFacts>(text, where, [](const Json& json) {
        driver::VerbsFacts facts;
        facts.loaded = json.at("loaded");
        facts.reason = json.at("reason");
        for (const Json& entry : json.at("devices")) {
            driver::VerbsDevice device;
            device.name = entry.at("name");
            device.opens = entry.at("opens");
            device.reason = entry.at("reason");
            device.dma_buf_words = entry.at("dma_buf_words");
            if (entry.contains("dma_buf")) device.dma_buf = entry["dma_buf"].get<bool>();
            facts.devices.push_back(device);
        }
        return facts;
    });
}

}  // namespace sidestep::diagnose
