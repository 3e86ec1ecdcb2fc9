// Which shape carries an operation: every one that can is priced, the quickest is taken, the others say why
// not.
#include "collective/choose.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "collective/prices.hpp"
#include "collective/tasks.hpp"
#include "collective/work.hpp"
#include "protocol/pair_blocks.hpp"

namespace sidestep::collective {

using protocol::ArenaLayout;
using protocol::Shape;

namespace {

// Threads of this machine stand in for the thread blocks of emulated GPUs.
constexpr int max_emulated_blocks = 4;

// Of copies: until a thread of every rank has seen that all have come, and their streams that all have ended;
// and what a copy to one more rank takes to begin. Guesses, until they have been measured on GPUs; no choice
// depends on them.
constexpr double copies_meet_us = 12;
constexpr double copy_begins_us = 3;

constexpr std::array<Shape, 9> shapes = {Shape::packets, Shape::lamport, Shape::packets_two_phase,
                                         Shape::lines,   Shape::slices,  Shape::pushed_slices,
                                         Shape::pairs,   Shape::copies,  Shape::ring};

struct Candidate {
    Shape shape = Shape::packets;
    std::string why_not;  // empty: possible
    Work work;
    int blocks = 1;
    double us = 0;
};

class Chooser : Works {
public:
    Chooser(const Operation& operation, const GroupFacts& facts, GroupPolicy policy)
        : Works(operation, facts), prices_(figures_, ranks_), policy_(policy) {
        eager_max_ = eager_max();
    }

    Result<Choice> choose() {
        std::vector<Candidate> all;
        for (const Shape shape : shapes) all.push_back(candidate(shape));
        const Candidate* best = nullptr;
        for (const Candidate& one : all)
            if (allowed(one.shape) && one.why_not.empty() && (best == nullptr || one.us < best->us))
                best = &one;
        if (best == nullptr) return refuse_policy();
        Choice choice{best->shape, best->blocks, best->us, std::string(name_of(best->shape)), {}, {}};
        choice.eager_max = eager_max_;
        choice.pair_blocks_max = pair_blocks_max();
        choice.eager = best->shape == Shape::pairs && best->work.packets;
        choice.reason = reason(*best, all);
        for (const Candidate& one : all)
            if (&one != best) choice.refused.push_back(refuse(one, *best));
        return choice;
    }

    // As packets of all calls together.
    Choice coalesced() const {
        const Work all = work(Shape::packets);
        Choice choice{.shape = Shape::coalesced};
        choice.blocks = blocks(Shape::packets, all);
        choice.expected_us = price(Shape::packets, all);
        choice.algorithm = name_of(choice.shape);
        return choice;
    }

private:
    bool allowed(Shape shape) const { return (shape == Shape::copies) == (policy_ == GroupPolicy::zero_sm); }
    Error refuse_policy() const {
        const std::string_view name = to_string(operation_.collective);
        return {ErrorCode::unsupported, fmt::format("policy zero_sm: {}: {}", name, why_not(Shape::copies)),
                std::string(name), "use GroupPolicy::automatic"};
    }

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
    std::uint64_t one_shot_max() const {
        return is(Collective::all_reduce) ? figures_.one_shot_max : figures_.others_max;
    }

    // The largest block, of half of them each time, for which a hop less is worth the flags between the
    // bytes: not where links are slow. Of one block for each other rank, whatever the operation has.
    std::uint64_t eager_max() const {
        const std::uint64_t in_room = room() / std::max<std::uint64_t>(others(), 1) * protocol::eager_share;
        std::uint64_t max = std::min(ArenaLayout{ranks_}.eager_payload(), in_room);
        const auto dearer = [this](std::uint64_t each) {
            return price(Shape::pairs, eager_pairs(others() * each, each)) >
                   price(Shape::pairs, direct_pairs(others() * each, each));
        };
        while (max > 0 && dearer(max)) max /= 2;
        return max;
    }

