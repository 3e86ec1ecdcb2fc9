// Shape::slices and Shape::pushed_slices. The thread of the seat is all thread blocks of the task: it takes
// each step for all of them before the next one.
#include <algorithm>

#include "backends/host/collective/rank_state.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::Combine;
using protocol::Slice;
using protocol::Token;

// Combined at a time, before it is written to the targets: a source may be a target too.
constexpr std::uint64_t chunk_bytes = std::uint64_t{64} << 10;

class SliceTask : RankTask {
public:
    explicit SliceTask(RankState& state) : RankTask(state), blocks_(task_.blocks) {
        if (state.scratch.size() < chunk_bytes) state.scratch.resize(chunk_bytes);
    }

    bool run() {
        if (!copy_local()) return false;
        if (!exchange_tokens()) return false;
        const bool no_source = out_of_reach(is_source, sends_);
        stages_in_ = out_of_reach(is_target, recvs_);
        if (stages_in_) blocks_ = std::min(blocks_, protocol::staging_blocks);
        pushed_ = no_source || stages_in_ || task_.shape == protocol::Shape::pushed_slices;
        if (pushed_) return take_turns();
        if (!combine_mine({0, task_.slices[state_.me].count * size_}, 0, 0)) return false;
        for (unsigned block = 0; block < blocks_; ++block) say(block);
        for (unsigned block = 0; block < blocks_; ++block) {
            if (!hear(block, state_.counters.round[block])) return false;
        }
        return true;
    }

private:
    bool exchange_tokens() {
        sends_[state_.me] = task_.send_token;
        recvs_[state_.me] = task_.recv_token;
        const Line own{to_word(task_.send_token), to_word(task_.recv_token), task_.signature,
                       reduction_.scales[state_.me]};
        return exchange(state_, blocks_, own, [this](unsigned rank, const Line& line) {
            sends_[rank] = to_token(line.first);
            recvs_[rank] = to_token(line.second);
            reduction_.scales[rank] = line.scale;
        });
    }

    // Only what another rank reads or writes has to be mapped by it. Every rank comes to the same answer.
    bool out_of_reach(bool (*uses)(const Slice&, unsigned), const Token* tokens) const {
        for (unsigned owner = 0; owner < state_.ranks; ++owner) {
            const Slice& slice = task_.slices[owner];
            for (unsigned rank = 0; rank < state_.ranks && slice.count > 0; ++rank) {
                if (rank != owner && uses(slice, rank) && tokens[rank].slot == Token::unreachable)
                    return true;
            }
        }
        return false;
    }

    // Turn t pushes piece t and combines piece t - 2, for all blocks alike: a block that has fewer pieces than
    // others takes turns with nothing in them.
    bool take_turns() {
        std::uint64_t all = 0;
        for (unsigned block = 0; block < blocks_; ++block)
            for (unsigned rank = 0; rank < state_.ranks; ++rank)
                all = std::max(all, share(rank, block, blocks_).pieces(longest_piece()));
        if (all == 0) return true;
        for (std::uint64_t turn = 0; turn < all + 4; ++turn) {
            for (unsigned block = 0; block < blocks_; ++block) {
                const std::uint64_t said = state_.counters.round[block];
                if (turn >= 2 && !hear(block, said)) return false;
                if (turn != 0) say(block);
            }
            push(turn);
            for (unsigned block = 0; block < blocks_ && turn >= 2; ++block)
                if (!combine_mine(piece(state_.me, block, turn - 2), block, turn - 2)) return false;
            if (turn >= 4 && stages_in_) take_in(turn - 4);
        }
        return true;
    }

    // What the owners of slices combine of this rank, into their push slots.
    void push(std::uint64_t number) {
        each_piece(number, [&](unsigned block, unsigned owner, const Slice& slice, const Part& one) {
            if (owner == state_.me || !is_source(slice, state_.me)) return;
            std::memcpy(state_.arena_of(owner) + state_.layout.push_slot(block, number, state_.me),
                        part(task_.send, slice.source_offset * size_ + one.begin, one.count), one.count);
        });
    }

    // From the own in slots to where the pieces belong.
    void take_in(std::uint64_t number) {
        each_piece(number, [&](unsigned block, unsigned owner, const Slice& slice, const Part& one) {
            if (!is_target(slice, state_.me)) return;
            std::memcpy(part(task_.recv, slice.target_offset * size_ + one.begin, one.count),
                        state_.arena + state_.layout.in_slot(block, number, owner), one.count);
        });
    }

