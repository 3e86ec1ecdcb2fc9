// Pinned memory in which bytes wait between a link and what lies behind: a file, the memory of a GPU.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backend/network.hpp"
#include "transfer/staging.hpp"
#include "wire/pieces.hpp"

namespace sidestep::wire {

// How bytes go between a slot and an end.
struct Way {
    backend::Backend* backend = nullptr;
    std::size_t capability = 0;
    std::shared_ptr<backend::Registration> end;
    std::shared_ptr<backend::Registration> slots;
    bool to_gpu = false;  // the end is memory of a GPU
};

// Slots of backend::max_push bytes each. Any thread. Outlives every slot that was taken, and is not destroyed on a thread
// that ends a piece.
class Slots {
public:
    // So many keep eight sockets and a copy engine busy at the same time.
    static constexpr std::size_t count = 32;

    // So long at most waits what is to be moved later.
    static constexpr std::chrono::microseconds longest_wait{400};

    // out_of_memory where the pool has none left.
    static Result<std::shared_ptr<Slots>> create(transfer::StagingPool& pool, std::shared_ptr<Pieces> pieces,
                                                 const Place& place, MemoryKind kind,
                                                 std::chrono::microseconds longest = longest_wait);
    ~Slots();
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;

    const Buffer& ring() const { return ring_; }
    // What makes the ring ready for engines of the network; before the first slot is taken.
    void keep(std::vector<std::shared_ptr<const void>> ready) { ready_ = std::move(ready); }
    // The ring made ready for a backend, once for each access.
    Result<std::shared_ptr<backend::Registration>> attach(backend::Backend& backend, backend::Access access);

    class Slot;
    // Nothing where all are in use. Given back when the last holder lets go.
    std::shared_ptr<Slot> take();
    // `freed` is called once for each time that take() had none, when a slot has been given back since.
    void tell(std::function<void()> freed);
    // Nobody holds a slot.
    bool idle();
    // Of what is to be moved later: what has waited for long, or for slots that nobody fills any more. What Pieces::tell() was
    // given calls it in time.
    void move_those_due();

private:
    Slots(std::shared_ptr<Pieces> pieces, std::chrono::microseconds longest)
        : pieces_(std::move(pieces)), longest_(longest) {}
    void give_back(Slot* slot);
    void begin(Slot& slot, bool later);
    Slot* next_due();

    const std::shared_ptr<Pieces> pieces_;
    const std::chrono::microseconds longest_;
    transfer::StagingLease lease_;
    Buffer ring_;
    std::vector<std::shared_ptr<const void>> ready_;
    std::vector<std::unique_ptr<Slot>> all_;
    std::mutex mutex_;  // guards what follows
    std::vector<Slot*> free_;
    std::function<void()> freed_;
    std::size_t filling_ = 0;  // slots
    std::deque<std::pair<Slot*, std::chrono::steady_clock::time_point>> later_;
    std::size_t waiting_ = 0;  // times that take() had none, and nobody has been told since
    std::map<std::pair<backend::Backend*, backend::Access>, std::shared_ptr<backend::Registration>> attached_;
};

// One slot, by one user at a time.
class Slots::Slot final : public backend::PieceOwner {
public:
    Slot(Slots& slots, std::size_t index) : slots_(slots), index_(index) {}
    ~Slot() override { close(); }

    void* address() const { return static_cast<char*>(slots_.ring_.address()) + index_ * backend::max_push; }

    using Done = std::function<void(const std::shared_ptr<Slot>&, Result<void>)>;
    // `in_later`: behind what comes into other slots, for a moment.
    enum class Direction { in, in_later, out };
    // Moves bytes from the slot's beginning to places of the way's end, one after the other, or the other way round. Once
    // for each time that it is taken. `done` is given the slot again, on any thread, this one too; the way stays until then.
    // It is destroyed before the slot is given back.
    void move(std::shared_ptr<Slot> self, const Way& way, Direction direction,
              std::vector<backend::RegionPart> places, Done done);

private:
    friend Slots;
    void ended() override;
    // Starts what is left of it, unless a piece failed; tells of the end where nothing is in flight then.
    void go_on(Result<void> result);
    struct Started {
        Result<backend::Progress> progress;
        Bytes size;
    };
    Started start();
    backend::Piece next_piece();

    Slots& slots_;
    const std::size_t index_;
    std::optional<backend::Flight> flight_;
    std::shared_ptr<Slot> self_;
    Done done_;
    const Way* way_ = nullptr;
    bool in_ = false;
    bool fills_ = false;  // taken, and not moved yet; guarded by the mutex of the slots
    std::vector<backend::RegionPart> places_;
    std::size_t next_ = 0;  // place that was not begun
    Bytes begun_ = 0;       // bytes before it
};

}  // namespace sidestep::wire
