// What this machine tells of itself to others, and topology_of and look_at_node: what they tell.
#include <sidestep/node.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <sidestep/version.hpp>

#include "backends/builtin.hpp"
#include "base/try.hpp"
#include "context/impl.hpp"
#include "context/node_facts.hpp"
#include "driver/network_facts.hpp"
#include "driver/tcp_socket.hpp"

namespace sidestep {
namespace context {
namespace {

// Best first, as make_network_engines has them.
constexpr const char* all_engines[] = {"verbs", "ncclnet", "tcp"};
// Of a topology that a real machine tells.
constexpr const char* told_name = "live";

std::string now_in_digits() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// What a reader could not read, and where it looked, is not for others.
std::string topology_for_others(const Topology& topology, bool encrypted) {
    Topology::Parts parts = topology.parts();
    parts.notes.clear();
    if (encrypted) parts.properties["data_sockets"] = "encrypted";
    // A file does not say whether its machine is a real one, so the name does.
    parts.name = topology.emulated() ? "emulated" : told_name;
    const auto told = Topology::create(std::move(parts));
    return told ? told->to_json() : topology.to_json();
}

}  // namespace

wire::Facts facts_of_end(const Topology& topology, const std::vector<std::string>& engines,
                         const base::Environment& environment, int socket) {
    wire::Facts facts;
    facts["software"] = fmt::format("sidestep {}", version());
    facts["protocols"] = fmt::format("{} to {}", wire::oldest_protocol, wire::protocol_version);
    const driver::MachineFiles files{std::string()};
    driver::add_limit_facts(files, facts);
    driver::add_rdma_facts(files, facts);
    if (socket >= 0) driver::add_socket_facts(socket, files, facts);
    for (const char* name : {"nvml_driver", "nvidia_driver"})
        if (const auto found = topology.parts().properties.find(name);
            found != topology.parts().properties.end())
            facts["nvidia_driver"] = found->second;
    facts["gpus"] = std::to_string(topology.gpu_count());
    for (const char* name : all_engines) {
        const std::string key = fmt::format("engine.{}", name);
        if (std::find(engines.begin(), engines.end(), name) != engines.end()) {
            facts[key] = "yes";
            continue;
        }
        const auto refusal = backends::why_no_engine(environment, name);
        facts[key] = refusal.reason;
        if (!refusal.remedy.empty()) facts[key + ".remedy"] = refusal.remedy;
    }
    return facts;
}

wire::Teller teller(const Topology& topology, std::vector<std::string> engines,
                    const base::Environment& environment) {
    return [&topology, engines = std::move(engines), environment](wire::Subject subject,
                                                                  int socket) -> Result<std::string> {
        switch (subject) {
            case wire::Subject::topology:
                return topology_for_others(topology, environment.network_encryption);
            case wire::Subject::facts:
                return wire::to_text(facts_of_end(topology, engines, environment, socket));
            case wire::Subject::clock:
                return now_in_digits();
        }
        return Error{ErrorCode::internal, "nobody knows that subject", "node", {}};
    };
}

namespace {

constexpr int clock_questions = 5;
constexpr std::chrono::milliseconds patience{10'000};
constexpr std::chrono::milliseconds patience_of_address{2'000};

wire::Peer::Time until() {
    return std::chrono::steady_clock::now() + patience;
}

Result<std::shared_ptr<wire::Peer>> peer_of(const Context& context, const std::string& node) {
    const auto& impl = ContextAccess::impl(context);
    SIDESTEP_CHECK(impl.engine->check_process());
    // The name is as Place::parse takes it.
    SIDESTEP_TRY(const Place place, Place::parse(node + "/host"));
    return impl.remote->peer(place.node());
}

Result<std::string> ask(wire::Peer& peer, wire::Subject subject) {
    return wire::ask_for(subject,
                         [&](const std::string& body) { return peer.ask(wire::Word::tell, body, until()); });
}

// Of several questions the quickest says most.
Result<ClockDifference> compare_clocks(wire::Peer& peer) {
    using Clock = std::chrono::system_clock;
    std::optional<ClockDifference> best;
    for (int i = 0; i < clock_questions; ++i) {
        const auto before = std::chrono::steady_clock::now();
        const auto sent = Clock::now().time_since_epoch();
        SIDESTEP_TRY(const std::string digits, ask(peer, wire::Subject::clock));
        const std::chrono::nanoseconds half = (std::chrono::steady_clock::now() - before) / 2;
        if (digits.empty() || digits.size() > 19 ||
            digits.find_first_not_of("0123456789") != std::string::npos)
            return Error{ErrorCode::io_error, "the node told a time that is no number", "node", {}};
        const std::chrono::nanoseconds there{std::strtoll(digits.c_str(), nullptr, 10)};
        const std::chrono::nanoseconds here = std::chrono::nanoseconds(sent) + half;
        if (!best || half < best->bound) best = ClockDifference{there - here, half};
    }
    return *best;
}

std::string why_not_reached(const wire::HostPort& at) {
    const auto found = driver::SocketAddress::resolve(at.host, at.port, patience_of_address);
    if (!found) return found.error().message;
    std::string refusal;
    for (const driver::SocketAddress& one : *found) {
        const auto tried =
            driver::TcpSocket::connect(one, std::chrono::steady_clock::now() + patience_of_address);
        if (tried) return {};
        refusal = tried.error().message;
    }
    return refusal;
}

}  // namespace
}  // namespace context

Result<Topology> topology_of(const Context& context, const std::string& node) {
    SIDESTEP_TRY(const auto peer, context::peer_of(context, node));
    SIDESTEP_TRY(const std::string text, context::ask(*peer, wire::Subject::topology));
    SIDESTEP_TRY(const Topology told, Topology::from_json(text, fmt::format("what {} told", node)));
    Topology::Parts parts = told.parts();
    parts.emulated = parts.name != context::told_name;
    parts.name = node;
    return Topology::create(std::move(parts));
}

Result<NodeLook> look_at_node(const Context& context, const std::string& node) {
    SIDESTEP_TRY(const auto peer, context::peer_of(context, node));
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    const auto& impl = ContextAccess::impl(context);
    NodeLook look;
    look.node = node;
    look.engine = peer->engine();
    SIDESTEP_TRY(const ClockDifference clock, context::compare_clocks(*peer));
    look.clock = clock;
    SIDESTEP_TRY(const std::string facts, context::ask(*peer, wire::Subject::facts));
    // The name last: what the node tells does not take its place.
    look.there = wire::parse_facts(facts + "\nnode=" + peer->hello().node);
    const auto channel = peer->channel();
    look.here =
        context::facts_of_end(impl.topology, impl.remote->engine_names(), environment, channel->socket());
    for (const wire::HostPort& at : peer->address().at)
        look.addresses.push_back({at.to_string(), context::why_not_reached(at)});
    return look;
}

}  // namespace sidestep
