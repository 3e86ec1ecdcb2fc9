#include "wire/slots.hpp"

#include <algorithm>
#include <utility>

#include "base/try.hpp"

namespace sidestep::wire {
namespace {

using Clock = std::chrono::steady_clock;

// A GPU moves it in a few microseconds.
constexpr Bytes small = Bytes{64} << 10;

// A GPU that reads what a processor has just received slows down what that one receives next (docs/lab-book.md, "Between
// machines, over TCP"). So a piece waits for so many others, as long as they come quickly.
constexpr std::size_t pieces_behind = 8;

}  // namespace

Result<std::shared_ptr<Slots>> Slots::create(transfer::StagingPool& pool, std::shared_ptr<Pieces> pieces,
                                             const Place& place, MemoryKind kind,
                                             std::chrono::microseconds longest) {
    std::shared_ptr<Slots> slots(new Slots(std::move(pieces), longest));
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
    slot->fills_ = true;
    ++filling_;
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
        if (std::exchange(slot->fills_, false)) --filling_;
    }
    if (freed) freed();
}

void Slots::begin(Slot& slot, bool later) {
    {
        std::lock_guard lock(mutex_);
        slot.fills_ = false;
        --filling_;
        if (later) later_.push_back({&slot, Clock::now()});
    }
    move_those_due();
    if (!later) slot.go_on({});
}

// No more wait than slots are being filled, so none is left when what comes has ended.
Slots::Slot* Slots::next_due() {
    std::lock_guard lock(mutex_);
    if (later_.empty()) return nullptr;
    const auto [slot, since] = later_.front();
    if (later_.size() <= std::min(filling_, pieces_behind) && Clock::now() - since <= longest_)
        return nullptr;
    later_.pop_front();
    return slot;
}

void Slots::move_those_due() {
    while (Slot* const slot = next_due()) slot->go_on({});
    const std::lock_guard lock(mutex_);
    if (!later_.empty()) pieces_->call_by(later_.front().second + longest_);
}

void Slots::Slot::move(std::shared_ptr<Slot> self, const Way& way, Direction direction,
                       std::vector<backend::RegionPart> places, Done done) {
    self_ = std::move(self);
    done_ = std::move(done);
    way_ = &way;
    in_ = direction != Direction::out;
    places_ = std::move(places);
    next_ = 0;
    begun_ = 0;
    slots_.begin(*this, direction == Direction::in_later);
}

backend::Piece Slots::Slot::next_piece() {
    const auto& [offset, size] = places_[next_++];
    const Bytes in_ring = index_ * backend::max_push + begun_;
    begun_ += size;
    backend::Piece piece;
    piece.from = in_ ? way_->slots.get() : way_->end.get();
    piece.from_offset = in_ ? in_ring : offset;
    piece.to = in_ ? way_->end.get() : way_->slots.get();
    piece.to_offset = in_ ? offset : in_ring;
    piece.size = size;
    piece.capability = way_->capability;
    piece.awaited = true;
    // What a later one reads must not be written over.
    if (!in_ && next_ == places_.size()) piece.room_after = backend::max_push - begun_;
    return piece;
}

// All at once where the backend can. The bytes are counted before: where it is pending, it may have ended.
Slots::Slot::Started Slots::Slot::start() {
    flight_.emplace(*this);
    auto* const batcher = places_.size() > 1 ? way_->backend->batcher() : nullptr;
    if (batcher == nullptr) {
        const backend::Piece piece = next_piece();
        return {way_->backend->start(piece, *flight_), piece.size};
    }
    std::vector<backend::Piece> pieces;
    const Bytes before = begun_;
    while (next_ < places_.size()) pieces.push_back(next_piece());
    const Bytes size = begun_ - before;
    return {batcher->start_batch(pieces, *flight_), size};
}

// Nothing of this object is touched once a piece is pending, or the slot is given back. What `done` keeps goes before that: it
// may be the last but one to hold the slots, and whoever holds them destroys them once all are back.
void Slots::Slot::go_on(Result<void> result) {
    const std::shared_ptr<Pieces> pieces = slots_.pieces_;
    while (result && next_ < places_.size()) {
        const auto [progress, size] = start();
        if (progress && *progress == backend::Progress::pending) return pieces->begun(size <= small);
        if (!progress) result = progress.error();
    }
    const auto kept = std::exchange(self_, nullptr);
    std::exchange(done_, nullptr)(kept, std::move(result));
}

void Slots::Slot::ended() {
    slots_.pieces_->ended();
    go_on(flight_->result());
}

}  // namespace sidestep::wire
