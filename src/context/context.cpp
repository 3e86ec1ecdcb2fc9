#include <sidestep/context.hpp>

#include "backends/builtin.hpp"
#include "base/environment.hpp"
#include "base/try.hpp"
#include "context/impl.hpp"

namespace sidestep {
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
        SIDESTEP_TRY(const ProbeReport report, ProbeReport::load(probe));
        SIDESTEP_TRY(topology, topology.with_probe(report));
    }

    auto impl = std::make_shared<Impl>(std::move(topology));
    backends::add_builtin(impl->registry, impl->topology, environment);
    for (const backend::Offer& offer : impl->registry.offers())
        impl->status.push_back({offer.name, offer.support.usable, offer.support.reason, offer.support.remedy});
    impl->engine = std::make_unique<transfer::Engine>(impl->topology, impl->registry);
    return Context(std::move(impl));
}

const Topology& Context::topology() const { return impl_->topology; }

const std::vector<BackendStatus>& Context::backends() const { return impl_->status; }

Result<Route> Context::route(const Place& from, const Place& to, Bytes bytes,
                             const CopyOptions& options) const {
    return impl_->engine->route(from, to, bytes, options);
}

Result<Route> Context::route(const Buffer& from, const Buffer& to, const CopyOptions& options) const {
    return impl_->engine->route(from, to, options);
}

Result<Allocation> Context::allocate(const Place& place, Bytes bytes, MemoryKind kind) const {
    SIDESTEP_CHECK(transfer::check_place(impl_->topology, place));
    if (place.is_file())
        return Error{ErrorCode::invalid_argument, "memory is allocated at a host or gpu place",
                     place.to_string(), {}};
    if (bytes == 0)
        return Error{ErrorCode::invalid_argument, "an allocation needs a size", place.to_string(), {}};
    return transfer::allocate(impl_->registry, place, bytes, kind);
}

Transfer Context::copy(const Buffer& from, const Buffer& to, const CopyOptions& options) const {
    return ContextAccess::submit(*this, from, to, options, nullptr);
}

Transfer ContextAccess::submit(const Context& context, const Buffer& from, const Buffer& to,
                               const CopyOptions& options, void* stream) {
    // The engine's handle keeps the whole Impl alive.
    std::shared_ptr<transfer::Engine> engine(context.impl_, context.impl_->engine.get());
    auto job = engine->submit(from, to, options, stream);
    return Transfer(std::move(engine), std::move(job));
}

}  // namespace sidestep
