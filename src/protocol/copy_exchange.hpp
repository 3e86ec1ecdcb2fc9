// What a rank does in a task of Shape::copies, once it is its turn. For a real GPU a thread of the host drives the copy
// engines; an emulated GPU's own thread copies by itself.
//
// A receiver that has reached the task sends every other rank an invitation: what it runs, how many bytes it expects, and
// where they belong. A sender that has reached the task compares the invitation with its own call and copies its block
// straight to that place. When the copy has ended, it tells the receiver. If not all ranks map the receiver's memory, the
// block goes in pieces through two lanes of the receiver's arena. The receiver copies them out and reports how many it took.
//
// A rank has ended a task when its own copies have ended, and every other rank has reported that its copies to this rank have
// ended too. So a rank that sends the next invitation knows that all others have read the one before, and one line for each
// pair of ranks is enough. The counters are in the ranks and in those lines, not in the task: the same task can run again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include <sidestep/result.hpp>
#include "protocol/collective_task.hpp"

namespace sidestep::protocol {

// From one rank to another, written by the former alone; zeroed at first. Processes share it.
struct alignas(64) CopyLine {
    using Word = std::atomic<std::uint64_t>;
    static_assert(Word::is_always_lock_free);
    // The invitation. `turn` is written last, and counts tasks from 1 on.
    Word turn, signature, bytes;
    Word token;  // slot << 48 | offset
    Word taken;  // pieces of this turn that were copied out of the lanes
    // Pieces to the other rank that have arrived, of all turns. A block that goes straight is one, an empty
    // one too.
    Word delivered;
};
static_assert(sizeof(CopyLine) == 64);

// What the other ranks have told one rank, indexed by sender.
struct CopyRow {
    CopyLine from[max_ranks];
};
static_assert(sizeof(CopyRow) == ArenaLayout::copy_row_bytes());

// What a rank counts from task to task.
struct CopyCounters {
    std::uint64_t turn = 0;
    std::uint64_t sent[max_ranks] = {};      // pieces, in the turns that have ended
    std::uint64_t received[max_ranks] = {};  // pieces that were announced, in the same
};

// Who copies. There is a lane for each rank that copies go to, and one for copies that stay on this rank's
// GPU.
class CopyEngine {
public:
    static constexpr unsigned home = max_ranks;
    static constexpr unsigned lanes = max_ranks + 1;
    virtual ~CopyEngine() = default;
    // Whether the rank has this rank's GPU: copies to it stay there.
    virtual bool near(unsigned rank) = 0;
    // Whether work that is put into the lane now will run without waiting for something that only the end
    // of this very task brings. Ask again until it is so, before the copies that start together. Never
    // blocks.
    virtual Result<bool> ready(unsigned lane) = 0;
    virtual Result<void> copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) = 0;
    // Names all that was put into the lane since it was ready; not 0.
    virtual Result<std::uint64_t> mark(unsigned lane) = 0;
    // Whether those copies have ended.
    virtual bool ended(unsigned lane, std::uint64_t mark) = 0;
    // So many bytes of a rank's memory (slot 0 is its arena); null: not all of them are mapped.
    virtual char* find(unsigned rank, unsigned slot, std::uint64_t offset, std::uint64_t bytes) = 0;
    // Of a rank: what is told it.
    virtual CopyRow& row(unsigned rank) = 0;
};

// One task of one rank. By one thread.
class CopyExchange {
public:
    enum class State {
        moved,    // something has happened
        copying,  // nothing new, but copies of this rank are under way
        waiting,  // nothing new: the others have not done their part
        ended,
        differs,  // fault() says how
    };

    // Begins the task, which stays where it is. The number of the last one counts for reports.
    CopyExchange(const CollectiveTask& task, unsigned rank, unsigned ranks, CopyCounters& counters,
                 CopyEngine& engine);

    // Does what can be done now; never blocks. An error is one of the engine, and ends the task like a fault.
    Result<State> step();
    bool copying() const;  // whether copies of this rank are under way
    // Called where the task fails: ranks that have not come yet then find no receiver.
    void withdraw();
    // Whom it waits for.
    unsigned missing() const;
    const FaultRecord& fault() const { return fault_; }

private:
    struct Piece {
        unsigned lane = 0;
        std::uint64_t mark = 0;  // 0: not marked yet, or nothing to copy
    };
    // Pieces in one direction: those in flight are of the last two.
    struct Way {
        std::uint64_t pieces = 0, started = 0, ended = 0;
        std::array<Piece, 2> flight{};
        Piece& piece(std::uint64_t number) { return flight[number & 1]; }
        bool over() const { return ended == pieces; }
    };
    struct Peer {
        bool invited = false;
        bool in_lanes = false;   // what comes from it
        char* target = nullptr;  // of what goes there; null: through the lanes
        Way out, in;
    };

    unsigned other(unsigned i) const { return (me_ + 1 + i) % ranks_; }
    unsigned lane_to(unsigned peer, bool straight) const;
    Result<bool> home_ready();
    Result<void> begin_to(unsigned peer, unsigned lane);
    bool ended(const Piece& piece) const { return piece.mark == 0 || engine_.ended(piece.lane, piece.mark); }
    void invite(unsigned peer);
    bool in_place(unsigned peer) const;
    Result<void> copy(unsigned lane, Way& way, char* to, const char* from, std::uint64_t bytes);
    Result<void> begin_own();
    void look_at(unsigned peer);
    void compare(unsigned peer, const CopyLine& line);
    void differ(FaultKind kind, unsigned peer, std::uint32_t signature, std::uint64_t expected);
    Result<void> send(unsigned peer);
    Result<void> receive(unsigned peer);
    void end_pieces(Way& way);
    Result<void> mark_all();
    bool over() const;

    const CollectiveTask& task_;
    const ArenaLayout layout_;
    const unsigned me_;
    const unsigned ranks_;
    CopyCounters& counters_;
    CopyEngine& engine_;
    Peer peers_[max_ranks];
    Way own_;  // the block that stays on this rank
    std::vector<Piece*> unmarked_;
    bool moved_ = false;
    FaultRecord fault_;
};

// Whether a block that comes in lies where one lies that still has to be sent.
bool send_overlaps_recv(const CollectiveTask& task, unsigned rank, unsigned ranks);

}  // namespace sidestep::protocol
