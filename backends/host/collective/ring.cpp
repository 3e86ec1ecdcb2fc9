// Shape::ring. Every thread block's messages up, and down, are a flow of their own.
#include <algorithm>
#include <vector>

#include "backends/host/collective/rank_state.hpp"
#include "protocol/ring_path.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::Combine;
using protocol::ring_slots;
using protocol::Slice;

enum class Way { up, down, around };

// The messages of one thread block in one direction, in order.
struct RingFlow {
    Way way = Way::up;
    unsigned block = 0;
    std::uint64_t first_received = 0;  // counters when the task began
    std::uint64_t first_sent = 0;
    unsigned slice = 0;
    std::uint64_t piece = 0;
    unsigned distance = 0;
    unsigned peer = 0;  // whom it waits for
    Wait wait;
};

class RingTask : RankTask {
public:
    explicit RingTask(RankState& state)
        : RankTask(state), piece_elements_(protocol::ring_piece_elements(task_, state.ranks)) {
        scratch_.resize(piece_elements_ * size_);
    }

    bool run() {
        if (!copy_local()) return false;
        if (!exchange(state_, task_.blocks, {0, 0, task_.signature, 0}, [](unsigned, const Line&) {}))
            return false;
        for (unsigned block = 0; block < task_.blocks; ++block) {
            add(task_.combine == Combine::none ? Way::around : Way::up, block);
            if (task_.combine != Combine::none && !last()) add(Way::down, block);
        }
        return move_in_turns(state_, flows_, [this](RingFlow& flow) { return step(flow); });
    }

private:
    void add(Way way, unsigned block) {
        RingFlow flow;
        flow.way = way;
        flow.block = block;
        flow.peer = from_of(flow);
        flow.first_received = state_.counters.received[block][flow.peer];
        flow.first_sent = state_.counters.sent[block][to_of(flow)];
        flows_.push_back(flow);
    }

    std::uint64_t pieces_of(const RingFlow& flow, unsigned slice) const {
        return share(slice, flow.block, task_.blocks).pieces(piece_elements_);
    }

    std::uint64_t max_pieces(const RingFlow& flow) const {
        std::uint64_t max = 0;
        for (unsigned slice = 0; slice < state_.ranks; ++slice) max = std::max(max, pieces_of(flow, slice));
        return max;
    }

    // Whether the message that the flow stands at comes by here.
    bool concerns(const RingFlow& flow) const {
        const Slice& slice = task_.slices[flow.slice];
        if (flow.piece >= pieces_of(flow, flow.slice)) return false;
        if (flow.way == Way::up) return true;
        if (flow.way == Way::down) return protocol::ring_descends(slice, state_.me + 1);
        if (protocol::ring_distance(slice, state_.me, state_.ranks) != flow.distance) return false;
        const unsigned before = (state_.me + state_.ranks - 1) % state_.ranks;
        if (flow.distance > 0) return protocol::ring_goes_on(slice, before, state_.ranks);
        return wants(slice) || protocol::ring_goes_on(slice, state_.me, state_.ranks);
    }

    // The place behind this one, whatever is there; false: there is none.
    bool next(RingFlow& flow) const {
        if (flow.way != Way::around) {
            if (++flow.piece < pieces_of(flow, flow.slice)) return true;
            flow.piece = 0;
            return ++flow.slice < state_.ranks;
        }
        if (++flow.slice < state_.ranks) return true;
        flow.slice = 0;
        if (++flow.distance < state_.ranks) return true;
        flow.distance = 0;
        return ++flow.piece < max_pieces(flow);
    }

    bool takes(const RingFlow& flow) const {
        if (flow.way == Way::up) return state_.me > 0;
        return flow.way == Way::down || flow.distance > 0;
    }

    bool gives(const RingFlow& flow) const {
        const Slice& slice = task_.slices[flow.slice];
        if (flow.way == Way::around) return protocol::ring_goes_on(slice, state_.me, state_.ranks);
        if (flow.way == Way::up && !last()) return true;
        return protocol::ring_descends(slice, state_.me);
    }

    unsigned from_of(const RingFlow& flow) const {
        if (flow.way == Way::down) return state_.me + 1;
        return (state_.me + state_.ranks - 1) % state_.ranks;
    }

    bool sends_down(const RingFlow& flow) const {
        return flow.way == Way::down || (flow.way == Way::up && last());
    }
    unsigned to_of(const RingFlow& flow) const {
        return (sends_down(flow) ? state_.me + state_.ranks - 1 : state_.me + 1) % state_.ranks;
    }

    Step step(RingFlow& flow) {
        while (!concerns(flow))
            if (!next(flow)) return Step::ended;
        const unsigned from = from_of(flow), to = to_of(flow);
        std::uint64_t& received = state_.counters.received[flow.block][from];
        std::uint64_t& sent = state_.counters.sent[flow.block][to];
        const bool takes_one = takes(flow), gives_one = gives(flow);
        if (takes_one && load_word(state_.arena + state_.layout.arrived(flow.block, from)) < received + 1) {
            flow.peer = from;
            return Step::waits;
        }
        const std::uint64_t ahead = sent - flow.first_sent;
        if (gives_one && ahead >= ring_slots &&
            load_word(state_.arena + state_.layout.credit(flow.block, to)) < sent + 1 - ring_slots) {
            flow.peer = to;
            return Step::waits;
        }
        const char* const in = takes_one
                                   ? state_.arena + state_.layout.ring_slot(flow.way == Way::down, flow.block,
                                                                            received - flow.first_received)
                                   : nullptr;
        char* const out =
            gives_one ? state_.arena_of(to) + state_.layout.ring_slot(sends_down(flow), flow.block, ahead)
                      : nullptr;
        carry(flow, in, out);
        if (gives_one) store_word(state_.arena_of(to) + state_.layout.arrived(flow.block, state_.me), ++sent);
        if (takes_one)
            store_word(state_.arena_of(from) + state_.layout.credit(flow.block, state_.me), ++received);
        return next(flow) ? Step::moved : Step::ended;
    }

    // `in`: what came, null where it begins here; `out`: the neighbour's slot, null where it ends here.
    void carry(const RingFlow& flow, const char* in, char* out) {
        const Slice& slice = task_.slices[flow.slice];
        const Part part_here = share(flow.slice, flow.block, task_.blocks).piece(flow.piece, piece_elements_);
        const std::uint64_t bytes = part_here.count * size_;
        const char* const own = part(task_.send, (slice.source_offset + part_here.begin) * size_, bytes);
        char* const recv =
            wants(slice) ? part(task_.recv, (slice.target_offset + part_here.begin) * size_, bytes) : nullptr;
        if (flow.way == Way::up && !last()) {
            combine(reduction_, {&own, 1}, {&state_.me, 1}, out, part_here.count, in, false);
            return;
        }
        if (flow.way == Way::up) {
            combine(reduction_, {&own, 1}, {&state_.me, 1}, scratch_.data(), part_here.count, in);
            in = scratch_.data();
        } else if (in == nullptr) {
            in = own;
        }
        if (out != nullptr) std::memcpy(out, in, bytes);
        if (recv != nullptr && recv != in) std::memcpy(recv, in, bytes);
    }

    bool wants(const Slice& slice) const { return slice.targets >> state_.me & 1; }
    bool last() const { return state_.me + 1 == state_.ranks; }

    const std::uint64_t piece_elements_;
    std::vector<char> scratch_;
    std::vector<RingFlow> flows_;
};

}  // namespace

bool run_ring(RankState& state) {
    return RingTask(state).run();
}

}  // namespace sidestep::backends::host
