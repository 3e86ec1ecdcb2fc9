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

Result<Allocation> Backend::allocate(const Place& place, Bytes, MemoryKind) {
    return Error{ErrorCode::unsupported,
                 "the " + std::string(name()) + " backend allocates no memory",
                 place.to_string(),
                 {}};
}

Result<Description> Backend::locate(const void*, Bytes) {
    return Error{
        ErrorCode::unsupported, "the " + std::string(name()) + " backend knows no addresses", {}, {}};
}

Support Backend::reaches(const Buffer&, const Buffer&) {
    return Support::yes({});
}

Result<Progress> Backend::start_batch(std::span<const Piece>, Flight&) {
    return Error{ErrorCode::unsupported, "the " + std::string(name()) + " backend takes no batches", {}, {}};
}

Result<std::shared_ptr<void>> Backend::pin(const Buffer& buffer) {
    return Error{ErrorCode::unsupported,
                 "the " + std::string(name()) + " backend pins no memory",
                 buffer.to_string(),
                 {}};
}

Result<std::unique_ptr<Seat>> Backend::seat(const SeatRequest& request) {
    return Error{ErrorCode::unsupported,
                 "the " + std::string(name()) + " backend runs no collectives",
                 request.place.to_string(),
                 {}};
}

Result<std::unique_ptr<Gate>> Backend::gate(void*) {
    return Error{ErrorCode::unsupported, "the " + std::string(name()) + " backend knows no streams", {}, {}};
}

void Registry::add(std::unique_ptr<Backend> backend, const Topology& topology) {
    Offer offer;
    offer.name = backend->name();
    offer.support = backend->probe(topology);
    offer.capabilities = backend->capabilities();
    if (offer.support.usable) {
        offer.host_memory = backend->allocates(PlaceKind::host);
        offer.gpu_memory = backend->allocates(PlaceKind::gpu);
        usable_.push_back(backend.get());
    }
    offers_.push_back(std::move(offer));
    owned_.push_back(std::move(backend));
}

void Registry::add_absent(Offer offer) {
    offer.support.usable = false;
    offers_.push_back(std::move(offer));
}

Result<std::optional<Description>> Registry::describe(const Buffer& buffer) const {
    for (Backend* backend : usable_)
        if (auto found = backend->describe(buffer); !found || *found) return found;
    return std::optional<Description>{};
}

Backend* Registry::find(std::string_view name) const {
    for (Backend* backend : usable_)
        if (backend->name() == name) return backend;
    return nullptr;
}

}  // namespace sidestep::backend
