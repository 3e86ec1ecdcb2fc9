// What carries bytes between machines.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/network.hpp"
#include "wire/messages.hpp"

namespace sidestep::wire {

// This machine's engines, the best first; at least one. Any thread. Outlives their links.
class Engines {
public:
    // `checked`: links that this machine asks for carry checksums. `encrypted`: what goes over its sockets is encrypted.
    explicit Engines(std::vector<std::unique_ptr<backend::NetworkEngine>> all, bool checked = false,
                     bool encrypted = false)
        : all_(std::move(all)), checked_(checked), encrypted_(encrypted) {}

    bool checked() const { return checked_; }
    bool encrypted() const { return encrypted_; }

    // "verbs", "tcp".
    std::vector<std::string> names() const;
    // Those over which a new link can go at this moment.
    std::vector<std::string> working() const;
    // Null where there is none of that name.
    backend::NetworkEngine* find(std::string_view name) const;
    // That which carries a session with the node of that name, by what both greet with. unsupported where there is none, or
    // where one end asks for what the other does not do.
    Result<backend::NetworkEngine*> agree(const std::vector<std::string>& ours, const Hello& theirs,
                                          const std::string& node) const;
    // Memory made ready for all of them, as long as the answer lives; one that cannot have it so copies it.
    std::vector<std::shared_ptr<const void>> prepare(void* address, Bytes size) const;

    // Memory of a GPU made ready for the engine of that name, or why its bytes go through host memory. Nothing where nobody would
    // expect anything else of that engine.
    using Device = Result<std::optional<backend::ReachedDevice>>;
    Device prepare_device(std::string_view engine, const Buffer& memory, backend::DmaBufs& exporter) const;

private:
    const std::vector<std::unique_ptr<backend::NetworkEngine>> all_;
    const bool checked_;
    const bool encrypted_;
};

// The first of a client's engines that the node has too: so both know which one carries their session. Empty where there is
// none.
std::string common_engine(const std::vector<std::string>& clients, const std::vector<std::string>& nodes);

}  // namespace sidestep::wire
