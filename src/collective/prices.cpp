#include "collective/prices.hpp"

#include <algorithm>

namespace sidestep::collective {

using protocol::ArenaLayout;
using protocol::Shape;

namespace {

double share_us(std::uint64_t bytes, std::uint64_t unit, int max, double gb_per_s) {
    const double share =
        std::max(static_cast<double>(std::min(bytes, unit)), static_cast<double>(bytes) / max);
    return share / (gb_per_s * 1e3);
}

}  // namespace

double Prices::ring_rate() const {
    return figures_.ring_gb_per_s > 0 ? figures_.ring_gb_per_s : figures_.link_gb_per_s;
}

// The first pieces of all thread blocks take as long for each hop. Whole ones are reckoned with, whatever the
// size, so that no ring is taken below sizes that slices are taken for.
double Prices::ring_us(const Work& work) const {
    const int max = std::min(figures_.max_blocks, max_ring_blocks);
    const auto pieces = ArenaLayout{ranks_}.ring_piece_bytes() * static_cast<std::uint64_t>(max);
    const double first = static_cast<double>(pieces) / (ring_rate() * 1e3);
    return first * (work.hops - 1) +
           std::max(share_us(work.bytes, slices_a_block, max, figures_.block_gb_per_s),
                    static_cast<double>(work.bytes) / (ring_rate() * 1e3));
}

double Prices::hops_us(const Work& work) const {
    const bool one_shot = work.packets && work.hops == 1 && !work.lines;
    return figures_.hop_us * work.hops - (one_shot ? std::min(one_shot_saves_us, figures_.hop_us / 2) : 0);
}

int Prices::max_packet_blocks(const Work& work, int max) {
    const bool many =
        (work.lamport && work.each > few_lamport_max) || (work.lines && work.each > few_blocks_max);
    const bool few = work.hops == 1 && !many;
    return few ? std::min(max, max_one_shot_blocks) : max;
}

// Each phase begins with a share that its blocks load, send, await and store one after the other.
double Prices::packets_us(const Work& work) const {
    if (work.lines) return lines_us(work);
    if (work.lamport) return lamport_us(work);
    const int max = max_packet_blocks(work, std::max(figures_.max_blocks, 1));
    const double rate = figures_.packet_gb_per_s / work.slowed;
    const double part = work.hops == 1 ? one_shot_part : packets_part;
    return share_us(work.each, packets_a_block, max, figures_.block_gb_per_s * part) * work.hops +
           static_cast<double>(work.bytes) / (rate * 1e3);
}

// After the first share of each phase all blocks send while others still come in, and fill the links but for
// the flags. Warps that have more rows than one wait for the others with each.
double Prices::lines_us(const Work& work) const {
    const auto first = static_cast<double>(std::min(work.each, lines_a_block));
    const double link = figures_.link_gb_per_s * protocol::row_payload / protocol::row_bytes;
    const int max = std::max(figures_.max_blocks, 1);
    const double blocks = figures_.block_gb_per_s * max;
    const double turns = static_cast<double>(work.each) / (static_cast<double>(lines_turn) * max);
    const double waits = work.one_way ? 0 : std::max(turns - 1, 0.0) * work.hops;
    return first / (figures_.block_gb_per_s * lines_part * 1e3) * work.hops + waits * figures_.hop_us +
           std::max(static_cast<double>(work.bytes) / (link * 1e3),
                    static_cast<double>(work.each) * work.hops / (blocks * 1e3));
}

double Prices::lamport_us(const Work& work) const {
    const int max = max_packet_blocks(work, std::max(figures_.max_blocks, 1));
    const auto first = static_cast<double>(std::min(work.each, lamport_a_block));
    const double blocks = figures_.block_gb_per_s * max;
    const double link = static_cast<double>(work.bytes) / (figures_.link_gb_per_s * 1e3);
    const double beside = static_cast<double>(work.each) / (std::min(lamport_gb_per_s, blocks) * 1e3);
    return first / (figures_.block_gb_per_s * lamport_part * 1e3) +
           (work.one_way ? std::max(link, beside) : link + beside) + lamport_begins_us;
}

double Prices::direct_us(Shape shape, const Work& work) const {
    const std::uint64_t unit = shape == Shape::pairs ? pairs_a_block : slices_a_block;
    // All others of two ranks are neighbours.
    double rate = ranks_ == 2 ? std::max(ring_rate(), figures_.link_gb_per_s) : figures_.link_gb_per_s;
    if (shape == Shape::pushed_slices) rate = std::max(rate, figures_.push_gb_per_s);
    if (work.reads) rate *= reading_part;
    return std::max(share_us(work.bytes, unit, std::max(figures_.max_blocks, 1), figures_.block_gb_per_s),
                    static_cast<double>(work.bytes) / (rate * 1e3));
}

std::string_view name_of(Shape shape) {
    switch (shape) {
        case Shape::packets:
            return "one-shot packets";
        case Shape::lamport:
            return "one-shot Lamport";
        case Shape::packets_two_phase:
            return "two-phase packets";
        case Shape::lines:
            return "lines";
        case Shape::slices:
            return "slices";
        case Shape::pushed_slices:
            return "pushed slices";
        case Shape::pairs:
            return "pairs";
        case Shape::copies:
            return "copy engines";
        case Shape::ring:
            return "ring";
        case Shape::coalesced:
            return "coalesced packets";
    }
    return "?";
}

}  // namespace sidestep::collective