    // Empty where the shape can carry the operation.
    std::string why_not(Shape shape) const {
        if (!carries(shape, operation_.collective)) return not_carried(shape);
        // A copy from host memory to host memory makes the caller wait (documentation of cuMemcpyAsync).
        if (shape == Shape::copies && !facts_.full_mesh)
            return fmt::format("the arenas lie in host memory ({})", facts_.why_not);
        if (shape == Shape::copies)
            return is(Collective::all_to_all_v) && operation_.blocks.on_device
                       ? "the blocks are known on the GPU only, and copies are made by the host"
                       : "";
        if (shape == Shape::pushed_slices) {
            if (const std::string why = not_pushed(); !why.empty()) return why;
        }
        if (ranks_ == 1 && shape != Shape::slices && shape != Shape::pairs && !is(Collective::barrier))
            return "nothing leaves the GPU of the only rank";
        const std::uint64_t held = ArenaLayout{ranks_}.packet_payload();
        if (shape == Shape::packets) {
            if (block() > held && !is(Collective::barrier))
                return fmt::format("{} for each rank: the arena holds packets of {}", format_bytes(block()),
                                   format_bytes(held));
            if (one_shot_max() > 0 && block() > one_shot_max())
                return fmt::format("above {}, where the figures of this machine end it",
                                   format_bytes(one_shot_max()));
        }
        if (shape == Shape::lamport) {
            if (const std::string why = why_no_lamport(); !why.empty()) return why;
        }
        if (shape == Shape::packets_two_phase) {
            if (block() > held * ranks_)
                return fmt::format("slices of {}: the arena holds packets of {}",
                                   format_bytes(block() / ranks_), format_bytes(held));
            if (figures_.packets_max > 0 && block() > figures_.packets_max)
                return fmt::format("above {}, where the figures of this machine end it",
                                   format_bytes(figures_.packets_max));
        }
        if (shape == Shape::lines) {
            const std::string why = why_no_lines();
            if (!why.empty()) return why;
        }
        if (shape == Shape::ring && prices_.ring_rate() <= figures_.link_gb_per_s)
            return "the links carry as much to all GPUs at once as to a neighbour, and it has more hops";
        if (shape == Shape::ring && ranks_ == 2 && facts_.full_mesh)
            return "of two ranks each is the other's only neighbour, and it has more hops";
        return taken_by_figures(shape);
    }

    std::string not_pushed() const {
        if (capped())
            return fmt::format("of {} thread blocks at most: so few fetch more than they push",
                               facts_.max_blocks);
        if (!facts_.full_mesh) return "slices are pushed anyway where the arenas lie in host memory";
        if (figures_.push_gb_per_s <= figures_.link_gb_per_s)
            return "the links carry as much where bytes are fetched, and it has one more hop";
        if (ranks_ == 2 && !is(Collective::all_reduce) && !is(Collective::reduce_scatter))
            return "between two ranks the bytes go one way alone, and are fetched as quickly";
        return {};
    }

    std::string why_no_lamport() const {
        if (!protocol::has_lamport(operation_.element))
            return fmt::format("no 32 bits of {} are free to say that nothing has come yet",
                               to_string(operation_.element));
        const std::uint64_t held = ArenaLayout{ranks_}.lamport_payload();
        if (block() > held)
            return fmt::format("{} for each rank: the arena holds {} of it", format_bytes(block()),
                               format_bytes(held));
        if (figures_.lamport_max > 0 && block() > figures_.lamport_max)
            return fmt::format("above {}, where the figures of this machine end it",
                               format_bytes(figures_.lamport_max));
        if (figures_.lamport_max > 0 && block() < figures_.lamport_min)
            return fmt::format("below {}, where the figures of this machine begin it",
                               format_bytes(figures_.lamport_min));
        return {};
    }
    std::string lamport_from() const {
        return figures_.lamport_min > 1 ? fmt::format("from {} ", format_bytes(figures_.lamport_min))
                                        : std::string();
    }
    bool figures_take_lamport() const {
        return figures_.lamport_max > 0 && carries(Shape::lamport, operation_.collective) && ranks_ > 1 &&
               why_no_lamport().empty();
    }

    std::string why_no_lines() const {
        if (facts_.wire != Wire::nvlink || !facts_.full_mesh)
            return "a line of 128 bytes arrives as a whole over NVLink only";
        if (block() > lines_held())
            return fmt::format("slices of {}: the arena holds lines of {}", format_bytes(block() / owners()),
                               format_bytes(ArenaLayout{ranks_}.lines_payload()));
        const bool reduces_all = is(Collective::all_reduce);
        const std::uint64_t max = reduces_all ? figures_.lines_max : figures_.others_lines_max;
        if (max > 0 && block() > max)
            return fmt::format("above {}, where the figures of this machine end it", format_bytes(max));
        return {};
    }
    std::uint64_t lines_held() const { return ArenaLayout{ranks_}.lines_payload() * owners(); }

