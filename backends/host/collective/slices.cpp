// Shape::slices. The thread of the seat is all thread blocks of the task: it takes each step for all of them
// before the next one.
#include <algorithm>
#include <bit>

#include "backends/host/collective/rank_state.hpp"

namespace sidestep::backends::host {
namespace {

using backend::CollectiveTask;
using backend::Combine;
using backend::Slice;
using backend::Token;

constexpr std::uint64_t granule_bytes = 16;
// Combined at a time, before it is written to the targets: a source may be a target too.
constexpr std::uint64_t chunk_bytes = std::uint64_t{64} << 10;

class SliceTask {
public:
    SliceTask(RankState& state, const CollectiveTask& task)
        : state_(state), task_(task), size_(backend::size_of(task.element)), blocks_(task.blocks) {
        reduction_ = {task.element, task.combine, state.ranks, {}};
        if (state.scratch.size() < chunk_bytes) state.scratch.resize(chunk_bytes);
    }

    bool run();

private:
    // Bytes of a slice.
    struct Part {
        std::uint64_t begin = 0;
        std::uint64_t bytes = 0;
    };

    bool exchange();
    bool must_stage() const;
    bool direct();
    bool staged();
    bool staged_pass(std::uint64_t pass);
    bool barrier(std::uint64_t pass);
    bool combine_to(const char* const* sources, char* const* targets, std::uint64_t bytes,
                    const Slice& slice);

    Part share(unsigned rank, unsigned block) const;
    Part piece(unsigned rank, unsigned block, std::uint64_t pass) const;
    std::uint64_t passes(unsigned block) const;
    bool is_source(const Slice& slice, unsigned rank) const { return slice.sources >> rank & 1; }
    bool is_target(const Slice& slice, unsigned rank) const { return slice.targets >> rank & 1; }

