// Which shape carries an operation: every one that can is priced, the quickest is taken, the others say why
// not.
#include "collective/choose.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "backend/copy_steps.hpp"
#include "collective/tasks.hpp"

namespace sidestep::collective {

using backend::ArenaLayout;
using backend::Shape;

namespace {

// Of a store that has to be seen by other GPUs before a flag is (a release over the whole system), in
// microseconds. Half a microsecond to one, where stores are outstanding; the figure only tells shapes apart.
constexpr double release_us = 0.7;
// Packets that arrive are polled while others still come in: what that adds to sending them. The same again
// where each rank combines all of them.
constexpr double polling = 0.5;
// What one thread block carries before another one is worth it. These, and the part of a block's rate that
// packets reach, are fitted to all_reduce and all_gather between two H200 joined by NVLink, in a graph.
constexpr std::uint64_t packets_a_block = 2560;
constexpr std::uint64_t slices_a_block = 64 << 10;
constexpr std::uint64_t pairs_a_block = 32 << 10;
constexpr double packets_part = 1.0 / 3;
// Of a ring, which has two of each where it combines; these are plenty for the links that it is for.
constexpr int most_ring_blocks = 16;
// Of one-shot packets; more of them only take longer to begin.
constexpr int most_one_shot_blocks = 32;
// Threads of this machine stand in for the thread blocks of emulated GPUs.
constexpr int most_emulated_blocks = 4;

// Of an operation on a stream that moves no bytes to speak of: of a word, or what a copy takes to begin. A
// guess, until copies have been measured on GPUs; no choice depends on it.
constexpr double stream_step_us = 1.5;

constexpr std::array<Shape, 6> shapes = {Shape::packets, Shape::packets_two_phase, Shape::slices,
                                         Shape::pairs,   Shape::copies,            Shape::ring};

std::string_view name_of(Shape shape) {
    switch (shape) {
        case Shape::packets:
            return "one-shot packets";
        case Shape::packets_two_phase:
            return "two-phase packets";
        case Shape::slices:
            return "slices";
        case Shape::pairs:
            return "pairs";
        case Shape::copies:
            return "copy engines";
        case Shape::ring:
            return "ring";
    }
    return "?";
}

// What the busiest rank does in one shape.
struct Work {
    std::uint64_t bytes = 0;  // through its links, in the direction that has more
    std::uint64_t local = 0;  // within the GPU
    int hops = 0;             // from one GPU to another, one after the other
    int releases = 0;
    bool packets = false;
    std::uint64_t each = 0;  // packets: from one rank to each other one, in each phase
    double slowed = 1;       // packets: by polling
    int pieces = 0;          // copies: of the longest block
};

struct Candidate {
    Shape shape = Shape::packets;
    std::string why_not;  // empty: possible
    Work work;
    int blocks = 1;
    double us = 0;
};

class Chooser {
public:
    Chooser(const Operation& operation, const GroupFacts& facts, GroupPolicy policy)
        : operation_(operation),
          facts_(facts),
          policy_(policy),
          figures_(facts.figures),
          ranks_(static_cast<unsigned>(facts.ranks)) {}

    Result<Choice> choose() {
        std::vector<Candidate> all;
        for (const Shape shape : shapes) all.push_back(candidate(shape));
        const Candidate* best = nullptr;
        for (const Candidate& one : all)
            if (allowed(one.shape) && one.why_not.empty() && (best == nullptr || one.us < best->us))
                best = &one;
        if (best == nullptr) return refuse_policy();
        Choice choice{best->shape, best->blocks, best->us, std::string(name_of(best->shape)), {}, {}};
        choice.reason = reason(*best, all);
        for (const Candidate& one : all)
            if (&one != best) choice.refused.push_back(refuse(one, *best));
        return choice;
    }

private:
    bool allowed(Shape shape) const { return (shape == Shape::copies) == (policy_ == GroupPolicy::zero_sm); }
    Error refuse_policy() const {
        const std::string_view name = to_string(operation_.collective);
        return {ErrorCode::unsupported, fmt::format("policy zero_sm: {}: {}", name, why_not(Shape::copies)),
                std::string(name), "use GroupPolicy::automatic"};
    }
    std::uint64_t block() const {
        return is(Collective::barrier) ? 0 : operation_.count * size_of(operation_.element);
    }
    std::uint64_t others() const { return ranks_ - 1; }
    bool is(Collective collective) const { return operation_.collective == collective; }

