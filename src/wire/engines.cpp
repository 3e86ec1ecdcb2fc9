#include "wire/engines.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"

namespace sidestep::wire {

std::vector<std::string> Engines::names() const {
    std::vector<std::string> names;
    for (const auto& engine : all_) names.emplace_back(engine->name());
    return names;
}

std::vector<std::string> Engines::working() const {
    std::vector<std::string> names;
    for (const auto& engine : all_)
        if (engine->works()) names.emplace_back(engine->name());
    return names;
}

Engines::Device Engines::prepare_device(std::string_view engine, const Buffer& memory,
                                        backend::DmaBufs& exporter) const {
    backend::NetworkEngine* const one = find(engine);
    return one != nullptr ? one->prepare_device(memory, exporter) : Device(std::nullopt);
}

backend::NetworkEngine* Engines::find(std::string_view name) const {
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const auto& engine) { return engine->name() == name; });
    return found == all_.end() ? nullptr : found->get();
}

Result<backend::NetworkEngine*> Engines::agree(const std::vector<std::string>& ours, const Hello& theirs,
                                               const std::string& node) const {
    const std::string common = common_engine(ours, theirs.engines);
    if (common.empty())
        return Error{
            ErrorCode::unsupported,
            fmt::format("{} has none of the engines that are to be used: {}{}", node, fmt::join(ours, ", "),
                        encrypted_ || theirs.encrypted ? "; only tcp encrypts" : ""),
            "network", "see SIDESTEP_NETWORK on both machines"};
    if (encrypted_ && !theirs.encrypted)
        return Error{ErrorCode::unsupported, fmt::format("{} does not encrypt", node), "network",
                     "install one version of sidestep on both machines"};
    return find(common);
}

std::vector<std::shared_ptr<const void>> Engines::prepare(void* address, Bytes size) const {
    std::vector<std::shared_ptr<const void>> ready;
    for (const auto& engine : all_) {
        auto prepared = engine->prepare(address, size);
        if (!prepared)
            base::log(base::LogLevel::warn, fmt::format("{} copies what it moves: {}", engine->name(),
                                                        prepared.error().to_string()));
        else if (*prepared)
            ready.push_back(std::move(*prepared));
    }
    return ready;
}

std::string common_engine(const std::vector<std::string>& clients, const std::vector<std::string>& nodes) {
    for (const std::string& one : clients)
        if (std::find(nodes.begin(), nodes.end(), one) != nodes.end()) return one;
    return {};
}

}  // namespace sidestep::wire
