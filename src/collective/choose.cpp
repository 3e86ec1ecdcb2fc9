// Which shape carries an operation: every one that can is priced, the quickest is taken, the others say why
// not.
#include "collective/choose.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

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

constexpr std::array<Shape, 4> shapes = {Shape::packets, Shape::packets_two_phase, Shape::slices,
                                         Shape::pairs};

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
    Chooser(const Operation& operation, const GroupFacts& facts)
        : operation_(operation),
          facts_(facts),
          figures_(facts.figures),
          ranks_(static_cast<unsigned>(facts.ranks)) {}

    Choice choose() {
        std::vector<Candidate> all;
        for (const Shape shape : shapes) all.push_back(candidate(shape));
        const Candidate* best = nullptr;
        for (const Candidate& one : all)
            if (one.why_not.empty() && (best == nullptr || one.us < best->us)) best = &one;
        Choice choice{best->shape, best->blocks, best->us, std::string(name_of(best->shape)), {}, {}};
        choice.reason = reason(*best, all);
        for (const Candidate& one : all)
            if (&one != best) choice.refused.push_back(refuse(one, *best));
        refuse_what_is_not_built(choice.refused);
        return choice;
    }

private:
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
        }
        return "unknown";
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
        }
        return {};
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
        const double moving = work.packets ? packets_us(work) : direct_us(shape, work);
        return figures_.launch_us + others_us + std::max(moving, local);
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
        const auto possible =
            std::count_if(all.begin(), all.end(), [](const Candidate& one) { return one.why_not.empty(); });
        if (ranks_ == 1) return "the only rank: nothing leaves its GPU";
        if (operation_.blocks.on_device && is(Collective::all_to_all_v))
            return "carries blocks of any size; how many bytes is known on the GPU when it runs";
        return fmt::format("{}: {}", possible > 1 ? "the quickest at this size" : "the one that can carry it",
                           words(best.work));
    }

    Refused refuse(const Candidate& one, const Candidate& best) const {
        Refused refused{std::string(name_of(one.shape)), one.why_not, {}, 0};
        if (!refused.reason.empty()) return refused;
        refused.reason =
            fmt::format("{} slower: {}", format_seconds((one.us - best.us) * 1e-6), words(one.work));
        refused.gb_per_s = bus_rate(operation_, facts_.ranks, one.us);
        return refused;
    }

    static void refuse_what_is_not_built(std::vector<Refused>& refused) {
        refused.push_back({"ring", "not built; with peer access between every pair it has more hops", {}, 0});
        refused.push_back({"copy engines",
                           "not built for collectives: they would leave all thread blocks to others",
                           {},
                           0});
    }

    const Operation& operation_;
    const GroupFacts& facts_;
    const Figures& figures_;
    const unsigned ranks_;
};

Error refuse_zero_sm(const Operation& operation) {
    const std::string_view name = to_string(operation.collective);
    std::string message =
        combines(operation.collective)
            ? fmt::format("policy zero_sm: {} combines elements, which copy engines cannot do", name)
            : fmt::format("policy zero_sm: {} by copy engines alone is not built", name);
    return {ErrorCode::unsupported, std::move(message), std::string(name), "use GroupPolicy::automatic"};
}

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
    if (policy == GroupPolicy::zero_sm) return refuse_zero_sm(operation);
    if (!facts.full_mesh && facts.ranks > 1) return refuse_without_mesh(operation, facts);
    return Chooser(operation, facts).choose();
}

}  // namespace sidestep::collective
