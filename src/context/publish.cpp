// Context::publish: memory of this process under a name that others find.
#include <fmt/format.h>

#include "base/deadlines.hpp"
#include "base/owner_process.hpp"
#include "base/try.hpp"
#include "context/impl.hpp"
#include "transfer/ends.hpp"

namespace sidestep {
namespace {

// What a Publication holds: the memory first, so that the name goes before it.
struct Published {
    std::shared_ptr<const void> context;
    backend::Exported exported;
    std::shared_ptr<peer::Publisher> publisher;
    std::uint64_t id = 0;

    Published(std::shared_ptr<const void> owner, backend::Exported memory,
              std::shared_ptr<peer::Publisher> by)
        : context(std::move(owner)), exported(std::move(memory)), publisher(std::move(by)) {}
    Published(const Published&) = delete;
    Published& operator=(const Published&) = delete;
    ~Published() {
        if (id != 0) publisher->withdraw(id);
    }
};

Result<void> check(const Buffer& buffer) {
    const auto wrong = [&](const char* message, const char* hint) {
        return Error{ErrorCode::invalid_argument, message, buffer.to_string(), hint};
    };
    if (!buffer.place().is_host() && !buffer.place().is_gpu())
        return wrong("only host and GPU memory can be published", "");
    if (buffer.size() == 0 || buffer.size() == Buffer::whole || buffer.address() == nullptr)
        return wrong("what is published needs an address and a size", "");
    if (buffer.read_only())
        return wrong("memory that was given as const cannot be published",
                     "other processes may write to it: give it as "
                     "non-const memory");
    return {};
}

Result<backend::Exported> share(const backend::Registry& registry, const Buffer& buffer) {
    SIDESTEP_TRY(auto exported, registry.share(buffer));
    if (exported) return std::move(*exported);
    return Error{ErrorCode::unsupported, "this memory cannot be shared", buffer.to_string(),
                 buffer.place().is_host() ? "publish memory of Context::allocate(Place::host(), bytes, "
                                            "MemoryKind::pageable): other host memory is this process's own"
                                          : "no backend here gave this memory"};
}

peer::MemoryOffer offer_of(const backend::Exported& exported, const Buffer& buffer) {
    peer::MemoryOffer offer;
    offer.scheme = exported.scheme;
    offer.handle = exported.handle;
    offer.place = exported.place;
    offer.memory = exported.memory;
    offer.size = exported.size;
    offer.offset = exported.offset;
    offer.identity = exported.identity;
    offer.address = reinterpret_cast<std::uintptr_t>(buffer.address());
    return offer;
}

}  // namespace

// Only what asks the folder's file system is given up at the deadline: the memory is the caller's again then.
Result<Publication> Context::publish(const std::string& name, const Buffer& buffer,
                                     const PublishOptions& options) const {
    SIDESTEP_CHECK(impl_->engine->check_process());
    const auto deadline = options.deadline;
    if (deadline.count() < 0 || deadline > longest_limit)
        return refused_option("deadline", fmt::format("{} ms", deadline.count()));
    SIDESTEP_CHECK(peer::check_name(name));
    SIDESTEP_CHECK(check(buffer));
    SIDESTEP_CHECK(transfer::check_here(impl_->topology, buffer.place()));
    const auto share_now = [&] { return share(impl_->registry, buffer); };
    SIDESTEP_TRY(backend::Exported exported, impl_->topology.emulated()
                                                 ? share_now()
                                                 : impl_->pins->share(impl_->registry, buffer, share_now));
    const peer::MemoryOffer offer = offer_of(exported, buffer);
    const int descriptor = exported.descriptor;
    const auto published = base::make_shared_here<Published>(impl_, std::move(exported), impl_->publisher);
    return base::make_within<Publication>(
        deadline, fmt::format("shared:{}", name),
        [path = impl_->peer_folder, name, offer, descriptor, published]() -> Result<Publication> {
            SIDESTEP_TRY(const peer::Folder folder, peer::Folder::open(path, true));
            SIDESTEP_TRY(published->id, published->publisher->publish(folder, name, offer, descriptor));
            return Publication(name, published);
        },
        "another process holds the folder of published memory, or its file system has not answered");
}

}  // namespace sidestep
