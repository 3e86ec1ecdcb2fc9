#include "topology/models/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "base/try.hpp"
#include "topology/models/cluster.hpp"

namespace sidestep {

namespace topology::models {
namespace {

struct Model {
    std::string_view name;
    Topology::Parts (*parts)();
    topology::models::Rails rails;
    std::string_view words;
};

// Every built-in machine there is. Rates of the network: 100, 200 and 400 Gb/s of EDR, HDR and NDR.
constexpr std::array models = {
    Model{"dgx-1v", dgx_1v, {4, 12.5}, "NVIDIA DGX-1: 8 V100 in a hybrid cube mesh of NVLinks"},
    Model{"dgx-2", dgx_2, {8, 12.5}, "NVIDIA DGX-2: 16 V100, 12 NVSwitches on two boards"},
    Model{"dgx-a100", dgx_a100, {8, 25}, "NVIDIA DGX A100: 8 A100, 6 NVSwitches"},
    Model{"dgx-h100", dgx_h100, {8, 50}, "NVIDIA DGX H100: 8 H100, 4 NVSwitches"},
    Model{"dgx-h200", dgx_h200, {8, 50}, "NVIDIA DGX H200: 8 H200, 4 NVSwitches"},
    Model{"dgx-b200", dgx_b200, {8, 50}, "NVIDIA DGX B200: 8 B200, 2 NVSwitches"},
    Model{"gb200-nvl72", gb200_nvl72, {4, 50}, "NVIDIA GB200 NVL72: 18 trays, 72 GPUs in one NVLink domain"},
    Model{"gb200-tray", gb200_tray, {4, 50}, "one compute tray of a GB200 NVL72: 4 GPUs, 2 Grace"},
    Model{"mi300x", mi300x, {8, 50}, "8 AMD Instinct MI300X, each joined to each by Infinity Fabric"},
    Model{"pcie-4l40s", pcie_4l40s, {2, 25}, "4 L40S on PCIe gen4 switches below one processor"},
    Model{"pcie-2s", pcie_2s, {2, 25}, "4 A100 PCIe, two at each of two processors"},
    Model{"laptop", laptop, {1, 0.3125}, "a laptop with one GeForce on eight PCIe gen4 lanes"},
};

// More GPUs than any machine built; keeps the memory a name can ask for within bounds.
constexpr int max_gpus = 200000;

Result<int> machines(std::string_view name, std::string_view count, int gpus_a_machine) {
    int machines = 0;
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), machines);
    const int max = max_gpus / gpus_a_machine;
    const bool number = !count.empty() && end == count.data() + count.size() &&
                        std::all_of(count.begin(), count.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!number || error != std::errc() || machines < 1 || machines > max) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("\"{}\" is not a number of machines between 1 and {}", count, max),
                     std::string(name),
                     fmt::format("a cluster is written like dgx-h100*128 and has up to {} GPUs", max_gpus)};
    }
    return machines;
}

Result<const Model*> find_model(std::string_view name) {
    std::string known;
    for (const Model& model : models) {
        if (model.name == name) return &model;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", model.name);
    }
    return Error{ErrorCode::not_found, fmt::format("there is no built-in machine \"{}\"", name), "",
                 fmt::format("the built-in machines are: {}; NAME*128 is a cluster of 128", known)};
}

}  // namespace
}  // namespace topology::models

Result<Topology> Topology::model(std::string_view name) {
    using namespace topology::models;
    const auto star = name.find('*');
    SIDESTEP_TRY(const Model* model, find_model(name.substr(0, star)));
    Parts parts = model->parts();
    std::string words(model->words);
    parts.name = std::string(model->name);
    if (star != std::string_view::npos) {
        const auto is_gpu = [](const Device& device) { return device.kind == DeviceKind::gpu; };
        const auto gpus = std::count_if(parts.devices.begin(), parts.devices.end(), is_gpu);
        SIDESTEP_TRY(const int count, machines(name, name.substr(star + 1), static_cast<int>(gpus)));
        // One machine has nobody to talk to, so it has no network either.
        if (count > 1) {
            parts = cluster(std::move(parts), count, model->rails);
            parts.name = fmt::format("{}*{}", model->name, count);
            words = fmt::format("{} machines, rail-optimised: {}", count, words);
        }
    }
    parts.emulated = true;
    parts.properties["description"] = std::move(words);
    // Not looked through as a file is: that would take longer than all else, and the tests do it.
    return Topology(std::move(parts));
}

std::vector<std::string> Topology::model_names() {
    std::vector<std::string> names;
    for (const topology::models::Model& model : topology::models::models) names.emplace_back(model.name);
    return names;
}

}  // namespace sidestep
