// What a shape of tasks costs, by the figures of a machine.
#pragma once

#include "collective/work.hpp"

namespace sidestep::collective {

// Of a store that has to be seen by other GPUs before a flag is (a release over the whole system), and of
// thread blocks that do not come to it together, in microseconds: fitted to all_reduce and reduce of 2 to 8
// MiB as slices between two H200.
constexpr double release_us = 1.2;
// What one thread block carries before another one is worth it. These, and the part of a block's rate that
// packets reach, are fitted to all_reduce and all_gather between two H200 joined by NVLink, in a graph.
constexpr std::uint64_t packets_a_block = 2560;
constexpr std::uint64_t slices_a_block = 64 << 10;
// The same where slices of more than two ranks are fetched and combined, and the most blocks that are worth
// it: more of them only wait for each other longer. Fitted to reduce, reduce_scatter and all_reduce among
// four H200 (docs/lab-book.md, "Loads under way").
constexpr std::uint64_t fetched_a_block = 96 << 10;
constexpr int max_fetching_blocks = 32;
// Where every rank reads and is read at a time, what is left of a link's rate: the requests cross it too. Fitted to
// all_reduce, reduce and reduce_scatter among four H200, whose slices come at 320 GB/s.
constexpr double reading_part = 0.945;
constexpr std::uint64_t pairs_a_block = 8 << 10;
constexpr double packets_part = 1.0 / 3;
constexpr double one_shot_part = 1.0 / 2;
// The same of lines: five rows, fitted to all_reduce among four H200 in a graph.
constexpr std::uint64_t lines_a_block = 5 * protocol::row_payload;
constexpr double lines_part = 1.0 / 4;
// What all warps of a thread block carry at a time.
constexpr std::uint64_t lines_turn = protocol::line_warps * protocol::row_payload;
// Of a ring, which has two of each where it combines; these are plenty for the links that it is for.
constexpr int max_ring_blocks = 16;
// Of one-shot packets; more of them only take longer to begin. Of lamport, and of lines in one phase, above
// so many bytes to each other rank more of them gain more than coming early does: fitted to two H200. Lamport
// has one unit for each thread until then.
constexpr int max_one_shot_blocks = 32;
constexpr std::uint64_t few_blocks_max = 256 << 10;
constexpr std::uint64_t few_lamport_max = 240 << 10;
// The same of lamport, and what a GPU reads, combines and empties beside the links, whatever the number of
// ranks: fitted to all_reduce and reduce between two H200 in a graph.
constexpr std::uint64_t lamport_a_block = 2048;
constexpr double lamport_part = 0.6;
constexpr double lamport_gb_per_s = 210;
constexpr double lamport_begins_us = 0.007;  // more than packets, which are taken up to 256 B
// What the short code of both saves of a hop's time.
constexpr double one_shot_saves_us = 0.35;

// In microseconds, of what moves between GPUs. Grows with the bytes: a thread block's own time counts for its
// first share only, and again where no more blocks are to be had.
class Prices {
public:
    Prices(const Figures& figures, unsigned ranks) : figures_(figures), ranks_(ranks) {}

    double ring_rate() const;
    double ring_us(const Work& work) const;
    double packets_us(const Work& work) const;
    double lines_us(const Work& work) const;
    double lamport_us(const Work& work) const;
    double hops_us(const Work& work) const;
    double direct_us(protocol::Shape shape, const Work& work) const;
    static int max_packet_blocks(const Work& work, int max);

private:
    const Figures& figures_;
    const unsigned ranks_;
};

// As CollectivePlan names them.
std::string_view name_of(protocol::Shape shape);

}  // namespace sidestep::collective
