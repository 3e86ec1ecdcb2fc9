#include "wire/slots.hpp"

#include <utility>

#include "base/try.hpp"

namespace sidestep::wire {
namespace {

// A GPU moves it in a few microseconds.
constexpr Bytes small = Bytes{64} << 10;

}  // namespace

Result<std::shared_ptr<Slots>> Slots::create(transfer::StagingPool& pool, std::shared_ptr<Pieces> pieces,
                                             const Place& place, MemoryKind kind) {
    std::shared_ptr<Slots> slots(new Slots(std::move(pieces)));
    SIDESTEP_TRY(slots->lease_, pool.acquire(place, kind, count * backend::max_push));
    slots->ring_ = slots->lease_.buffer().slice(0, count * backend::max_push);
    for (std::size_t index = 0; index < count; ++index) {
        slots->all_.push_back(std::make_unique<Slot>(*slots, index));
        slots->free_.push_back(slots->all_.back().get());
    }
    return slots;
}

Slots::~Slots() {
    all_.clear();
    attached_.clear();
}

Result<std::shared_ptr<backend::Registration>> Slots::attach(backend::Backend& backend,
                                                             backend::Access access) {
    std::lock_guard lock(mutex_);
    auto& known = attached_[{&backend, access}];
    if (known) return known;
    backend::AttachOptions options;
    options.access = access;
    SIDESTEP_TRY(known, backend.attach(ring_, options));
    return known;
}

std::shared_ptr<Slots::Slot> Slots::take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
        ++waiting_;
        return nullptr;
    }
    Slot* const slot = free_.back();
    free_.pop_back();
    return {slot, [this](Slot* used) { give_back(used); }};
}

void Slots::tell(std::function<void()> freed) {
    std::lock_guard lock(mutex_);
    freed_ = std::move(freed);
}

bool Slots::idle() {
    std::lock_guard lock(mutex_);
    return free_.size() == count;
}

void Slots::give_back(Slot* slot) {
    std::function<void()> freed;
    {
        std::lock_guard lock(mutex_);
        free_.push_back(slot);
        if (waiting_ > 0) {
            --waiting_;
            freed = freed_;
        }
    }
    if (freed) freed();
}

void Slots::Slot::move(std::shared_ptr<Slot> self, const Way& way, bool in, Bytes offset, Bytes size,
                       Done done) {
    backend::Piece piece;
    piece.from = in ? way.slots.get() : way.end.get();
    piece.from_offset = in ? index_ * backend::max_push : offset;
    piece.to = in ? way.end.get() : way.slots.get();
    piece.to_offset = in ? offset : index_ * backend::max_push;
    piece.size = size;
    piece.capability = way.capability;
    if (!in) piece.room_after = backend::max_push - size;
    self_ = std::move(self);
    done_ = std::move(done);
    flight_.emplace(*this);
    auto started = way.backend->start(piece, *flight_);
    if (started && *started == backend::Progress::pending) return slots_.pieces_->begun(size <= small);
    auto kept = std::exchange(self_, nullptr);
    std::exchange(done_, nullptr)(std::move(kept), started ? Result<void>() : Result<void>(started.error()));
}

// Nothing of this object is touched once it has been handed on.
void Slots::Slot::ended() {
    slots_.pieces_->ended();
    auto kept = std::exchange(self_, nullptr);
    const Result<void> result = flight_->result();
    std::exchange(done_, nullptr)(std::move(kept), result);
}

}  // namespace sidestep::wire