    Candidate candidate(Shape shape) const {
        Candidate one;
        one.shape = shape;
        one.why_not = why_not(shape);
        if (!one.why_not.empty()) return one;
        one.work = work(shape);
        one.blocks = blocks(shape, one.work);
        one.us = price(shape, one.work);
        return one;
    }

    // By the figures; 0: by price.
    std::uint64_t one_shot_most() const {
        return is(Collective::all_reduce) ? figures_.one_shot_most : figures_.others_most;
    }

    // Empty where the shape can carry the operation.
    std::string why_not(Shape shape) const {
        if (!carries(shape, operation_.collective)) return not_carried(shape);
        // A copy from host memory to host memory makes the caller wait (documentation of cuMemcpyAsync).
        if (shape == Shape::copies && !facts_.full_mesh)
            return fmt::format("the arenas lie in host memory ({})", facts_.why_not);
        if (shape == Shape::copies) return too_much_for_copies();
        if (ranks_ == 1 && shape != Shape::slices && shape != Shape::pairs && !is(Collective::barrier))
            return "nothing leaves the GPU of the only rank";
        const std::uint64_t held = ArenaLayout{ranks_}.packet_payload();
        if (shape == Shape::packets) {
            if (block() > held && !is(Collective::barrier))
                return fmt::format("{} for each rank: the arena holds packets of {}", format_bytes(block()),
                                   format_bytes(held));
            if (one_shot_most() > 0 && block() > one_shot_most())
                return fmt::format("above {}, where the figures of this machine end it",
                                   format_bytes(one_shot_most()));
        }
        if (shape == Shape::packets_two_phase) {
            if (block() > held * ranks_)
                return fmt::format("slices of {}: the arena holds packets of {}",
                                   format_bytes(block() / ranks_), format_bytes(held));
            if (figures_.packets_most > 0 && block() > figures_.packets_most)
                return fmt::format("above {}, where the figures of this machine end it",
                                   format_bytes(figures_.packets_most));
        }
        if (shape == Shape::ring && ring_rate() <= figures_.link_gb_per_s)
            return "the links carry as much to all GPUs at once as to a neighbour, and it has more hops";
        if (shape == Shape::ring && ranks_ == 2 && facts_.full_mesh)
            return "of two ranks each is the other's only neighbour, and it has more hops";
        return taken_by_figures(shape);
    }

    // The figures may say up to where packets are taken, whatever they would cost.
    std::string taken_by_figures(Shape shape) const {
        const std::uint64_t held = ArenaLayout{ranks_}.packet_payload();
        if (shape != Shape::packets && carries(Shape::packets, operation_.collective) && ranks_ > 1 &&
            block() <= std::min(one_shot_most(), held) && one_shot_most() > 0)
            return fmt::format("up to {} the figures of this machine take one-shot packets",
                               format_bytes(one_shot_most()));
        if ((shape == Shape::slices || shape == Shape::ring) && carries(Shape::packets_two_phase, operation_.collective) &&
            ranks_ > 1 && block() <= std::min(figures_.packets_most, held * ranks_) &&
            figures_.packets_most > 0)
            return fmt::format("up to {} the figures of this machine take packets",
                               format_bytes(figures_.packets_most));
        return {};
    }

    std::string not_carried(Shape shape) const {
        switch (shape) {
            case Shape::ring:
                return is(Collective::barrier) ? "moves no bytes"
                                               : "every pair of ranks has a block of its own";
            case Shape::packets:
                return "what a rank sends to another is known to the two alone";
            case Shape::packets_two_phase:
                return combines(operation_.collective) ? "the result is not wanted on every rank"
                                                       : "nothing is combined, so there is no second phase";
            case Shape::slices:
                return is(Collective::barrier) ? "moves no bytes"
                                               : "every pair of ranks has a block of its own";
            case Shape::pairs:
                return is(Collective::barrier)           ? "moves no bytes"
                       : combines(operation_.collective) ? "blocks of pairs are not combined"
                                                         : "several ranks want the same bytes";
            case Shape::copies:
                return combines(operation_.collective) ? "it combines elements, which copy engines cannot do"
                                                       : "a stream does one thing after the other, so that "
                                                         "one pair would wait for another";
        }
        return "unknown";
    }

