// Shape::pairs. Every direction of every thread block of every pair is a flow of its own.
#include <algorithm>
#include <vector>

#include "backends/host/collective/rank_state.hpp"
#include "protocol/pair_blocks.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::Block;
using protocol::FaultKind;
using protocol::Token;

// What a flow moves in one step, into memory that is mapped.
constexpr std::uint64_t step_bytes = std::uint64_t{256} << 10;

// One direction of one block of a pair.
struct PairFlow {
    unsigned peer = 0;
    unsigned block = 0;
    bool sends = false;
    std::uint64_t total = 0;  // of the pair
    std::uint64_t begin = 0;  // of this block's share
    std::uint64_t bytes = 0;
    char* recv = nullptr;  // the share
    const char* send = nullptr;
    bool eager = false;
    bool opened = false;  // the line of the receiver is known; eager: pushed
    bool staged = false;
    char* target = nullptr;
    std::uint64_t moved = 0;
    std::uint64_t pieces = 0;  // carried through the arena so far
    bool announced = false;    // eager: the header is known
    Wait wait{};
};

class PairTask : RankTask {
public:
    explicit PairTask(RankState& state) : RankTask(state) {
        const bool listed = task_.device_send_counts != nullptr;
        for (unsigned rank = 0; rank < state.ranks; ++rank) {
            to_[rank] = task_.to[rank];
            from_[rank] = task_.from[rank];
            if (!listed) continue;
            to_[rank] = {task_.device_send_offsets[rank] * size_, task_.device_send_counts[rank] * size_};
            from_[rank] = {task_.device_recv_offsets[rank] * size_, task_.device_recv_counts[rank] * size_};
        }
    }

    bool run() {
        if (!copy_own()) return false;
        for (unsigned i = 0; i < state_.others(); ++i) {
            const unsigned peer = state_.other(i);
            add_flows(peer, from_[peer], false);
            add_flows(peer, to_[peer], true);
        }
        // All of them before anything can go wrong: from these lines the others see that a task is another one.
        for (PairFlow& flow : flows_) {
            if (!flow.sends) post(flow);
        }
        return move_in_turns(state_, flows_, [this](PairFlow& flow) { return step(flow); });
    }

private:
    // Where rank `peer` finds the first byte of its block here.
    Token token_for(unsigned peer) const {
        if (task_.device_send_counts == nullptr) return task_.from_tokens[peer];
        Token token = task_.recv_token;
        if (token.slot != Token::unreachable) token.offset += from_[peer].offset;
        return token;
    }

    // A block may be sent from the very bytes that it is received into: piece k goes out before piece k comes in.
    // What is pushed into mapped memory is not staged at the other end either, so that nothing of the kind is
    // asked for there. What is eager has gone out as a whole, or comes in last.
    bool may_copy_out(const PairFlow& flow) const {
        for (const PairFlow& other : flows_) {
            if (!other.sends || other.peer != flow.peer || other.block != flow.block) continue;
            if (flow.eager && !other.eager) return false;
            return other.opened && (!other.staged || other.pieces > flow.pieces);
        }
        return true;
    }

    bool copy_own() {
        const Block& to = to_[state_.me];
        const Block& from = from_[state_.me];
        if (to.bytes != from.bytes) return give_up_of_size(state_.me, to.bytes, from.bytes);
        return state_.copy(part(task_.recv, from.offset, from.bytes), part(task_.send, to.offset, to.bytes),
                           to.bytes);
    }

    void add_flows(unsigned peer, const Block& block, bool sends) {
        if (block.bytes == 0) return;
        const unsigned blocks =
            protocol::pair_blocks(block.bytes, state_.ranks, task_.eager_max, task_.pair_blocks_max);
        for (unsigned number = 0; number < blocks; ++number) {
            const auto [begin, end] = protocol::share_of(block.bytes, number, blocks, granule_bytes);
            PairFlow flow{peer, number, sends, block.bytes, begin, end - begin};
            flow.eager = protocol::is_eager(block.bytes, state_.ranks, task_.eager_max);
            flow.send = part(task_.send, block.offset + begin, sends ? flow.bytes : 0);
            flow.recv = part(task_.recv, block.offset + begin, sends ? 0 : flow.bytes);
            flows_.push_back(flow);
        }
    }

