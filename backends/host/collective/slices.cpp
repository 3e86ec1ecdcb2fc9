// Shape::slices and Shape::pushed_slices. The thread of the seat is all thread blocks of the task: it takes
// each step for all of them before the next one.
#include <algorithm>

#include "backends/host/collective/rank_state.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Slice;
using protocol::Token;

// Combined at a time, before it is written to the targets: a source may be a target too.
constexpr std::uint64_t chunk_bytes = std::uint64_t{64} << 10;

class SliceTask : RankTask {
public:
    SliceTask(RankState& state, const CollectiveTask& task) : RankTask(state, task), blocks_(task.blocks) {
        if (state.scratch.size() < chunk_bytes) state.scratch.resize(chunk_bytes);
    }

    bool run() {
        if (!copy_local(state_, task_)) return false;
        if (!exchange_tokens()) return false;
        const bool no_source = out_of_reach(is_source, sends_);
        stages_in_ = out_of_reach(is_target, recvs_);
        if (stages_in_) blocks_ = std::min(blocks_, protocol::staging_blocks);
        if (no_source || stages_in_ || task_.shape == protocol::Shape::pushed_slices) return pushed();
        if (!fetched()) return false;
        for (unsigned block = 0; block < blocks_; ++block) say(block);
        for (unsigned block = 0; block < blocks_; ++block) {
            if (!hear(block, state_.counters.round[block])) return false;
        }
        return true;
    }

private:
    // Some bytes of a slice.
    struct Piece {
        std::uint64_t begin = 0;
        std::uint64_t bytes = 0;
    };