    // Of every slice, for every block that has some of it.
    template <typename Work>
    void each_piece(std::uint64_t number, Work work) const {
        for (unsigned block = 0; block < blocks_; ++block)
            for (unsigned owner = 0; owner < state_.ranks; ++owner)
                if (const Part one = piece(owner, block, number); one.count > 0)
                    work(block, owner, task_.slices[owner], one);
    }

    // Everything before it is seen by who has heard it.
    void say(unsigned block) {
        const std::uint64_t round = ++state_.counters.round[block];
        for (unsigned i = 0; i < state_.others(); ++i)
            store_word(state_.arena_of(state_.other(i)) + state_.layout.flags(block, state_.me), round);
    }

    bool hear(unsigned block, std::uint64_t round) {
        return wait_for_others(state_, [&](unsigned rank) {
            return load_word(state_.arena + state_.layout.flags(block, rank)) >= round;
        });
    }

    // Where a rank has these bytes of this rank's slice, and where it gets them; null for what everybody is said to have
    // mapped and is not mapped here.
    char* source_of(unsigned rank, const Part& one, unsigned block, std::uint64_t number) const {
        const std::uint64_t offset = task_.slices[state_.me].source_offset * size_ + one.begin;
        if (rank == state_.me) return static_cast<char*>(const_cast<void*>(task_.send)) + offset;
        if (pushed_) return state_.arena + state_.layout.push_slot(block, number, rank);
        return state_.slots.find(rank, sends_[rank].slot, sends_[rank].offset + offset, one.count);
    }
    char* target_of(unsigned rank, const Part& one, unsigned block, std::uint64_t number) const {
        if (stages_in_) return state_.arena_of(rank) + state_.layout.in_slot(block, number, state_.me);
        const std::uint64_t offset = task_.slices[state_.me].target_offset * size_ + one.begin;
        if (rank == state_.me) return static_cast<char*>(task_.recv) + offset;
        return state_.slots.find(rank, recvs_[rank].slot, recvs_[rank].offset + offset, one.count);
    }

    // Of this rank's slice. `number`: of the piece, where pieces are pushed.
    bool combine_mine(const Part& one, unsigned block, std::uint64_t number) {
        const Slice& mine = task_.slices[state_.me];
        const std::uint64_t bytes = one.count;
        const char* sources[protocol::max_ranks];
        unsigned numbers[protocol::max_ranks];
        unsigned count = 0;
        char* targets[protocol::max_ranks] = {};
        for (unsigned rank = 0; rank < state_.ranks && bytes > 0; ++rank) {
            const bool source = is_source(mine, rank), target = is_target(mine, rank);
            if (source) {
                numbers[count] = rank;
                sources[count++] = source_of(rank, one, block, number);
            }
            if (target) targets[rank] = target_of(rank, one, block, number);
            if ((source && sources[count - 1] == nullptr) || (target && targets[rank] == nullptr))
                return state_.give_up_of_mismatch(rank, task_.signature);
        }
        for (std::uint64_t at = 0; at < bytes; at += chunk_bytes) {
            if (state_.stop.aborted()) return state_.give_up({protocol::FaultKind::aborted, state_.me});
            const std::uint64_t these = std::min(chunk_bytes, bytes - at);
            const char* result = sources[0];
            if (task_.combine != Combine::none) {
                combine(reduction_, {sources, count}, {numbers, count}, state_.scratch.data(), these / size_);
                result = state_.scratch.data();
            }
            for (char* const target : targets)
                if (target != nullptr && target + at != result) std::memcpy(target + at, result, these);
            for (unsigned source = 0; source < count; ++source) sources[source] += these;
        }
        return true;
    }

    // In bytes.
    Part piece(unsigned rank, unsigned block, std::uint64_t number) const {
        const Part part = share(rank, block, blocks_).piece(number, longest_piece());
        return {part.begin * size_, part.count * size_};
    }

    std::uint64_t longest_piece() const { return state_.layout.push_piece_bytes() / size_; }
    static bool is_source(const Slice& slice, unsigned rank) { return slice.sources >> rank & 1; }
    static bool is_target(const Slice& slice, unsigned rank) { return slice.targets >> rank & 1; }

    unsigned blocks_;  // that have a share
    bool pushed_ = false;
    bool stages_in_ = false;
    Token sends_[protocol::max_ranks];
    Token recvs_[protocol::max_ranks];
};

}  // namespace

bool run_slices(RankState& state) {
    return SliceTask(state).run();
}

}  // namespace sidestep::backends::host