    Step step(PairFlow& flow) {
        if (flow.eager) return flow.sends ? send_eager(flow) : receive_eager(flow);
        if (!flow.sends) return receive_step(flow);
        if (!flow.opened) return open_send(flow);
        return flow.staged ? push_staged(flow) : push_direct(flow);
    }

    // What the receiver's line says, once it is there: whether it runs the same and expects as many bytes.
    Step hear(const PairFlow& flow, Line& line) {
        const std::uint64_t number = state_.counters.sent[flow.block][flow.peer] + 1;
        const char* const post = state_.arena + state_.layout.post(number, flow.block, flow.peer);
        if (!load_line(post, protocol::packet_flag(number), line)) return Step::waits;
        if (!runs_the_same(flow, line.signature)) return Step::gave_up;
        if (line.second == flow.total) return Step::moved;
        give_up_of_size(flow.peer, flow.total, line.second);
        return Step::gave_up;
    }

    Step open_send(PairFlow& flow) {
        Line line;
        if (const Step heard = hear(flow, line); heard != Step::moved) return heard;
        const Token token = to_token(line.first);
        flow.staged = token.slot == Token::unreachable;
        if (!flow.staged) {
            flow.target = state_.slots.find(flow.peer, token.slot, token.offset + flow.begin, flow.bytes);
            // Memory that all ranks are said to have mapped is not mapped here.
            if (flow.target == nullptr) {
                state_.give_up_of_mismatch(flow.peer, line.signature);
                return Step::gave_up;
            }
        }
        flow.opened = true;
        return Step::moved;
    }

    // Ends when the receiver's line has come, so that the next message but one finds its slot read.
    Step send_eager(PairFlow& flow) {
        std::uint64_t& sent = state_.counters.sent[flow.block][flow.peer];
        if (!flow.opened) {
            const PacketFormat format{protocol::packet_flag(sent + 1)};
            char* to = state_.arena_of(flow.peer) + state_.layout.eager(sent + 1, flow.block, state_.me);
            store_packet(to, task_.signature | flow.total << 32, format.flag);
            to += protocol::ArenaLayout::eager_header;
            for (std::uint64_t at = 0; at < flow.bytes; at += 8, to += packet_bytes)
                format.store(to, flow.send + at, std::min<std::uint64_t>(8, flow.bytes - at));
            flow.opened = true;
            return Step::moved;
        }
        Line line;
        if (const Step heard = hear(flow, line); heard != Step::moved) return heard;
        sent += 1;
        return Step::ended;
    }

    Step receive_eager(PairFlow& flow) {
        if (!may_copy_out(flow)) return Step::waits;
        std::uint64_t& received = state_.counters.received[flow.block][flow.peer];
        const std::uint32_t flag = protocol::packet_flag(received + 1);
        const char* const slot = state_.arena + state_.layout.eager(received + 1, flow.block, flow.peer);
        std::uint64_t header = 0;
        if (!flow.announced && load_packet(slot, flag, header)) {
            if (!runs_the_same(flow, header & 0xffffffffu)) return Step::gave_up;
            // Of another length nothing is received: the sender has heard what is expected, and says so.
            flow.announced = header >> 32 == flow.total;
        }
        const std::uint64_t before = flow.moved;
        while (flow.moved < flow.bytes) {
            const char* const packet =
                slot + protocol::ArenaLayout::eager_header + flow.moved / 8 * packet_bytes;
            const std::uint64_t bytes = std::min<std::uint64_t>(8, flow.bytes - flow.moved);
            if (!PacketFormat{flag}.load(packet, flow.recv + flow.moved, bytes))
                return flow.moved > before ? Step::moved : Step::waits;
            flow.moved += bytes;
        }
        if (!flow.announced) return flow.moved > before ? Step::moved : Step::waits;
        received += 1;
        if (protocol::wipes_eager(received)) wipe(flow, received);
        return Step::ended;
    }

    // The slot of message `number`: flags of packets wrap around.
    void wipe(const PairFlow& flow, std::uint64_t number) const {
        if (flow.block >= state_.layout.eager_blocks()) return;
        char* const slot = state_.arena + state_.layout.eager(number, flow.block, flow.peer);
        for (std::uint64_t at = 0; at < protocol::ArenaLayout::eager_slot; at += 8)
            store_word(slot + at, 0, Order::relaxed);
    }

