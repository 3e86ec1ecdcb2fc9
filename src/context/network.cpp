// Context::serve, connect and size: other machines.
#include <sidestep/network.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "backends/builtin.hpp"
#include "base/environment.hpp"
#include "base/owner_process.hpp"
#include "base/try.hpp"
#include "context/impl.hpp"
#include "context/network.hpp"
#include "context/node_facts.hpp"
#include "transfer/ends.hpp"
#include "wire/key.hpp"
#include "wire/metrics_page.hpp"
#include "wire/probe.hpp"
#include "wire/server.hpp"

namespace sidestep {
namespace context {

std::string machine_name() {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0) return "node";
    return name.data();
}

namespace {

Result<std::unique_ptr<wire::Engines>> network_engines(base::Environment environment,
                                                       const Topology& topology, bool checked,
                                                       bool encrypted) {
    using base::Network;
    encrypted = encrypted || environment.network_encryption;
    if (encrypted && environment.network != Network::automatic && environment.network != Network::tcp)
        return Error{ErrorCode::invalid_argument, "only what goes over sockets can be encrypted",
                     "SIDESTEP_NETWORK", "leave SIDESTEP_NETWORK out, or encryption"};
    if (encrypted) environment.network = Network::tcp;
    SIDESTEP_TRY(auto all, backends::make_network_engines(environment, topology));
    return std::make_unique<wire::Engines>(std::move(all), checked || environment.network_checksums,
                                           encrypted);
}

}  // namespace

Result<std::unique_ptr<wire::RemoteBackend>> remote_backend(const ContextOptions& options,
                                                            const base::Environment& environment,
                                                            const Topology& topology) {
    wire::RemoteOptions remote;
    remote.key_file = options.key_file.empty() ? environment.key_file : options.key_file;
    remote.node = machine_name();
    const std::string& nodes = options.nodes.empty() ? environment.nodes : options.nodes;
    SIDESTEP_TRY(auto known, wire::known_nodes(nodes));
    remote.nodes = std::move(known.nodes);
    if (!known.etcd.empty()) {
        SIDESTEP_TRY(remote.etcd, wire::parse_etcd(known.etcd));
    }
    SIDESTEP_TRY(auto engines, network_engines(environment, topology, options.network_checksums,
                                               options.network_encryption));
    return std::make_unique<wire::RemoteBackend>(std::move(engines), std::move(remote));
}

}  // namespace context

struct Serving::State {
    std::shared_ptr<ContextAccess::Impl> context;
    std::shared_ptr<wire::Engines> engines;
    std::vector<std::string> addresses;
    std::vector<std::string> allowed;
    std::string key_file;
    std::vector<std::string> metrics_addresses;
    std::unique_ptr<wire::Server> server;     // last but one, so that it goes early
    std::unique_ptr<wire::MetricsPage> page;  // of the server
    base::OwnerProcess owner;

    ~State() {
        // A child of fork() has neither the threads nor the sockets to itself.
        if (!owner.forked()) return;
        static_cast<void>(page.release());
        static_cast<void>(server.release());
        static_cast<void>(new std::shared_ptr(std::move(engines)));
    }
};

Serving::Serving(std::unique_ptr<State> state) : state_(std::move(state)) {}
Serving::Serving(Serving&&) noexcept = default;
Serving& Serving::operator=(Serving&&) noexcept = default;
Serving::~Serving() = default;

const std::vector<std::string>& Serving::addresses() const {
    return state_->addresses;
}

const std::string& Serving::key_file() const {
    return state_->key_file;
}

const std::vector<std::string>& Serving::allowed() const {
    return state_->allowed;
}

ServeCounts Serving::counts() const {
    return {state_->server->clients(), state_->server->received(), state_->server->sent()};
}

std::string Serving::metrics() const {
    return state_->server->metrics();
}

const std::vector<std::string>& Serving::metrics_addresses() const {
    return state_->metrics_addresses;
}

Result<Notification> Serving::next_notification(std::chrono::milliseconds wait) const {
    const auto now = std::chrono::steady_clock::now();
    auto notice = state_->server->notices().take(now + std::clamp(wait, wait.zero(), longest_limit));
    if (notice) return std::move(*notice);
    return Error{ErrorCode::timed_out, "no notification has come", "node", {}};
}

