// What a task of Shape::copies does, step by step: the same list is carried out by copy engines and stream
// memory operations on a real GPU, and by the thread of an emulated one.
//
// Bytes go in pieces of copy_lane_bytes(), piece k through lane k & 1 that the receiver keeps for the sender.
// Of each lane there are two words: `ready` at the sender, raised by the receiver when the lane is free, and
// `arrived` at the receiver, raised by the sender when a piece is there. Who waits for a word clears it
// before it does anything else. So a word is raised and cleared in turns: `arrived` is raised after its
// `ready` was cleared, and `ready` raised again after the piece was copied out, which is after `arrived` was
// cleared. No word has to be counted, nobody can overtake himself, and after the task all words are what they
// were before it: a graph may be launched again and again.
//
// A rank does all of it in one order, in rounds of one piece for each pair: raise `ready` for the next round
// (at first for two), wait for `ready` of this one, copy out to the others, raise their `arrived`, wait for
// one's own, copy out of the lanes. What round k waits for, all ranks do in round k before they wait
// themselves, or earlier: by induction over rounds and tasks nobody waits in a circle. That takes one stream;
// nothing depends on two streams of a GPU running at the same time.
//
// A word is raised to a tag of the signature, the bytes and the direction. A stream waits until it is not
// less, which a host can satisfy whatever is waited for (copy_release). Ranks that run something else raise
// other tags: of the two directions of a pair the tags are ordered the other way around, so that in each pair
// that disagrees both ranks come to a word that is less.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/collective_task.hpp"

namespace sidestep::backend {

// Pieces of the longest block of one task.
constexpr std::uint64_t most_copy_rounds = 1024;
// A block that only its two ranks know the length of stays below: a tag holds so much.
constexpr std::uint64_t most_tagged_bytes = std::uint64_t{1} << 30;

// Above all tags.
constexpr std::uint64_t copy_release = ~std::uint64_t{0} >> 1;

// From 1 << 62 up to copy_release. Of the bytes the lowest 30 bits; longer blocks differ in their signature.
constexpr std::uint64_t copy_tag(std::uint32_t signature, std::uint64_t bytes, unsigned sender,
                                 unsigned receiver) {
    constexpr std::uint64_t top = std::uint64_t{1} << 62;
    const std::uint64_t value = std::uint64_t{signature} << 30 | (bytes & (most_tagged_bytes - 1));
    return top | (sender < receiver ? value : value ^ (top - 1));
}

struct CopyStep {
    enum class Kind : std::uint8_t {
        begin,  // of a wait for words of `row`, in round `round`; for whoever watches
        end,    // of the task
        raise,  // the word of this rank in `row`, at `peer`
        await,  // the word of `peer` in `row`, here
        clear,  // `words` words from that of `peer` on in `row`, here
        push,   // `bytes` from `at` in the send buffer to `stage` in the arena of `peer`
        pull,   // `bytes` from `stage` in one's own arena to `at` in the receive buffer
        local,  // `bytes` from `at` in the send buffer to `stage` in the receive buffer
    };
    Kind kind = Kind::end;
    std::uint8_t row = 0;  // of ArenaLayout::copy_words()
    std::uint8_t peer = 0;
    std::uint8_t words = 0;
    std::uint32_t round = 0;
    std::uint64_t at = 0;
    std::uint64_t stage = 0;
    std::uint64_t bytes = 0;
};

// Rows of words.
constexpr std::uint8_t row_ready = 0;    // and 1
constexpr std::uint8_t row_arrived = 2;  // and 3
constexpr bool is_arrived(std::uint8_t row) {
    return row >= row_arrived;
}

// Rounds in which a block takes part: one at least, for the word alone.
constexpr std::uint64_t copy_pieces(std::uint64_t bytes, unsigned ranks) {
    const std::uint64_t lane = ArenaLayout{ranks}.copy_lane_bytes();
    return lane == 0 || bytes <= lane ? 1 : (bytes + lane - 1) / lane;
}

// The tag that the word of `peer` in a row is raised to, by whichever of the two: `ready` for what `rank`
// sends there, `arrived` for what it receives from there, and the other way around where this rank raises it.
std::uint64_t tag_of(const CollectiveTask& task, unsigned rank, unsigned peer, bool sends);

// At most most_copy_rounds rounds; more are left out, so whoever makes the task sees to it.
std::vector<CopyStep> copy_steps(const CollectiveTask& task, unsigned rank, unsigned ranks);

// What a word tells that is there, but is not the one that `task` waits for: FaultKind::mismatch or
// size_mismatch.
FaultRecord fault_of_word(const CollectiveTask& task, unsigned rank, unsigned peer, std::uint8_t row,
                          std::uint64_t word);

}  // namespace sidestep::backend