    bool runs_the_same(const PairFlow& flow, std::uint64_t signature) {
        return signature == task_.signature || state_.give_up_of_mismatch(flow.peer, signature);
    }

    Step push_direct(PairFlow& flow) {
        const std::uint64_t bytes = std::min(step_bytes, flow.bytes - flow.moved);
        if (bytes != 0) std::memcpy(flow.target + flow.moved, flow.send + flow.moved, bytes);
        flow.moved += bytes;
        if (flow.moved < flow.bytes) return Step::moved;
        const std::uint64_t sent = ++state_.counters.sent[flow.block][flow.peer];
        store_word(state_.arena_of(flow.peer) + state_.layout.arrived(flow.block, state_.me), sent);
        return Step::ended;
    }

    Step push_staged(PairFlow& flow) {
        std::uint64_t& sent = state_.counters.sent[flow.block][flow.peer];
        if (flow.pieces >= 2) {
            const std::uint64_t credit =
                load_word(state_.arena + state_.layout.credit(flow.block, flow.peer));
            if (credit < sent + flow.pieces - 1) return Step::waits;
        }
        char* const arena = state_.arena_of(flow.peer);
        const auto parity = static_cast<unsigned>(flow.pieces & 1);
        const std::uint64_t bytes = std::min(state_.layout.stage_bytes(), flow.bytes - flow.moved);
        char* const stage = arena + state_.layout.stage_in(parity, flow.block, state_.me);
        if (bytes != 0) std::memcpy(stage, flow.send + flow.moved, bytes);
        flow.moved += bytes;
        flow.pieces += 1;
        store_word(arena + state_.layout.arrived(flow.block, state_.me), sent + flow.pieces);
        if (flow.pieces < pieces_of(flow)) return Step::moved;
        sent += flow.pieces;
        return Step::ended;
    }

    Step receive_step(PairFlow& flow) {
        std::uint64_t& received = state_.counters.received[flow.block][flow.peer];
        const std::uint64_t arrived = load_word(state_.arena + state_.layout.arrived(flow.block, flow.peer));
        if (arrived < received + flow.pieces + 1) return Step::waits;
        if (!flow.staged) {
            received += 1;
            return Step::ended;
        }
        if (!may_copy_out(flow)) return Step::waits;
        const std::uint64_t bytes = std::min(state_.layout.stage_bytes(), flow.bytes - flow.moved);
        const auto parity = static_cast<unsigned>(flow.pieces & 1);
        const char* const stage = state_.arena + state_.layout.stage_in(parity, flow.block, flow.peer);
        if (bytes != 0) std::memcpy(flow.recv + flow.moved, stage, bytes);
        flow.moved += bytes;
        flow.pieces += 1;
        store_word(state_.arena_of(flow.peer) + state_.layout.credit(flow.block, state_.me),
                   received + flow.pieces);
        if (flow.pieces < pieces_of(flow)) return Step::moved;
        received += flow.pieces;
        return Step::ended;
    }

    // The receiver's first word: where to, and how much.
    void post(PairFlow& flow) {
        const Token token = token_for(flow.peer);
        flow.staged = token.slot == Token::unreachable;
        const Line line{to_word(token), flow.total, task_.signature, 0};
        const std::uint64_t number = state_.counters.received[flow.block][flow.peer] + 1;
        // No slot is written to before the sender has this line.
        if (!flow.eager && protocol::wipes_eager(number)) {
            wipe(flow, number);
            wipe(flow, number + 1);
        }
        store_line(state_.arena_of(flow.peer) + state_.layout.post(number, flow.block, state_.me), line,
                   protocol::packet_flag(number));
    }

    bool give_up_of_size(unsigned peer, std::uint64_t own, std::uint64_t other) {
        return state_.give_up({.kind = FaultKind::size_mismatch,
                               .peer = peer,
                               .peer_signature = task_.signature,
                               .bytes = own,
                               .peer_bytes = other});
    }

    std::uint64_t pieces_of(const PairFlow& flow) const {
        const std::uint64_t stage = state_.layout.stage_bytes();
        return std::max<std::uint64_t>(1, (flow.bytes + stage - 1) / stage);
    }

    Block to_[protocol::max_ranks];
    Block from_[protocol::max_ranks];
    std::vector<PairFlow> flows_;
};

}  // namespace

bool run_pairs(RankState& state) {
    return PairTask(state).run();
}

}  // namespace sidestep::backends::host
