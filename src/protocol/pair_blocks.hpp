// How blocks of Shape::pairs are shared out: which are eager, how many thread blocks carry one, who meets whom first.
// Included by device code.
#pragma once

#include "protocol/collective_task.hpp"

namespace sidestep::protocol {

// Whether a block of pairs is eager. `eager_max`: the task's. Both ends of the block agree on all of these.
constexpr bool is_eager(uint64_t bytes, unsigned ranks, uint64_t eager_max = ~uint64_t{0}) {
    return bytes <= eager_max && bytes <= ArenaLayout{ranks}.eager_payload();
}

// Among so many ranks two thread blocks of pairs share a multiprocessor. Among more, three do for pairs of so many bytes, so that
// each pair of four ranks has 64 of them, not 42, which carry a tenth more; it costs what is shorter 0.5 us (docs/lab-book.md,
// "Blocks of pairs").
constexpr unsigned ranks_of_few_pairs = 3;
constexpr uint64_t bytes_of_many_blocks = 4 << 20;
constexpr unsigned max_pair_blocks = 192;  // of all pairs together; of few max_blocks

// Whether three have to share one. `most`: the task's pair_blocks_max, which is less where there is less room.
constexpr bool are_many(unsigned blocks, unsigned ranks, uint64_t most) {
    return ranks > ranks_of_few_pairs && (most <= max_blocks || blocks * (ranks - 1) > max_blocks);
}

// Thread blocks that carry one direction of a pair. Both ends derive it from what they agree on. One for
// every 8 KiB of what is not eager, or as many as if it were: with 32 KiB 128 KiB took 1.4 us more between
// two H200 (docs/lab-book.md, "Eager pairs"). A block waits for its twin at the other end, so those of all
// pairs have to run at a time: `most`, the task's pair_blocks_max.
constexpr unsigned pair_blocks(uint64_t bytes, unsigned ranks, uint64_t eager_max = ~uint64_t{0},
                               uint64_t most = max_blocks) {
    if (is_eager(bytes, ranks, eager_max))
        return bytes == 0 ? 1 : static_cast<unsigned>((bytes + eager_share - 1) / eager_share);
    const uint64_t of_all = bytes < bytes_of_many_blocks && most > max_blocks ? max_blocks : most;
    const uint64_t of_each = of_all / (ranks <= 2 ? 1 : ranks - 1);
    const unsigned max = of_each < 1                ? 1
                         : of_each < staging_blocks ? static_cast<unsigned>(of_each)
                                                    : staging_blocks;
    const uint64_t wanted = (bytes + (8 << 10) - 1) / (8 << 10),
                   shares = (bytes + eager_share - 1) / eager_share;
    const uint64_t blocks = ArenaLayout{ranks}.eager_blocks(), min = shares < blocks ? shares : blocks;
    const uint64_t some = wanted < min ? min : wanted;
    return some > max ? max : static_cast<unsigned>(some);
}

// Whether the receiver of a message wipes: the flags of packets wrap around after 2^32 of them.
constexpr uint64_t eager_period = uint64_t{1} << 30;
constexpr uint64_t eager_wiped = uint64_t{1} << 20;
constexpr bool wipes_eager(uint64_t number) {
    return number >= eager_period && number % eager_period < eager_wiped;
}

// With whom a rank deals in a round, of which there are as many as ranks; that one deals with it.
constexpr unsigned pair_partner(unsigned round, unsigned rank, unsigned ranks) {
    return (round + ranks - rank) % ranks;
}

}  // namespace sidestep::protocol
