#include <sidestep/context.hpp>

#include "backends/builtin.hpp"
#include "base/environment.hpp"
#include "base/object_store.hpp"
#include "base/owner_process.hpp"
#include "base/try.hpp"
#include "context/impl.hpp"
#include "context/network.hpp"
#include "topology/numbers.hpp"
#include "topology/text_file_reader.hpp"
#include "transfer/batch_plan.hpp"

namespace sidestep {
namespace {

// Where published memory really is; any other place as it is. A node that is not reached has no routes.
Result<Place> real_place(const ContextAccess::Impl& impl, const Place& place) {
    if (!place.node().empty() && !base::is_object(place)) SIDESTEP_CHECK(impl.remote->peer(place.node()));
    if (!place.is_shared() || !place.node().empty()) return place;
    SIDESTEP_TRY(const transfer::Import import, impl.shared->import(Buffer::shared(place.path())));
    return import.buffer.place();
}

// What hops to and from nodes go over is known when they are connected.
Result<Route> with_links(const ContextAccess::Impl& impl, Result<Route> route) {
    if (!route) return route;
    for (Lane& lane : route->lanes)
        for (Hop& hop : lane.hops) {
            const std::string& node = hop.from.node().empty() ? hop.to.node() : hop.from.node();
            const bool one_end = hop.from.node().empty() != hop.to.node().empty();
            if (one_end && hop.link.empty() && hop.backend == impl.remote->name())
                hop.link = impl.remote->link_words(node, route->bytes);
        }
    return route;
}

}  // namespace

Context::Context(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Result<Context> Context::open(ContextOptions options) {
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    const std::string& machine = options.machine.empty() ? environment.machine : options.machine;
    SIDESTEP_TRY(Topology topology, Topology::open(machine));
    const std::string& probe = options.probe_file.empty() ? environment.probe_file : options.probe_file;
    if (!probe.empty()) {
        const char* named_by = options.probe_file.empty() ? "SIDESTEP_PROBE_FILE" : "";
        const auto report = ProbeReport::load(probe);
        if (!report) return topology::at_file(report.error(), named_by);
        auto probed = topology.with_probe(*report);
        if (!probed) return topology::at_file(topology::at_file(probed.error(), probe), named_by);
        topology = std::move(*probed);
    }

    auto impl = base::make_shared_here<Impl>(std::move(topology));
    backends::add_builtin(impl->registry, impl->topology, environment);
    SIDESTEP_TRY(auto remote, context::remote_backend(options, environment, impl->topology));
    impl->remote = remote.get();
    impl->registry.add(std::move(remote), impl->topology);
    for (const backend::Offer& offer : impl->registry.offers())
        impl->status.push_back(
            {offer.name, offer.support.usable, offer.support.reason, offer.support.remedy});
    impl->network_checksums = options.network_checksums;
    impl->network_encryption = options.network_encryption;
    impl->peer_folder = options.peer_folder.empty() ? environment.peer_folder : options.peer_folder;
    impl->shared = std::make_unique<transfer::SharedMemory>(impl->registry, impl->peer_folder);
    impl->engine = std::make_unique<transfer::Engine>(impl->topology, impl->registry);
    impl->engine->machine().shared = impl->shared.get();
    impl->own_memory = impl->remote->own_memory(impl->registry, *impl->engine);
    transfer::StagingPool& pool = impl->engine->machine().pool;
    pool.set_pinned_bound(environment.pinned_pool);
    const bool asked = options.relay_memory != ContextOptions{}.relay_memory;
    const Bytes relay = asked ? options.relay_memory : environment.relay_memory;
    if (relay != transfer::StagingPool::default_relay_limit)
        for (const int gpu : topology::numbers_of(impl->topology, DeviceKind::gpu))
            pool.set_relay_limit(gpu, relay);
    impl->pins = std::make_shared<sidestep::context::Pins>(environment.pinned_cache);
    return Context(std::move(impl));
}

const Topology& Context::topology() const {
    return impl_->topology;
}

const std::vector<BackendStatus>& Context::backends() const {
    return impl_->status;
}

Result<Route> Context::route(const Place& from, const Place& to, Bytes bytes,
                             const CopyOptions& options) const {
    SIDESTEP_CHECK(context::check(options));
    SIDESTEP_TRY(const Place real_from, real_place(*impl_, from));
    SIDESTEP_TRY(const Place real_to, real_place(*impl_, to));
    return with_links(*impl_, impl_->engine->route(real_from, real_to, bytes, options));
}

Result<Route> Context::route(const Buffer& from, const Buffer& to, const CopyOptions& options) const {
    SIDESTEP_CHECK(context::check(options));
    return with_links(*impl_, impl_->engine->route(from, to, options));
}

Transfer Context::copy(const Buffer& from, const Buffer& to, const CopyOptions& options) const {
    return ContextAccess::submit(*this, from, to, options, nullptr);
}

Transfer ContextAccess::submit(const Context& context, const Buffer& from, const Buffer& to,
                               const CopyOptions& options, void* stream, const char* note) {
    if (auto good = context::check(options); !good) return refuse(context, good.error());
    const transfer::BatchCopy copy{&from, &to};
    std::shared_ptr<transfer::Engine> engine(context.impl_, context.impl_->engine.get());
    auto job = engine->submit(from, to, options, stream, context.impl_->pins->use({&copy, 1}));
    if (*note != '\0') job->add_note(note);
    return Transfer(std::move(engine), std::move(job));
}

}  // namespace sidestep
