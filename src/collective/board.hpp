// What every rank writes down of itself, in memory that all ranks of a group map, to say who did what instead.
// `sidestep ps` reads a copy of it (board_copy.hpp), also while they hang. Words of 64 bits, each written and
// read as a whole, so that a reader may see old ones beside new ones but never anything that is out of
// bounds.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collective/board_copy.hpp"
#include "collective/ending.hpp"
#include "collective/operation.hpp"
#include "driver/process.hpp"
#include "driver/shared_pages.hpp"
#include "protocol/copy_exchange.hpp"

namespace sidestep::collective {

// An operation as it is written down: all but its addresses.
struct Noted {
    std::uint64_t number = 0;   // of this rank's operations, from 1; 0: nothing
    std::uint64_t step = 0;     // of the operations of all ranks (all but send_recv), up to and with this one
    std::uint64_t time_ns = 0;  // of the machine's steady clock, when it was enqueued
    std::uint64_t count = 0;
    std::uint32_t signature = 0;
    Collective collective = Collective::barrier;
    protocol::Element element = protocol::Element::u8;
    protocol::Combine combine = protocol::Combine::none;
    std::uint8_t root = 0;
    std::uint16_t peers = 0;  // of send_recv: bit r: with rank r
    std::uint8_t calls = 0;   // that are coalesced; 0: it is one
    // By which the ranks know it: all count those of all ranks alike, sends and receives each its own.
    std::uint64_t label() const { return collective == Collective::send_recv ? number : step; }
    // As describe(Operation) says it.
    std::string text() const;
    // "operation 3, barrier"
    std::string numbered() const;
};
Noted note_of(const Operation& operation);

// A text that is written a word at a time. What does not fit is cut.
template <std::size_t bytes>
class BoardText {
public:
    void store(std::string_view text) {
        for (std::size_t word = 0; word < bytes / 8; ++word) {
            std::uint64_t value = 0;
            for (std::size_t i = 0; i < 8 && word * 8 + i < text.size() && word * 8 + i + 1 < bytes; ++i)
                value |= std::uint64_t{static_cast<unsigned char>(text[word * 8 + i])} << (8 * i);
            words_[word].store(value, std::memory_order_relaxed);
        }
    }
    // Up to the first zero; what cannot be printed as '?'.
    std::string load() const {
        std::string text;
        for (const auto& word : words_) {
            const std::uint64_t value = word.load(std::memory_order_relaxed);
            for (int i = 0; i < 8; ++i) {
                const auto byte = static_cast<unsigned char>(value >> (8 * i));
                if (byte == 0) return text;
                text += byte < 0x20 || byte == 0x7f ? '?' : static_cast<char>(byte);
            }
        }
        return text;
    }

private:
    std::array<std::atomic<std::uint64_t>, bytes / 8> words_;
};

// The memory. `Row` is written by its rank alone, but for its death.
struct BoardFile {
    static constexpr std::uint64_t right_magic = 0x3530424753ull;  // "SGB05"
    static constexpr std::size_t remembered = 64;                  // operations
    using Number = std::atomic<std::uint64_t>;
    static_assert(Number::is_always_lock_free);

    struct Cell {
        Number number, step, time_ns, count, what, signature;
    };
    enum State : std::uint64_t { absent, joined, left, died };
    struct Row {
        Number state, process, started, numbering;
        Number locked;  // 1: as long as the rank lives it holds its lock of the copy
        Number enqueued, steps, done;
        Number moved_ns;  // of the machine's steady clock: when `done` was raised last
        Number counts;    // 1: `done` is raised while others still run; 0: only once none does
        // Blocks of all send_recv so far, to and from each rank. The k-th one sent to a rank is the k-th one
        // that it receives.
        Number sent[protocol::max_ranks], received[protocol::max_ranks];
        BoardText<64> place;
        BoardText<512> error;
        Cell cells[remembered];
    };