    // The figures may say up to where packets and lines are taken, whatever they would cost.
    std::string taken_by_figures(Shape shape) const {
        if (figures_take_lamport())
            return shape == Shape::lamport
                       ? std::string()
                       : fmt::format("{}up to {} the figures of this machine take one-shot Lamport",
                                     lamport_from(), format_bytes(figures_.lamport_max));
        const std::uint64_t held = ArenaLayout{ranks_}.packet_payload();
        if (shape != Shape::packets && carries(Shape::packets, operation_.collective) && ranks_ > 1 &&
            block() <= std::min(one_shot_max(), held) && one_shot_max() > 0)
            return fmt::format("up to {} the figures of this machine take one-shot packets",
                               format_bytes(one_shot_max()));
        const bool large = shape == Shape::slices || shape == Shape::pushed_slices || shape == Shape::ring;
        const bool others = large || shape == Shape::lines || shape == Shape::lamport;
        if (!others || !is(Collective::all_reduce) || ranks_ == 1) return {};
        if (block() <= std::min(figures_.packets_max, held * ranks_) && figures_.packets_max > 0)
            return fmt::format("up to {} the figures of this machine take packets",
                               format_bytes(figures_.packets_max));
        if (shape != Shape::lines && figures_.lines_max > 0 && why_no_lines().empty())
            return fmt::format("up to {} the figures of this machine take lines",
                               format_bytes(figures_.lines_max));
        return {};
    }

    std::string not_carried(Shape shape) const {
        switch (shape) {
            case Shape::ring:
                return is(Collective::barrier) ? "moves no bytes"
                                               : "every pair of ranks has a block of its own";
            case Shape::packets:
                return "what a rank sends to another is known to the two alone";
            case Shape::lamport:
                return "the bytes have to arrive as they are, and it changes some NaNs into others";
            case Shape::packets_two_phase:
                return combines(operation_.collective) ? "the result is not wanted on every rank"
                                                       : "nothing is combined, so there is no second phase";
            case Shape::lines:
            case Shape::slices:
            case Shape::pushed_slices:
                return is(Collective::barrier) ? "moves no bytes"
                       : is(Collective::all_gather)
                           ? "nothing is fetched: each rank writes its own block to all"
                       : is(Collective::broadcast)
                           ? "the root copies its own block while the others fetch theirs"
                           : "every pair of ranks has a block of its own";
            case Shape::coalesced:
                return "this is one call";
            case Shape::pairs:
                return is(Collective::barrier)           ? "moves no bytes"
                       : combines(operation_.collective) ? "blocks of pairs are not combined"
                                                         : "several ranks want the same bytes";
            case Shape::copies:
                return combines(operation_.collective) ? "it combines elements, which copy engines cannot do"
                                                       : "every rank waits for all others, so that one pair "
                                                         "would wait for another";
        }
        return "unknown";
    }

    // Thread blocks that may each need a multiprocessor to themselves. They wait for others of their kind, so all of
    // them have to run at a time, beside those of another group.
    std::uint64_t room() const {
        const std::uint64_t all = facts_.multiprocessors == 0
                                      ? protocol::max_blocks
                                      : static_cast<std::uint64_t>(std::max(facts_.multiprocessors / 2, 1));
        return std::min(all, cap());
    }
    // Of which two or three share one.
    std::uint64_t pair_blocks_max() const {
        const bool few = ranks_ <= protocol::ranks_of_few_pairs;
        const std::uint64_t most = few ? protocol::max_blocks : protocol::max_pair_blocks;
        return std::min((few ? 2 : 3) * room(), capped() ? cap() : most);
    }

    // As the program wants it.
    bool capped() const {
        return facts_.max_blocks > 0 && facts_.max_blocks < static_cast<int>(protocol::max_blocks);
    }
    std::uint64_t cap() const {
        return capped() ? static_cast<std::uint64_t>(facts_.max_blocks) : protocol::max_blocks;
    }

    int max_blocks() const {
        const int max = std::clamp(figures_.max_blocks, 1, static_cast<int>(room()));
        return facts_.emulated ? std::min(max, max_emulated_blocks) : max;
    }

