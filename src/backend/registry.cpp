#include "backend/registry.hpp"

#include <utility>

namespace sidestep::backend {

Result<void> check_memory(const Buffer& buffer, Access access) {
    const auto wrong = [&buffer](const char* message) {
        return Error{ErrorCode::invalid_argument, message, buffer.to_string(), {}};
    };
    if (access == Access::write && buffer.read_only())
        return wrong("memory that was given as const cannot be a target");
    if (buffer.address() == nullptr && buffer.size() != 0) return wrong("a null address holds no bytes");
    return {};
}

Result<void> check_within(const Piece& piece) {
    for (const auto& [end, offset] :
         {std::pair(piece.from, piece.from_offset), {piece.to, piece.to_offset}}) {
        const Bytes size = end->buffer().size();
        if (size != Buffer::whole && (offset > size || piece.size > size - offset))
            return Error{ErrorCode::invalid_argument,
                         "a piece reaches beyond its buffer",
                         end->buffer().to_string(),
                         {}};
    }
    return {};
}

void Registry::add(std::unique_ptr<Backend> backend, const Topology& topology) {
    Offer offer;
    offer.name = backend->name();
    offer.support = backend->probe(topology);
    offer.capabilities = backend->capabilities();
    if (offer.support.usable) usable_.push_back(backend.get());
    if (const Allocator* allocator = offer.support.usable ? backend->allocator() : nullptr) {
        offer.host_memory = allocator->allocates(PlaceKind::host);
        offer.gpu_memory = allocator->allocates(PlaceKind::gpu);
    }
    offers_.push_back(std::move(offer));
    owned_.push_back(std::move(backend));
}

void Registry::add_absent(Offer offer) {
    offer.support.usable = false;
    offers_.push_back(std::move(offer));
}

Result<std::optional<Description>> Registry::describe(const Buffer& buffer) const {
    const bool far = !buffer.place().node().empty();
    for (Backend* backend : usable_)
        if (auto found =
                backend->reaches_nodes() == far ? backend->describe(buffer) : std::optional<Description>();
            !found || *found)
            return found;
    return std::optional<Description>{};
}

Result<std::optional<Exported>> Registry::share(const Buffer& buffer) const {
    for (Sharer* sharer : with(&Backend::sharer))
        if (auto exported = sharer->share(buffer); !exported || *exported) return exported;
    return std::optional<Exported>{};
}

Backend* Registry::find(std::string_view name) const {
    for (Backend* backend : usable_)
        if (backend->name() == name) return backend;
    return nullptr;
}

}  // namespace sidestep::backend