    bool exchange_tokens() {
        sends_[state_.me] = task_.send_token;
        recvs_[state_.me] = task_.recv_token;
        const Line own{to_word(task_.send_token), to_word(task_.recv_token), task_.signature,
                       reduction_.scales[state_.me]};
        return exchange(state_, task_, blocks_, own, [this](unsigned rank, const Line& line) {
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

    bool fetched() {
        const Slice& mine = task_.slices[state_.me];
        const std::uint64_t bytes = mine.count * size_;
        return combine_mine(
            bytes,
            [&](unsigned rank) {
                return place(sends_[rank], const_cast<void*>(task_.send), rank, mine.source_offset * size_,
                             bytes);
            },
            [&](unsigned rank) {
                return place(recvs_[rank], task_.recv, rank, mine.target_offset * size_, bytes);
            });
    }

    // Turn t pushes piece t and combines piece t - 2, for all blocks alike: a block that has fewer pieces than
    // others takes turns with nothing in them.
    bool pushed() {
        std::uint64_t all = 0;
        for (unsigned block = 0; block < blocks_; ++block)
            for (unsigned rank = 0; rank < state_.ranks; ++rank)
                all = std::max(all, share_of_slice(task_, rank, block, blocks_).pieces(longest_piece()));
        if (all == 0) return true;
        for (std::uint64_t turn = 0; turn < all + 4; ++turn) {
            for (unsigned block = 0; block < blocks_; ++block) {
                const std::uint64_t said = state_.counters.round[block];
                if (turn >= 2 && !hear(block, said)) return false;
                if (turn != 0) say(block);
            }
            push(turn);
            if (turn >= 2 && !combine_pushed(turn - 2)) return false;
            if (turn >= 4 && stages_in_) take_in(turn - 4);
        }
        return true;
    }

    // What the owners of slices combine of this rank, into their push slots.
    void push(std::uint64_t number) {
        each_piece(number, [&](unsigned block, unsigned owner, const Slice& slice, const Piece& one) {
            if (owner == state_.me || !is_source(slice, state_.me)) return;
            std::memcpy(state_.arena_of(owner) + state_.layout.push_slot(block, number, state_.me),
                        part(task_.send, slice.source_offset * size_ + one.begin, one.bytes), one.bytes);
        });
    }

    bool combine_pushed(std::uint64_t number) {
        const Slice& mine = task_.slices[state_.me];
        for (unsigned block = 0; block < blocks_; ++block) {
            const Piece of_mine = piece(state_.me, block, number);
            const auto source_of = [&](unsigned rank) {
                if (rank != state_.me) return state_.arena + state_.layout.push_slot(block, number, rank);
                return place({}, const_cast<void*>(task_.send), rank,
                             mine.source_offset * size_ + of_mine.begin, of_mine.bytes);
            };
            const auto target_of = [&](unsigned rank) {
                if (stages_in_)
                    return state_.arena_of(rank) + state_.layout.in_slot(block, number, state_.me);
                return place(recvs_[rank], task_.recv, rank, mine.target_offset * size_ + of_mine.begin,
                             of_mine.bytes);
            };
            if (!combine_mine(of_mine.bytes, source_of, target_of)) return false;
        }
        return true;
    }

    // From the own in slots to where the pieces belong.
    void take_in(std::uint64_t number) {
        each_piece(number, [&](unsigned block, unsigned owner, const Slice& slice, const Piece& one) {
            if (!is_target(slice, state_.me)) return;
            std::memcpy(part(task_.recv, slice.target_offset * size_ + one.begin, one.bytes),
                        state_.arena + state_.layout.in_slot(block, number, owner), one.bytes);
        });
    }

    // Of every slice, for every block that has some of it.
    template <typename Work>
    void each_piece(std::uint64_t number, Work work) const {
        for (unsigned block = 0; block < blocks_; ++block)
            for (unsigned owner = 0; owner < state_.ranks; ++owner)
                if (const Piece one = piece(owner, block, number); one.bytes > 0)
                    work(block, owner, task_.slices[owner], one);
    }

    // So many bytes from `offset` on in a buffer of the rank.
    char* place(Token token, void* own, unsigned rank, std::uint64_t offset, std::uint64_t bytes) const {
        if (rank == state_.me) return static_cast<char*>(own) + offset;
        return state_.slots.find(rank, token.slot, token.offset + offset, bytes);
    }

    // Everything before it is seen by who has heard it.
    void say(unsigned block) {
        const std::uint64_t round = ++state_.counters.round[block];
        for (unsigned i = 0; i < state_.others(); ++i)
            store_word(state_.arena_of(state_.other(i)) + state_.layout.flags(block, state_.me), round);
    }

    bool hear(unsigned block, std::uint64_t round) {
        return wait_for_others(state_, task_, [&](unsigned rank) {
            return load_word(state_.arena + state_.layout.flags(block, rank)) >= round;
        });
    }

    // So many bytes of this rank's slice: source_of(rank) and target_of(rank) tell where, null for what everybody is said to
    // have mapped and is not mapped here.
    template <typename Source, typename Target>
    bool combine_mine(std::uint64_t bytes, Source source_of, Target target_of) {
        const Slice& mine = task_.slices[state_.me];
        const char* sources[protocol::max_ranks];
        unsigned numbers[protocol::max_ranks];
        unsigned count = 0;
        char* targets[protocol::max_ranks] = {};
        for (unsigned rank = 0; rank < state_.ranks && bytes > 0; ++rank) {
            if (is_source(mine, rank)) {
                numbers[count] = rank;
                sources[count] = source_of(rank);
                if (sources[count++] == nullptr)
                    return state_.give_up_of_mismatch(task_, rank, task_.signature);
            }
            if (is_target(mine, rank)) {
                targets[rank] = target_of(rank);
                if (targets[rank] == nullptr) return state_.give_up_of_mismatch(task_, rank, task_.signature);
            }
        }
        for (std::uint64_t at = 0; at < bytes; at += chunk_bytes) {
            if (state_.stop.aborted()) return state_.give_up(task_, protocol::FaultKind::aborted, state_.me);
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

    Piece piece(unsigned rank, unsigned block, std::uint64_t number) const {
        const Part part = share_of_slice(task_, rank, block, blocks_).piece(number, longest_piece());
        return {part.begin * size_, part.count * size_};
    }

    std::uint64_t longest_piece() const { return state_.layout.push_piece_bytes() / size_; }
    static bool is_source(const Slice& slice, unsigned rank) { return slice.sources >> rank & 1; }
    static bool is_target(const Slice& slice, unsigned rank) { return slice.targets >> rank & 1; }

    unsigned blocks_;  // that have a share
    bool stages_in_ = false;
    Token sends_[protocol::max_ranks];
    Token recvs_[protocol::max_ranks];
};

}  // namespace

bool run_slices(RankState& state, const CollectiveTask& task) {
    return SliceTask(state, task).run();
}

}  // namespace sidestep::backends::host
