#include "collective/lent_memory.hpp"

#include "base/try.hpp"
#include "peer/offer.hpp"

namespace sidestep::collective {
namespace {

constexpr const char* own_scheme = "address";  // of memory that is used where it is

}  // namespace

Result<std::string> Lent::offer(bool same_process) const {
    peer::MemoryOffer offer;
    offer.place = whole.place();
    offer.size = whole.size();
    offer.identity = identity;
    offer.address = reinterpret_cast<std::uintptr_t>(whole.address());
    offer.scheme = own_scheme;
    if (!same_process && !exported)
        return Error{
            ErrorCode::internal, "memory for another process was not exported", whole.to_string(), {}};
    if (!same_process) {
        offer.scheme = exported->scheme;
        offer.handle = exported->handle;
        offer.place = exported->place;
        offer.memory = exported->memory;
        offer.size = exported->size;
        offer.offset = exported->offset;
        offer.has_descriptor = exported->descriptor >= 0;
    }
    return peer::to_message(offer);
}

Result<std::shared_ptr<const backend::Exported>> export_memory(const backend::Registry& registry,
                                                               const Buffer& buffer) {
    SIDESTEP_TRY(auto exported, registry.share(buffer));
    if (exported) return std::make_shared<const backend::Exported>(std::move(*exported));
    return Error{ErrorCode::unsupported, "this memory cannot be shared with other processes",
                 buffer.to_string(), "use memory of Context::allocate"};
}

Result<Borrowed> borrow(backend::Seat& seat, const std::string& bytes, int descriptor, bool same_process) {
    SIDESTEP_TRY(const peer::MemoryOffer offer, peer::parse_offer(bytes));
    Borrowed borrowed;
    if (same_process != (offer.scheme == own_scheme) || offer.has_descriptor != (descriptor >= 0))
        return Error{ErrorCode::io_error, "another rank's offer of memory makes no sense", "group", {}};
    if (same_process) {
        borrowed.memory = {reinterpret_cast<char*>(offer.address), offer.size};
        SIDESTEP_CHECK(seat.admit(Buffer::memory(offer.place, borrowed.memory.data(), offer.size)));
        return borrowed;
    }
    backend::Exported exported;
    exported.scheme = offer.scheme;
    exported.handle = offer.handle;
    exported.descriptor = descriptor;
    exported.place = offer.place;
    exported.memory = offer.memory;
    exported.size = offer.size;
    exported.offset = offer.offset;
    exported.identity = offer.identity;
    SIDESTEP_TRY(borrowed.mapping, seat.open(exported));
    if (offer.size > borrowed.mapping.size() || offer.offset > borrowed.mapping.size() - offer.size)
        return Error{ErrorCode::io_error, "another rank's memory is smaller than it says", "group", {}};
    borrowed.memory = {static_cast<char*>(borrowed.mapping.address()) + offer.offset, offer.size};
    return borrowed;
}

}  // namespace sidestep::collective
