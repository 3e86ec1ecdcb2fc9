// Which memory of this rank the others have mapped, and how it gets there.
//
// The first operation that uses some memory notes its allocation; the service thread lends it to every other rank,
// each maps it and says so, and when all have, later operations carry its token. Until then operations stage.
// Memory that was freed, or whose address was given out again, is withdrawn: once no task of this rank is
// under way, the others unmap it.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "collective/lent_memory.hpp"
#include "collective/touched.hpp"
#include "driver/local_socket.hpp"

namespace sidestep::collective {

// Sends a message to a rank; `descriptor` (-1: none) stays open as long as `keeps` lives.
using Sender =
    std::function<void(unsigned rank, Message message, int descriptor, std::shared_ptr<const void> keeps)>;

class Reachability {
public:
    struct Facts {
        unsigned rank = 0;
        unsigned ranks = 1;
        std::uint32_t same_process = 0;  // bit r: rank r is of this process; this rank too
    };
    Reachability(const backend::Registry& registry, backend::Seat& seat, const Facts& facts);

    // By whoever runs operations: where the others find so many bytes (Touched::unknown: as many as a buffer
    // there can have) from that address on; unreachable as long as they do not. Asks for the memory to be
    // lent, and sets `asked` where the service thread has something to do.
    Result<protocol::Token> token(const void* address, Bytes bytes, bool& asked);

    // Lends the allocation that holds the buffer, and waits until all ranks have mapped it or cannot. `wake`
    // is called before waiting; `going` ends the wait with its error.
    Result<void> attach(const Buffer& buffer, driver::LocalSocket::Time until,
                        const std::function<void()>& wake, const std::function<Result<void>()>& going);
    // Returns once the others have let go of the memory, which they do when no task of this rank is under way, or where
    // `going` says that the group has ended. At `until` ErrorCode::timed_out; then further calls answer at once.
    Result<void> detach(const Buffer& buffer, driver::LocalSocket::Time until,
                        const std::function<void()>& wake, const std::function<Result<void>()>& going);

    // For people: "yes", or what is carried through the arena and why.
    std::string describe(const void* address, Bytes bytes) const;

    // By the service thread alone. What is due: lends what was asked for; withdraws what is no longer used, once no task of this
    // rank is under way.
    void work(const Sender& send);
    // Looks whether what is lent is still there.
    void look();
    void shared(unsigned rank, std::uint32_t slot, const std::string& why_not);
    void dropped(unsigned rank, std::uint32_t slot);
    // The rank has left or died: nothing waits for it any more.
    void gone(unsigned rank);

private:
    enum class State { free, wanted, lending, valid, refused, withdrawn, dropping };
    struct Slot {
        State state = State::free;
        Lent lent;
        std::uint64_t use = 0;  // tells what the slot is used for from what it was used for before
        int attached = 0;
        std::uint32_t pending = 0;  // bit r: rank r has not answered
        std::uint32_t has = 0;      // bit r: rank r has it mapped
        std::string why;            // refused: why
    };

    // With the mutex held.
    std::optional<unsigned> find(const backend::Extent& extent);
    Result<unsigned> take(const backend::Extent& extent);
    void withdraw(unsigned slot);
    void settle(unsigned slot);
    bool full() const;  // no slot is free, and none is about to be

    // Without it.
    Result<unsigned> claim(const backend::Extent& extent, driver::LocalSocket::Time until,
                           const std::function<Result<void>()>& going);
    void call_back(unsigned slot, const Sender& send);
    void lend(unsigned slot, const Sender& send);
    bool moves(const backend::Extent& extent) const { return !extent.shares_in_place && has_others_; }
    std::uint32_t all_others() const { return ((1u << facts_.ranks) - 1) & ~(1u << facts_.rank) & ~gone_; }

    const backend::Registry& registry_;
    backend::Seat& seat_;
    const Facts facts_;
    const bool has_others_;  // ranks in other processes

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::array<Slot, protocol::max_slots> slots_;  // 0 is the arena's, and not used here
    std::unordered_map<const void*, unsigned>
        by_address_;  // first byte -> slot, of those that are not withdrawn
    std::unordered_map<const void*, std::pair<unsigned, std::uint64_t>>
        late_;  // first byte -> slot and its use, of what detach() has not seen go
    unsigned next_ = 1;
    std::uint64_t uses_ = 0;
    bool due_ = false;  // some slot is wanted or withdrawn
    std::uint32_t gone_ = 0;
};

// Memory of the others that is mapped here. By the service thread alone, and by joining before it runs.
class Imports {
public:
    Imports(backend::Seat& seat) : seat_(seat) {}

    // Maps it and writes the table.
    Result<void> add(unsigned rank, std::uint32_t slot, const std::string& offer, int descriptor,
                     bool same_process);
    void drop(unsigned rank, std::uint32_t slot);
    // Tasks that begin from now on find nothing of the rank; its arena becomes `own_arena`, so that what a graph may still
    // write goes nowhere.
    void hide(unsigned rank, const Buffer& own_arena);
    // Everything of the rank, once no task that began before is under way.
    void forget(unsigned rank);
    bool has(unsigned rank, std::uint32_t slot) const { return mapped_.contains({rank, slot}); }

private:
    backend::Seat& seat_;
    std::map<std::pair<unsigned, std::uint32_t>, Borrowed> mapped_;
};

}  // namespace sidestep::collective
