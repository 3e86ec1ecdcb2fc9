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
// Of one-shot packets; more of them only take longer to begin.
constexpr int most_one_shot_blocks = 32;
// Threads of this machine stand in for the thread blocks of emulated GPUs.
constexpr int most_emulated_blocks = 4;

// Of an operation on a stream that moves no bytes to speak of: of a word, or what a copy takes to begin. A
// guess, until copies have been measured on GPUs; no choice depends on it.
constexpr double stream_step_us = 1.5;

constexpr std::array<Shape, 5> shapes = {Shape::packets, Shape::packets_two_phase, Shape::slices,
                                         Shape::pairs, Shape::copies};

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
        if (best == nullptr) return refuse_policy(all.back());
        Choice choice{best->shape, best->blocks, best->us, std::string(name_of(best->shape)), {}, {}};
        choice.reason = reason(*best, all);
        for (const Candidate& one : all)
            if (&one != best) choice.refused.push_back(refuse(one, *best));
        choice.refused.push_back(
            {"ring", "not built; with peer access between every pair it has more hops", {}, 0});
        return choice;
    }

private:
    bool allowed(Shape shape) const { return (shape == Shape::copies) == (policy_ == GroupPolicy::zero_sm); }
    Error refuse_policy(const Candidate& copies) const {
        const std::string_view name = to_string(operation_.collective);
        return {ErrorCode::unsupported, fmt::format("policy zero_sm: {}: {}", name, copies.why_not),
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
        return taken_by_figures(shape);
    }

    // The figures may say up to where packets are taken, whatever they would cost.
    std::string taken_by_figures(Shape shape) const {
        const std::uint64_t held = ArenaLayout{ranks_}.packet_payload();
        if (shape != Shape::packets && carries(Shape::packets, operation_.collective) && ranks_ > 1 &&
            block() <= std::min(one_shot_most(), held) && one_shot_most() > 0)
            return fmt::format("up to {} the figures of this machine take one-shot packets",
                               format_bytes(one_shot_most()));
        if (shape == Shape::slices && carries(Shape::packets_two_phase, operation_.collective) &&
            ranks_ > 1 && block() <= std::min(figures_.packets_most, held * ranks_) &&
            figures_.packets_most > 0)
            return fmt::format("up to {} the figures of this machine take packets",
                               format_bytes(figures_.packets_most));
        return {};
    }

    std::string not_carried(Shape shape) const {
        switch (shape) {
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
        }
        return {};
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
        const double moving = work.packets ? packets_us(work) : direct_us(shape, work);
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
        return std::max(
            share_us(work.bytes, unit, std::max(figures_.most_blocks, 1), figures_.block_gb_per_s),
            static_cast<double>(work.bytes) / (figures_.link_gb_per_s * 1e3));
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

Error refuse_without_mesh(const Operation& operation, const GroupFacts& facts) {
    return {ErrorCode::path_unavailable,
            fmt::format("{}: collectives need peer access between every pair of GPUs, and the ring for "
                        "machines without it is "
                        "not built",
                        facts.why_not.empty() ? "two GPUs have no peer access" : facts.why_not),
            std::string(to_string(operation.collective)),
            "take GPUs that reach each other: `sidestep topo` shows which do"};
}

}  // namespace

Result<Choice> choose(const Operation& operation, const GroupFacts& facts, GroupPolicy policy) {
    if (!facts.full_mesh && facts.ranks > 1) return refuse_without_mesh(operation, facts);
    return Chooser(operation, facts, policy).choose();
}

}  // namespace sidestep::collective