    std::string too_much_for_copies() const {
        std::uint64_t longest = block();
        if (is(Collective::all_to_all_v)) {
            const BlockLists& lists = operation_.blocks;
            if (lists.on_device)
                return "the blocks are known on the GPU only, and copies are made by the host";
            if (lists.send_counts == nullptr || lists.recv_counts == nullptr) return {};
            for (unsigned r = 0; r < ranks_; ++r)
                longest = std::max({longest, lists.send_counts[r] * size_of(operation_.element),
                                    lists.recv_counts[r] * size_of(operation_.element)});
            if (longest >= backend::most_tagged_bytes)
                return fmt::format("a block of {}: its two ends compare lengths below {}",
                                   format_bytes(longest), format_bytes(backend::most_tagged_bytes));
        }
        if (backend::copy_pieces(longest, ranks_) <= backend::most_copy_rounds) return {};
        return fmt::format("a block of {}: in pieces of {}, of which a call has {} at most",
                           format_bytes(longest), format_bytes(ArenaLayout{ranks_}.copy_lane_bytes()),
                           backend::most_copy_rounds);
    }

    Work work(Shape shape) const {
        switch (shape) {
            case Shape::packets:
                return {others() * block(),
                        block(),
                        1,
                        0,
                        true,
                        block(),
                        combines(operation_.collective) ? (1 + polling) * (1 + polling) : 1 + polling};
            case Shape::packets_two_phase:
                return {2 * divided(), block(), 2, 0, true, block() / ranks_, 1 + polling};
            case Shape::slices:
                return slices_work();
            case Shape::pairs:
                return {pairs_bytes(), block(), 2, 1, false};
            case Shape::copies:
                return copies_work();
            case Shape::ring:
                return ring_work();
        }
        return {};
    }

    // Sums go up in the type that they are accumulated in, and results down. What is only moved goes around. The rank
    // in the middle sends in both directions; of two ranks each does in one.
    Work ring_work() const {
        const std::uint64_t all = is(Collective::reduce_scatter) ? ranks_ * block() : block();
        const std::uint64_t up =
            all / size_of(operation_.element) * backend::accumulator_size_of(operation_.element);
        const int length = static_cast<int>(others());
        Work work;
        work.local = all;
        work.hops = 1 + (combines(operation_.collective) ? 2 * length : length);
        work.releases = work.hops;
        if (is(Collective::all_gather))
            work.bytes = others() * block();
        else if (is(Collective::broadcast))
            work.bytes = block();
        else if (is(Collective::reduce) && operation_.root == length)
            work.bytes = up;
        else
            work.bytes = ranks_ == 2 ? std::max(up, block()) : up + (is(Collective::reduce_scatter) ? others() * block() : block());
        return work;
    }

    double ring_rate() const {
        return figures_.ring_gb_per_s > 0 ? figures_.ring_gb_per_s : figures_.link_gb_per_s;
    }

    // The first pieces of all thread blocks take as long for each hop. Whole ones are reckoned with, whatever the size, so
    // that no ring is taken below sizes that slices are taken for.
    double ring_us(const Work& work) const {
        const int most = std::min(figures_.most_blocks, most_ring_blocks);
        const auto pieces = ArenaLayout{ranks_}.ring_piece_bytes() * static_cast<std::uint64_t>(most);
        const double first = static_cast<double>(pieces) / (ring_rate() * 1e3);
        return first * (work.hops - 1) +
               std::max(share_us(work.bytes, slices_a_block, most, figures_.block_gb_per_s),
                        static_cast<double>(work.bytes) / (ring_rate() * 1e3));
    }

    // Two hops for each piece. What comes in is copied once more within the GPU; a broadcast has two tasks
    // where it is cut.
    Work copies_work() const {
        const bool cut = is(Collective::broadcast) && cuts_broadcast_of_copies(block(), ranks_);
        const std::uint64_t largest = cut                            ? block() / others()
                                      : is(Collective::all_to_all_v) ? pairs_bytes()
                                                                     : block();
        const int tasks = cut ? 2 : 1;
        Work work;
        work.pieces = tasks * static_cast<int>(backend::copy_pieces(largest, ranks_));
        work.bytes = ranks_ == 1 ? 0 : cut ? 2 * block() : pairs_bytes();
        work.local = is(Collective::broadcast) || is(Collective::scatter) ? block() : work.bytes;
        work.hops = 2 * work.pieces;
        return work;
    }

    // block * (n - 1) / n
    std::uint64_t divided() const {
        return block() / ranks_ * others() + block() % ranks_ * others() / ranks_;
    }

