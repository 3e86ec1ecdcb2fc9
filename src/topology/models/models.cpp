#include "topology/models/models.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

namespace sidestep {

namespace {

struct Model {
    std::string_view name;
    Topology::Parts (*parts)();
};

// Every built-in machine there is.
constexpr std::array models = {
    Model{"dgx-h100", topology::models::dgx_h100},
};

}  // namespace

Result<Topology> Topology::model(std::string_view name) {
    for (const Model& model : models) {
        if (model.name != name) continue;
        Parts parts = model.parts();
        parts.name = std::string(name);
        parts.emulated = true;
        return create(std::move(parts));
    }
    std::string known;
    for (const Model& model : models) known += fmt::format("{}{}", known.empty() ? "" : ", ", model.name);
    return Error{ErrorCode::not_found, fmt::format("there is no built-in machine \"{}\"", name), "",
                 "the built-in machines are: " + known};
}

std::vector<std::string> Topology::model_names() {
    std::vector<std::string> names;
    for (const Model& model : models) names.emplace_back(model.name);
    return names;
}

}  // namespace sidestep