    Number magic, ranks, aborted;
    BoardText<64> id;
    BoardText<128> name;
    Row rows[protocol::max_ranks];
    // What the ranks tell each other: Seat::meet(). The copy is without it.
    protocol::CopyRow copies[protocol::max_ranks];
    static constexpr std::size_t shown_bytes();

    // What `ranks` says, but never more than there can be.
    unsigned how_many() const {
        return static_cast<unsigned>(
            std::min<std::uint64_t>(ranks.load(std::memory_order_relaxed), protocol::max_ranks));
    }
    // The operation of a rank with that number; nothing where it has been written over.
    std::optional<Noted> find(unsigned rank, std::uint64_t number) const;
    // The first operation of all ranks that brought the rank to `step`; nothing where it is not there (any
    // more).
    std::optional<Noted> find_step(unsigned rank, std::uint64_t step) const;
    std::optional<Noted> last(unsigned rank) const;
    // The oldest that is not known to have ended, or the oldest of those that is still remembered.
    std::optional<Noted> oldest_unfinished(unsigned rank) const;
    driver::ProcessMark process_of(unsigned rank) const;
};

constexpr std::size_t BoardFile::shown_bytes() {
    return offsetof(BoardFile, copies);
}

class Board {
public:
    // A new one, by rank 0. Others see it once rank 0 has joined.
    static Result<Board> create(const std::string& path, unsigned ranks, const std::string& id,
                                const std::string& name);
    // The same one, of another rank.
    static Result<Board> adopt(driver::Fd fd, const std::string& path, unsigned ranks);

    Board(Board&&) = default;
    Board& operator=(Board&&) = default;
    // Leaves, and removes the copy where no rank is left that lives.
    ~Board();

    int descriptor() const { return memory_.get(); }
    const BoardFile& file() const { return *static_cast<const BoardFile*>(map_.address()); }
    BoardFile& file() { return *static_cast<BoardFile*>(map_.address()); }

    void join(unsigned rank, const std::string& place);
    void leave();
    // Called by a rank that has seen it.
    void died(unsigned rank);
    // Writes what has changed to the copy, of this rank or of all: those that are stopped do not do it. By one thread.
    void show();
    void show_all();
    // Before the operation's tasks are enqueued, so that whoever waits for the rank finds what it runs.
    void note(unsigned rank, const Noted& noted);
    // After that: from now on it counts. Or else, where the first of them was refused, it never was.
    void enqueued(unsigned rank, const Noted& noted);
    void refused(unsigned rank, const Noted& noted);
    // What was enqueued sends and receives these.
    void count(unsigned rank, const std::vector<PairItem>& pairs);
    // All up to this one have ended. Any thread.
    void ended(unsigned rank, std::uint64_t number);

private:
    Board(driver::Fd memory, driver::SharedMap map, BoardCopy copy)
        : memory_(std::move(memory)),
          map_(std::move(map)),
          copy_(std::make_unique<BoardCopy>(std::move(copy))) {}
    using Changing = std::array<std::uint64_t, 6>;
    Changing changing(unsigned rank) const;
    void show(unsigned rank);
    driver::Fd memory_;
    driver::SharedMap map_;
    std::unique_ptr<BoardCopy> copy_;
    std::array<Changing, protocol::max_ranks> shown_{};
    unsigned rank_ = 0;  // whose row is this process's, once it has joined
    bool joined_ = false;
    ending::Maker maker_;
};

// Whether a rank that has joined lives, as far as can be told. `copy`: a descriptor of the board's copy, other than the
// rank's own; -1: locks are not asked.
bool lives(const BoardFile& board, unsigned rank, int copy);
// No process that could use the group is alive any more.
bool nobody_left(const BoardFile& board, int copy);

// How long a rank has certainly been waiting within an operation; 0: it is idle, or goes on.
double waiting_s(const BoardFile& board, unsigned rank);
// For whom, and in which operation, as `sidestep ps` says it.
std::string waits_of(const BoardFile& board, unsigned rank);

// Of the machine's steady clock, in every namespace.
std::uint64_t steady_ns();

}  // namespace sidestep::collective