    int blocks(Shape shape, const Work& work) const {
        if (shape == Shape::copies) return 0;
        // The executor of the task derives it from the bytes.
        if (shape == Shape::pairs) {
            const std::uint64_t peers = std::max<std::uint64_t>(others(), 1);
            const std::uint64_t each =
                is(Collective::all_to_all_v) || is(Collective::send_recv) ? pairs_bytes() / peers : block();
            return static_cast<int>(std::min<std::uint64_t>(
                protocol::pair_blocks(each, ranks_, eager_max_, pair_blocks_max()) * peers,
                protocol::max_pair_blocks));
        }
        if (work.packets)
            return count_of(work.each,
                            work.lines     ? lines_a_block
                            : work.lamport ? lamport_a_block
                                           : packets_a_block,
                            Prices::max_packet_blocks(work, max_blocks()));
        if (shape == Shape::ring)
            return count_of(work.bytes, slices_a_block,
                            std::clamp(max_blocks() / 2, 1, max_ring_blocks));  // up, and down
        const std::uint64_t bytes = std::max(work.bytes, work.local);
        if (shape == Shape::slices && facts_.full_mesh && ranks_ > 2 && combines(operation_.collective))
            return count_of(bytes, fetched_a_block, std::min(max_fetching_blocks, max_blocks()));
        const int max = shape == Shape::pushed_slices && !facts_.emulated ? 2 * max_blocks() : max_blocks();
        return count_of(bytes, slices_a_block, max);
    }

    static int count_of(std::uint64_t bytes, std::uint64_t unit, int max) {
        const std::uint64_t wanted = bytes / unit + (bytes % unit > 0);
        return static_cast<int>(std::clamp<std::uint64_t>(wanted, 1, static_cast<std::uint64_t>(max)));
    }

    // In microseconds. Grows with the bytes: a thread block's own time counts for its first share only, and
    // again where no more blocks are to be had.
    double price(Shape shape, const Work& work) const {
        const double others_us = ranks_ == 1 ? 0 : prices_.hops_us(work) + release_us * work.releases;
        const double local = static_cast<double>(work.local) / (figures_.local_gb_per_s * 1e3);
        if (shape == Shape::copies) return figures_.launch_us + std::max(copies_us(work), local);
        const double moving = shape == Shape::ring ? prices_.ring_us(work)
                              : work.packets       ? prices_.packets_us(work)
                                                   : prices_.direct_us(shape, work);
        return figures_.launch_us + others_us + std::max(moving, local);
    }

    double copies_us(const Work& work) const {
        const double each = copies_meet_us + copy_begins_us * (ranks_ - 1);
        return each * work.tasks + static_cast<double>(work.bytes) / (figures_.link_gb_per_s * 1e3);
    }

    static std::string words(const Work& work) {
        return fmt::format("{} {} between GPUs, {} {} out of or into the busiest", work.hops,
                           work.hops == 1 ? "hop" : "hops", format_bytes(work.bytes),
                           work.lines     ? "in lines"
                           : work.lamport ? "in words that are their own flags"
                           : work.packets ? "in packets"
                                          : "through the links");
    }

    std::string reason(const Candidate& best, const std::vector<Candidate>& all) const {
        std::string why = why_taken(best, all);
        if (!facts_.full_mesh && ranks_ > 1)
            why += fmt::format("; the arenas lie in host memory: {}", facts_.why_not);
        if (!facts_.shared_gpu.empty()) why += "; " + facts_.shared_gpu;
        return why;
    }

    std::string why_taken(const Candidate& best, const std::vector<Candidate>& all) const {
        const auto possible = std::count_if(all.begin(), all.end(), [this](const Candidate& one) {
            return allowed(one.shape) && one.why_not.empty();
        });
        if (ranks_ == 1) return "the only rank: nothing leaves its GPU";
        if (best.shape == Shape::copies)
            return fmt::format(
                "policy zero_sm leaves all thread blocks to others, but for the driver's own copy of a block "
                "that stays on its GPU and is not in place; {}",
                words(best.work));
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

    const Prices prices_;
    const GroupPolicy policy_;
};

}  // namespace

Result<Choice> choose(const Operation& operation, const GroupFacts& facts, GroupPolicy policy) {
    return Chooser(operation, facts, policy).choose();
}

Choice choose_coalesced(const Operation& operation, const GroupFacts& facts) {
    return Chooser(operation, facts, GroupPolicy::automatic).coalesced();
}

}  // namespace sidestep::collective