Result<Serving> Context::serve(const ServeOptions& options) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_TRY(base::Environment environment, base::Environment::read());
    auto state = std::make_unique<Serving::State>();
    state->context = impl_;
    wire::ServerOptions server;
    SIDESTEP_TRY(server.listen, wire::parse_addresses(options.listen, wire::Ports::to_listen));
    std::optional<wire::HostPort> page;
    if (!options.metrics.empty()) {
        SIDESTEP_TRY(page, wire::parse_host_port(options.metrics));
    }
    SIDESTEP_TRY(server.allowed, wire::Allowances::parse(options.allow));
    for (const Place& gpu : server.allowed.gpus()) SIDESTEP_CHECK(transfer::check_here(impl_->topology, gpu));
    SIDESTEP_TRY(state->key_file,
                 wire::key_path(options.key_file.empty() ? environment.key_file : options.key_file));
    SIDESTEP_TRY(server.key, wire::read_or_make_key(state->key_file));
    server.node = options.name.empty() ? context::machine_name() : options.name;
    if (server.node.size() > wire::longest_name)
        return Error{
            ErrorCode::invalid_argument, "no client could read so long a name of a node", "serve", {}};
    state->allowed = server.allowed.lines();
    SIDESTEP_TRY(state->engines,
                 context::network_engines(environment, impl_->topology, impl_->network_checksums,
                                          impl_->network_encryption));
    server.most_notices = options.notifications;
    server.rate = options.rate;
    environment.network_encryption = state->engines->encrypted();
    server.teller = context::teller(impl_->topology, state->engines->names(), environment);
    const wire::Machine machine{impl_->topology, impl_->registry, *impl_->engine, *impl_->shared, impl_};
    SIDESTEP_TRY(state->server, wire::Server::start(machine, state->engines, std::move(server)));
    for (const wire::HostPort& at : state->server->addresses()) state->addresses.push_back(at.to_string());
    if (page) {
        SIDESTEP_TRY(state->page, wire::MetricsPage::start(
                                      *page, [server = state->server.get()] { return server->metrics(); }));
        for (const wire::HostPort& at : state->page->addresses())
            state->metrics_addresses.push_back(at.to_string());
    }
    return Serving(std::move(state));
}

Result<std::string> Context::connect(const std::string& node, const std::string& address) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_TRY(std::vector<wire::HostPort> at, wire::parse_addresses(address));
    // The name is as Place::parse takes it.
    SIDESTEP_TRY(const Place place, Place::parse(node + "/host"));
    return impl_->remote->connect({place.node(), std::move(at)});
}

Result<void> Context::notify(const std::string& node, std::string_view text) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_TRY(const Place place, Place::parse(node + "/host"));
    return impl_->remote->notify(place.node(), text);
}

struct NetworkProbe::State {
    std::shared_ptr<ContextAccess::Impl> context;
    std::unique_ptr<wire::Probe> probe;
    std::string node;
    std::string address;
};

NetworkProbe::NetworkProbe(std::unique_ptr<State> state) : state_(std::move(state)) {}
NetworkProbe::NetworkProbe(NetworkProbe&&) noexcept = default;
NetworkProbe& NetworkProbe::operator=(NetworkProbe&&) noexcept = default;
NetworkProbe::~NetworkProbe() = default;

std::size_t NetworkProbe::sockets() const {
    return state_->probe->sockets();
}

std::size_t NetworkProbe::sockets_of_copies() const {
    const auto session = state_->probe->peer().session();
    return session ? session->link()->sockets() : 0;
}

const std::string& NetworkProbe::node() const {
    return state_->node;
}

const std::string& NetworkProbe::address() const {
    return state_->address;
}

Result<double> NetworkProbe::send(Bytes bytes) {
    return state_->probe->send(bytes);
}

Result<double> NetworkProbe::receive(Bytes bytes) {
    return state_->probe->receive(bytes);
}

Result<double> NetworkProbe::echo(std::uint64_t count) {
    return state_->probe->echo(count);
}

Result<NetworkProbe> Context::probe_network(const std::string& node, std::size_t sockets) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_TRY(const Place place, Place::parse(node + "/host"));
    auto state = std::make_unique<NetworkProbe::State>();
    state->context = impl_;
    SIDESTEP_TRY(auto peer, impl_->remote->peer(place.node()));
    SIDESTEP_TRY(state->probe, wire::Probe::open(std::move(peer), sockets));
    state->node = state->probe->peer().hello().node;
    state->address = state->probe->peer().where();
    return NetworkProbe(std::move(state));
}

Result<Bytes> Context::size(const Buffer& buffer) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    SIDESTEP_CHECK(transfer::check_place(impl_->topology, buffer.place()));
    if (buffer.size() != Buffer::whole) return buffer.size();
    if (buffer.place().is_shared() && buffer.place().node().empty()) {
        SIDESTEP_TRY(const transfer::Import import, impl_->shared->import(buffer));
        return import.buffer.size();
    }
    SIDESTEP_TRY(const backend::Description description, transfer::describe(impl_->registry, buffer));
    if (buffer.place().is_file() && description.identity == 0 && description.size == 0)
        return Error{ErrorCode::not_found, "there is no such file", buffer.place().to_string(),
                     "check the path"};
    return description.size;
}

}  // namespace sidestep