    // Two barriers; bytes that are fetched come one hop later than those that are pushed.
    Work slices_work() const {
        constexpr int barriers = 2;
        constexpr int fetched = 1;
        if (!facts_.full_mesh && ranks_ > 1) return slices_through_host_memory();
        switch (operation_.collective) {
            case Collective::all_reduce:
                return {2 * divided(), block(), barriers + fetched, barriers, false};
            case Collective::all_gather:
                return {others() * block(), block(), barriers, barriers, false};
            case Collective::reduce_scatter:
                return {others() * block(), block(), barriers + fetched, barriers, false};
            default:
                break;
        }
        return {ranks_ == 1 ? 0 : block(), block(), barriers + fetched, barriers, false};
    }

    // Every rank puts what others read of it into its arena, and takes what they wrote out of it, over its own link.
    Work slices_through_host_memory() const {
        std::uint64_t bytes = block() + (block() + others() - 1) / others();
        std::uint64_t slice = block() / others();
        if (is(Collective::all_reduce)) {
            bytes = 2 * block();
            slice = block() / ranks_;
        } else if (is(Collective::all_gather) || is(Collective::reduce_scatter)) {
            bytes = (ranks_ + 1) * block();
            slice = block();
        }
        const std::uint64_t pass = ArenaLayout{ranks_}.stage_bytes() *
                                   static_cast<std::uint64_t>(std::max(figures_.most_blocks, 1));
        const int barriers = 1 + 2 * static_cast<int>(std::min<std::uint64_t>((slice + pass - 1) / pass, 1 << 20));
        return {bytes, bytes, barriers, barriers, false};
    }

    // As far as this rank knows them.
    std::uint64_t pairs_bytes() const {
        if (is(Collective::all_to_all_v)) {
            const BlockLists& lists = operation_.blocks;
            if (lists.on_device || lists.send_counts == nullptr || lists.recv_counts == nullptr) return 0;
            std::uint64_t sent = 0, received = 0;
            for (unsigned r = 0; r < ranks_; ++r) {
                sent += lists.send_counts[r];
                received += lists.recv_counts[r];
            }
            return std::max(sent, received) * size_of(operation_.element);
        }
        if (!is(Collective::send_recv)) return others() * block();
        std::uint64_t sent = 0, received = 0;
        for (const PairItem& item : operation_.pairs) (item.sends ? sent : received) += item.bytes;
        return std::max(sent, received);
    }

    int most_blocks() const {
        const int most = std::clamp(figures_.most_blocks, 1, static_cast<int>(backend::most_blocks));
        return facts_.emulated ? std::min(most, most_emulated_blocks) : most;
    }

    int blocks(Shape shape, const Work& work) const {
        if (shape == Shape::copies) return 0;
        // Derived from the bytes by whoever runs them.
        if (shape == Shape::pairs) {
            const std::uint64_t peers = std::max<std::uint64_t>(others(), 1);
            const std::uint64_t each =
                is(Collective::all_to_all_v) || is(Collective::send_recv) ? pairs_bytes() / peers : block();
            return static_cast<int>(
                std::min<std::uint64_t>(backend::pair_blocks(each, ranks_) * peers, backend::most_blocks));
        }
        if (work.packets)
            return count_of(work.each, packets_a_block, most_packet_blocks(work, most_blocks()));
        if (shape == Shape::ring)
            return count_of(work.bytes, slices_a_block, std::min(most_blocks(), most_ring_blocks));
        return count_of(std::max(work.bytes, work.local), slices_a_block, most_blocks());
    }

    static int count_of(std::uint64_t bytes, std::uint64_t unit, int most) {
        const std::uint64_t wanted = bytes / unit + (bytes % unit > 0);
        return static_cast<int>(std::clamp<std::uint64_t>(wanted, 1, static_cast<std::uint64_t>(most)));
    }

    static int most_packet_blocks(const Work& work, int most) {
        return work.hops == 1 ? std::min(most, most_one_shot_blocks) : most;
    }

    // In microseconds. Grows with the bytes: a thread block's own time counts for its first share only, and
    // again where no more blocks are to be had.
    double price(Shape shape, const Work& work) const {
        const double others_us = ranks_ == 1 ? 0 : figures_.hop_us * work.hops + release_us * work.releases;
        const double local = static_cast<double>(work.local) / (figures_.local_gb_per_s * 1e3);
        if (shape == Shape::copies) return figures_.launch_us + others_us + local + copies_us(work);
        const double moving = shape == Shape::ring ? ring_us(work)
                              : work.packets       ? packets_us(work)
                                                   : direct_us(shape, work);
        return figures_.launch_us + others_us + std::max(moving, local);
    }