    RankState& state_;
    const CollectiveTask& task_;
    const std::uint64_t size_;
    const unsigned blocks_;
    Reduction reduction_;
    Token sends_[backend::most_ranks];
    Token recvs_[backend::most_ranks];
};

SliceTask::Part SliceTask::share(unsigned rank, unsigned block) const {
    const auto [begin, end] =
        backend::share_of(task_.slices[rank].count, block, blocks_, granule_bytes / size_);
    return {begin * size_, (end - begin) * size_};
}

SliceTask::Part SliceTask::piece(unsigned rank, unsigned block, std::uint64_t pass) const {
    const Part whole = share(rank, block);
    const std::uint64_t stage = state_.layout.stage_bytes();
    const std::uint64_t before = std::min(whole.bytes, pass * stage);
    return {whole.begin + before, std::min(stage, whole.bytes - before)};
}

std::uint64_t SliceTask::passes(unsigned block) const {
    std::uint64_t most = 0;
    for (unsigned rank = 0; rank < state_.ranks; ++rank) most = std::max(most, share(rank, block).bytes);
    const std::uint64_t stage = state_.layout.stage_bytes();
    return (most + stage - 1) / stage;
}

bool SliceTask::exchange() {
    Line own{to_word(task_.send_token), to_word(task_.recv_token), task_.signature, 0};
    if (task_.combine == Combine::scaled_sum) own.scale = reduction_.scales[state_.me] = scale_of(task_);
    for (unsigned block = 0; block < blocks_; ++block) {
        const std::uint64_t round = ++state_.counters.round[block];
        for (unsigned i = 0; i < state_.others(); ++i) {
            char* const at = state_.arena_of(state_.other(i)) +
                             state_.layout.entry(static_cast<unsigned>(round & 1), block, state_.me);
            store_line(at, own, backend::packet_flag(round));
        }
    }
    sends_[state_.me] = task_.send_token;
    recvs_[state_.me] = task_.recv_token;
    for (unsigned block = 0; block < blocks_; ++block) {
        const std::uint64_t round = state_.counters.round[block];
        const bool well = wait_for_others(state_, task_, [&](unsigned rank) {
            const auto parity = static_cast<unsigned>(round & 1);
            Line line;
            if (!load_line(state_.arena + state_.layout.entry(parity, block, rank),
                           backend::packet_flag(round), line))
                return false;
            if (line.signature != task_.signature) state_.give_up_of_mismatch(task_, rank, line.signature);
            sends_[rank] = to_token(line.first);
            recvs_[rank] = to_token(line.second);
            reduction_.scales[rank] = task_.combine == Combine::scaled_sum ? line.scale : 0;
            return true;
        });
        if (!well) return false;
    }
    return true;
}

// Only what another rank reads or writes has to be mapped by it. Every rank comes to the same answer.
bool SliceTask::must_stage() const {
    for (unsigned owner = 0; owner < state_.ranks; ++owner) {
        const Slice& slice = task_.slices[owner];
        if (slice.count == 0) continue;
        for (unsigned rank = 0; rank < state_.ranks; ++rank) {
            if (rank == owner) continue;
            if (is_source(slice, rank) && sends_[rank].slot == Token::unreachable) return true;
            if (is_target(slice, rank) && recvs_[rank].slot == Token::unreachable) return true;
        }
    }
    return false;
}

// `sources` and `targets` by rank, null where a rank is neither.
bool SliceTask::combine_to(const char* const* sources, char* const* targets, std::uint64_t bytes,
                           const Slice& slice) {
    for (std::uint64_t at = 0; at < bytes; at += chunk_bytes) {
        if (state_.stop.aborted()) return state_.give_up(task_, backend::FaultKind::aborted, state_.me);
        const std::uint64_t these = std::min(chunk_bytes, bytes - at);
        const char* from[backend::most_ranks];
        unsigned numbers[backend::most_ranks];
        unsigned count = 0;
        for (unsigned rank = 0; rank < state_.ranks; ++rank) {
            if (!is_source(slice, rank)) continue;
            numbers[count] = rank;
            from[count++] = sources[rank] + at;
        }
        const char* result = from[0];
        if (task_.combine != Combine::none) {
            combine(reduction_, {from, count}, {numbers, count}, state_.scratch.data(), these / size_);
            result = state_.scratch.data();
        }
        for (unsigned rank = 0; rank < state_.ranks; ++rank) {
            if (is_target(slice, rank) && targets[rank] + at != result)
                std::memcpy(targets[rank] + at, result, these);
        }
    }
    return true;
}

bool SliceTask::direct() {
    const Slice& slice = task_.slices[state_.me];
    const std::uint64_t bytes = slice.count * size_;
    if (bytes == 0) return true;
    const char* sources[backend::most_ranks] = {};
    char* targets[backend::most_ranks] = {};
    for (unsigned rank = 0; rank < state_.ranks; ++rank) {
        if (is_source(slice, rank)) {
            const char* const base = rank == state_.me ? static_cast<const char*>(task_.send)
                                                       : state_.slots.base(rank, sends_[rank].slot);
            // What everybody is said to have mapped is not mapped here.
            if (base == nullptr) return state_.give_up_of_mismatch(task_, rank, task_.signature);
            sources[rank] =
                base + (rank == state_.me ? 0 : sends_[rank].offset) + slice.source_offset * size_;
        }
        if (is_target(slice, rank)) {
            char* const base = rank == state_.me ? static_cast<char*>(task_.recv)
                                                 : state_.slots.base(rank, recvs_[rank].slot);
            if (base == nullptr) return state_.give_up_of_mismatch(task_, rank, task_.signature);
            targets[rank] =
                base + (rank == state_.me ? 0 : recvs_[rank].offset) + slice.target_offset * size_;
        }
    }
    return combine_to(sources, targets, bytes, slice);
}

// Of the blocks that have work left in this pass.
bool SliceTask::barrier(std::uint64_t pass) {
    for (unsigned block = 0; block < blocks_; ++block) {
        if (pass >= std::max<std::uint64_t>(1, passes(block))) continue;
        const std::uint64_t round = ++state_.counters.round[block];
        for (unsigned i = 0; i < state_.others(); ++i) {
            store_word(state_.arena_of(state_.other(i)) + state_.layout.flags(block, state_.me), round);
        }
    }
    for (unsigned block = 0; block < blocks_; ++block) {
        if (pass >= std::max<std::uint64_t>(1, passes(block))) continue;
        const bool well = wait_for_others(state_, task_, [&](unsigned rank) {
            return load_word(state_.arena + state_.layout.flags(block, rank)) >= state_.counters.round[block];
        });
        if (!well) return false;
    }
    return true;
}

bool SliceTask::staged_pass(std::uint64_t pass) {
    const auto parity = static_cast<unsigned>(pass & 1);
    const auto& layout = state_.layout;
    const Slice& mine = task_.slices[state_.me];
    // What the owners of slices read of this rank.
    for (unsigned block = 0; block < blocks_; ++block) {
        for (unsigned owner = 0; owner < state_.ranks; ++owner) {
            const Slice& slice = task_.slices[owner];
            const Part part_of = piece(owner, block, pass);
            if (!is_source(slice, state_.me) || part_of.bytes == 0) continue;
            std::memcpy(state_.arena + layout.stage_out(parity, block, owner),
                        part(task_.send, slice.source_offset * size_ + part_of.begin, part_of.bytes),
                        part_of.bytes);
        }
    }
    if (!barrier(pass)) return false;
    for (unsigned block = 0; block < blocks_; ++block) {
        const Part part_of = piece(state_.me, block, pass);
        const char* sources[backend::most_ranks];
        char* targets[backend::most_ranks];
        for (unsigned rank = 0; rank < state_.ranks; ++rank) {
            sources[rank] = state_.arena_of(rank) + layout.stage_out(parity, block, state_.me);
            targets[rank] = state_.arena_of(rank) + layout.stage_in(parity, block, state_.me);
        }
        if (!combine_to(sources, targets, part_of.bytes, mine)) return false;
    }
    if (!barrier(pass)) return false;
    for (unsigned block = 0; block < blocks_; ++block) {
        for (unsigned owner = 0; owner < state_.ranks; ++owner) {
            const Slice& slice = task_.slices[owner];
            const Part part_of = piece(owner, block, pass);
            if (!is_target(slice, state_.me) || part_of.bytes == 0) continue;
            std::memcpy(part(task_.recv, slice.target_offset * size_ + part_of.begin, part_of.bytes),
                        state_.arena + layout.stage_in(parity, block, owner), part_of.bytes);
        }
    }
    return true;
}

bool SliceTask::staged() {
    std::uint64_t most = 0;
    for (unsigned block = 0; block < blocks_; ++block) most = std::max(most, passes(block));
    for (std::uint64_t pass = 0; pass < most; ++pass) {
        if (!staged_pass(pass)) return false;
    }
    return true;
}

bool SliceTask::run() {
    const char* const from = part(task_.send, task_.local_from, task_.local_bytes);
    char* const to = part(task_.recv, task_.local_to, task_.local_bytes);
    if (!copy_bytes(state_, task_, to, from, task_.local_bytes)) return false;
    if (!exchange()) return false;
    if (must_stage()) return staged();
    // With as many passes as the barrier of one: every block has it, whatever its share.
    return direct() && barrier(0);
}

}  // namespace

bool run_slices(RankState& state, const CollectiveTask& task) {
    return SliceTask(state, task).run();
}

}  // namespace sidestep::backends::host
