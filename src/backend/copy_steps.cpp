#include "backend/copy_steps.hpp"

#include <algorithm>

namespace sidestep::backend {
namespace {

class Steps {
public:
    Steps(const CollectiveTask& task, unsigned rank, unsigned ranks)
        : task_(task), layout_{ranks}, me_(rank), ranks_(ranks) {}

    std::vector<CopyStep> make() {
        if (task_.to[me_].bytes != 0)
            add({.kind = Kind::local,
                 .at = task_.to[me_].offset,
                 .stage = task_.from[me_].offset,
                 .bytes = task_.to[me_].bytes});
        const std::uint64_t rounds = ranks_ < 2 ? 0 : std::min(this->rounds(), most_copy_rounds);
        for (std::uint64_t k = 0; k < rounds; ++k) round(k);
        if (rounds > 0) add({.kind = Kind::end});
        return std::move(steps_);
    }

private:
    using Kind = CopyStep::Kind;

    void add(const CopyStep& step) { steps_.push_back(step); }
    // Beginning behind this rank, so that not all turn to one at the same time.
    unsigned other(unsigned i) const { return (me_ + 1 + i) % ranks_; }
    bool sends(unsigned peer, std::uint64_t k) const { return k < copy_pieces(task_.to[peer].bytes, ranks_); }
    bool receives(unsigned peer, std::uint64_t k) const {
        return k < copy_pieces(task_.from[peer].bytes, ranks_);
    }

    std::uint64_t rounds() const {
        std::uint64_t most = 0;
        for (unsigned i = 0; i + 1 < ranks_; ++i) {
            const std::uint64_t bytes = std::max(task_.to[other(i)].bytes, task_.from[other(i)].bytes);
            most = std::max(most, copy_pieces(bytes, ranks_));
        }
        return most;
    }

    void round(std::uint64_t k) {
        const auto parity = static_cast<std::uint8_t>(k & 1);
        add(begin(row_ready + parity, k));
        if (k == 0) raise_ready(0);
        raise_ready(k + 1);
        wait(row_ready + parity, [&](unsigned peer) { return sends(peer, k); });
        for (unsigned i = 0; i + 1 < ranks_; ++i)
            if (sends(other(i), k)) move(Kind::push, other(i), task_.to[other(i)], k);
        add(begin(row_arrived + parity, k));
        for (unsigned i = 0; i + 1 < ranks_; ++i)
            if (sends(other(i), k)) raise(row_arrived + parity, other(i));
        wait(row_arrived + parity, [&](unsigned peer) { return receives(peer, k); });
        for (unsigned i = 0; i + 1 < ranks_; ++i)
            if (receives(other(i), k)) move(Kind::pull, other(i), task_.from[other(i)], k);
    }

    static CopyStep begin(unsigned row, std::uint64_t k) {
        return {.kind = Kind::begin,
                .row = static_cast<std::uint8_t>(row),
                .round = static_cast<std::uint32_t>(k)};
    }

    void raise(unsigned row, unsigned peer) {
        add({.kind = Kind::raise,
             .row = static_cast<std::uint8_t>(row),
             .peer = static_cast<std::uint8_t>(peer)});
    }

    void raise_ready(std::uint64_t k) {
        for (unsigned i = 0; i + 1 < ranks_; ++i)
            if (k < most_copy_rounds && receives(other(i), k)) raise(row_ready + (k & 1), other(i));
    }

    // All words are waited for before the first is cleared: who looks at the row sees which are still
    // missing.
    template <typename Wanted>
    void wait(unsigned row, Wanted wanted) {
        unsigned awaited = 0;
        for (unsigned i = 0; i + 1 < ranks_; ++i) {
            if (!wanted(other(i))) continue;
            awaited |= 1u << other(i);
            add({.kind = Kind::await,
                 .row = static_cast<std::uint8_t>(row),
                 .peer = static_cast<std::uint8_t>(other(i))});
        }
        clear(row, awaited);
    }

    // In runs of neighbours. This rank's own word is never raised; those of others may be for a later task.
    void clear(unsigned row, unsigned awaited) {
        const unsigned mine = 1u << me_;
        for (unsigned first = 0; first < ranks_;) {
            unsigned end = first;
            while (end < ranks_ && ((awaited | mine) >> end & 1) != 0) ++end;
            const unsigned run = ((1u << end) - 1) & ~((1u << first) - 1);
            if ((run & awaited) != 0)
                add({.kind = Kind::clear,
                     .row = static_cast<std::uint8_t>(row),
                     .peer = static_cast<std::uint8_t>(first),
                     .words = static_cast<std::uint8_t>(end - first)});
            first = end + 1;
        }
    }

    void move(Kind kind, unsigned peer, const Block& block, std::uint64_t k) {
        const std::uint64_t lane = layout_.copy_lane_bytes();
        const std::uint64_t done = k * lane;
        if (block.bytes <= done) return;
        const auto parity = static_cast<unsigned>(k & 1);
        add({.kind = kind,
             .peer = static_cast<std::uint8_t>(peer),
             .at = block.offset + done,
             .stage = kind == Kind::push ? layout_.copy_lane(parity, peer, me_)
                                         : layout_.copy_lane(parity, me_, peer),
             .bytes = std::min(lane, block.bytes - done)});
    }

    const CollectiveTask& task_;
    const ArenaLayout layout_;
    const unsigned me_;
    const unsigned ranks_;
    std::vector<CopyStep> steps_;
};

}  // namespace

std::uint64_t tag_of(const CollectiveTask& task, unsigned rank, unsigned peer, bool sends) {
    return sends ? copy_tag(task.signature, task.to[peer].bytes, rank, peer)
                 : copy_tag(task.signature, task.from[peer].bytes, peer, rank);
}

std::vector<CopyStep> copy_steps(const CollectiveTask& task, unsigned rank, unsigned ranks) {
    return Steps(task, rank, ranks).make();
}

FaultRecord fault_of_word(const CollectiveTask& task, unsigned rank, unsigned peer, std::uint8_t row,
                          std::uint64_t word) {
    const bool sends = !is_arrived(row);
    constexpr std::uint64_t below = (std::uint64_t{1} << 62) - 1;
    std::uint64_t value = word & below;
    if ((sends ? rank : peer) > (sends ? peer : rank)) value ^= below;
    FaultRecord record;
    record.peer = peer;
    record.number = task.number;
    record.signature = task.signature;
    record.peer_signature = static_cast<std::uint32_t>(value >> 30);
    record.kind = FaultKind::mismatch;
    if (record.peer_signature != task.signature) return record;
    record.kind = FaultKind::size_mismatch;
    record.bytes = sends ? task.to[peer].bytes : task.from[peer].bytes;
    record.peer_bytes = value & (most_tagged_bytes - 1);
    return record;
}

}  // namespace sidestep::backend