    // One stream does it all: for each piece two words there and two here of every other rank, and a copy to
    // and from it.
    double copies_us(const Work& work) const {
        const double steps = ranks_ == 1 ? 1 : static_cast<double>(work.pieces) * (4.0 + 6.0 * (ranks_ - 1));
        return steps * stream_step_us + static_cast<double>(work.bytes) / (figures_.link_gb_per_s * 1e3);
    }

    // Each phase begins with a share that its blocks load, send, await and store one after the other.
    double packets_us(const Work& work) const {
        const int most = most_packet_blocks(work, std::max(figures_.most_blocks, 1));
        const double rate = figures_.packet_gb_per_s / work.slowed;
        return share_us(work.each, packets_a_block, most, figures_.block_gb_per_s * packets_part) *
                   work.hops +
               static_cast<double>(work.bytes) / (rate * 1e3);
    }

    double direct_us(Shape shape, const Work& work) const {
        const std::uint64_t unit = shape == Shape::pairs ? pairs_a_block : slices_a_block;
        // All others of two ranks are neighbours.
        const double rate = ranks_ == 2 ? std::max(ring_rate(), figures_.link_gb_per_s) : figures_.link_gb_per_s;
        return std::max(
            share_us(work.bytes, unit, std::max(figures_.most_blocks, 1), figures_.block_gb_per_s),
            static_cast<double>(work.bytes) / (rate * 1e3));
    }

    static double share_us(std::uint64_t bytes, std::uint64_t unit, int most, double gb_per_s) {
        const double share =
            std::max(static_cast<double>(std::min(bytes, unit)), static_cast<double>(bytes) / most);
        return share / (gb_per_s * 1e3);
    }

    static std::string words(const Work& work) {
        return fmt::format("{} {} between GPUs, {} {} out of or into the busiest", work.hops,
                           work.hops == 1 ? "hop" : "hops", format_bytes(work.bytes),
                           work.packets ? "in packets" : "through the links");
    }

    std::string reason(const Candidate& best, const std::vector<Candidate>& all) const {
        const std::string why = why_taken(best, all);
        if (facts_.full_mesh || ranks_ == 1) return why;
        return fmt::format("{}; the arenas lie in host memory: {}", why, facts_.why_not);
    }

    std::string why_taken(const Candidate& best, const std::vector<Candidate>& all) const {
        const auto possible = std::count_if(all.begin(), all.end(), [this](const Candidate& one) {
            return allowed(one.shape) && one.why_not.empty();
        });
        if (ranks_ == 1) return "the only rank: nothing leaves its GPU";
        if (best.shape == Shape::copies)
            return fmt::format("policy zero_sm leaves all thread blocks to others; {}, {} of up to {}",
                               words(best.work),
                               best.work.pieces == 1 ? "1 piece" : fmt::format("{} pieces", best.work.pieces),
                               format_bytes(ArenaLayout{ranks_}.copy_lane_bytes()));
        if (operation_.blocks.on_device && is(Collective::all_to_all_v))
            return "carries blocks of any size; how many bytes is known on the GPU when it runs";
        return fmt::format("{}: {}", possible > 1 ? "the quickest at this size" : "the one that can carry it",
                           words(best.work));
    }

    Refused refuse(const Candidate& one, const Candidate& best) const {
        Refused refused{std::string(name_of(one.shape)), one.why_not, {}, 0};
        if (!refused.reason.empty()) return refused;
        refused.gb_per_s = bus_rate(operation_, facts_.ranks, one.us);
        const double more = one.us - best.us;
        const std::string slower = fmt::format("{} {}: {}", format_seconds(std::abs(more) * 1e-6),
                                               more < 0 ? "quicker" : "slower", words(one.work));
        if (allowed(one.shape))
            refused.reason = slower;
        else if (one.shape == Shape::copies)
            refused.reason = fmt::format(
                "policy zero_sm alone takes them, which leaves all thread blocks to "
                "others; {}, estimated",
                slower);
        else
            refused.reason = fmt::format("policy zero_sm: it takes thread blocks; {}", slower);
        return refused;
    }

    const Operation& operation_;
    const GroupFacts& facts_;
    const GroupPolicy policy_;
    const Figures& figures_;
    const unsigned ranks_;
};

}  // namespace

Result<Choice> choose(const Operation& operation, const GroupFacts& facts, GroupPolicy policy) {
    return Chooser(operation, facts, policy).choose();
}

}  // namespace sidestep::collective
