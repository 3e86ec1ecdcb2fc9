// Shape::copies: what copy engines do on a real GPU, this thread does here.
#include "backends/host/collective/rank_state.hpp"
#include "protocol/copy_exchange.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::CopyExchange;
using protocol::FaultKind;

// A copy has ended when the call returns. Lines lie in the arenas.
class OwnCopies final : public protocol::CopyEngine {
public:
    explicit OwnCopies(RankState& state) : state_(state) {}

    bool near(unsigned) override { return false; }
    Result<bool> ready(unsigned) override { return true; }
    Result<void> copy(unsigned, char* to, const char* from, std::uint64_t bytes) override {
        if (state_.copy(to, from, bytes)) return {};
        return Error{ErrorCode::cancelled, "aborted", "emulated seat"};
    }
    Result<std::uint64_t> mark(unsigned) override { return 1; }
    bool ended(unsigned, std::uint64_t) override { return true; }
    char* find(unsigned rank, unsigned slot, std::uint64_t offset, std::uint64_t bytes) override {
        return state_.slots.find(rank, slot, offset, bytes);
    }
    protocol::CopyRow& row(unsigned rank) override {
        return *reinterpret_cast<protocol::CopyRow*>(state_.arena_of(rank) + state_.layout.copy_row());
    }

private:
    RankState& state_;
};

}  // namespace

bool run_copies(RankState& state) {
    OwnCopies engine(state);
    CopyExchange exchange(*state.task, state.me, state.ranks, state.counters.copies, engine);
    Wait wait;
    for (;;) {
        const auto now = exchange.step();
        if (now && *now == CopyExchange::State::ended) return true;
        if (now && *now == CopyExchange::State::moved) {
            wait.restart();
            continue;
        }
        const bool differs = now && *now == CopyExchange::State::differs;
        const FaultKind why = !now ? FaultKind::aborted : differs ? FaultKind::none : wait.pause(state.stop);
        if (why == FaultKind::none && !differs) continue;
        exchange.withdraw();
        if (state.stop.gave_up()) return false;
        if (!differs) return state.give_up({why, now ? exchange.missing() : state.me});
        state.stop.give_up(exchange.fault());
        return false;
    }
}

}  // namespace sidestep::backends::host
