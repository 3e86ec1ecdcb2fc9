// Shape::copies, as its list of steps has it: what copy engines and streams do on a real GPU, this thread
// does here.
#include "backend/copy_steps.hpp"
#include "backends/host/collective/rank_state.hpp"

namespace sidestep::backends::host {
namespace {

using backend::CollectiveTask;
using backend::CopyStep;
using backend::FaultKind;

char* word_at(char* arena, const backend::ArenaLayout& layout, unsigned row, unsigned rank) {
    return arena + layout.copy_words(row) + rank * sizeof(std::uint64_t);
}

bool await(RankState& state, const CollectiveTask& task, const CopyStep& step) {
    const std::uint64_t tag = backend::tag_of(task, state.me, step.peer, !backend::is_arrived(step.row));
    const char* const word = word_at(state.arena, state.layout, step.row, step.peer);
    Wait wait;
    for (;;) {
        const std::uint64_t found = load_word(word);
        if (found == tag) return true;
        if (found != 0) {
            state.stop.give_up(backend::fault_of_word(task, state.me, step.peer, step.row, found));
            return false;
        }
        const FaultKind why = wait.pause(state.stop);
        if (why != FaultKind::none) return state.give_up(task, why, step.peer);
    }
}

void clear(RankState& state, const CopyStep& step) {
    for (unsigned i = 0; i < step.words; ++i)
        store_word(word_at(state.arena, state.layout, step.row, step.peer + i), 0);
}

bool carry_out(RankState& state, const CollectiveTask& task, const CopyStep& step) {
    const char* const send = static_cast<const char*>(task.send) + step.at;
    char* const recv = static_cast<char*>(task.recv);
    switch (step.kind) {
        case CopyStep::Kind::begin:
        case CopyStep::Kind::end:
            return true;
        case CopyStep::Kind::raise:
            store_word(word_at(state.arena_of(step.peer), state.layout, step.row, state.me),
                       backend::tag_of(task, state.me, step.peer, backend::is_arrived(step.row)));
            return true;
        case CopyStep::Kind::await:
            return await(state, task, step);
        case CopyStep::Kind::clear:
            clear(state, step);
            return true;
        case CopyStep::Kind::push:
            return copy_bytes(state, task, state.arena_of(step.peer) + step.stage, send, step.bytes);
        case CopyStep::Kind::pull:
            return copy_bytes(state, task, recv + step.at, state.arena + step.stage, step.bytes);
        case CopyStep::Kind::local:
            return copy_bytes(state, task, recv + step.stage, send, step.bytes);
    }
    return true;
}

}  // namespace

bool run_copies(RankState& state, const CollectiveTask& task) {
    for (const CopyStep& step : backend::copy_steps(task, state.me, state.ranks))
        if (!carry_out(state, task, step)) return false;
    return true;
}

}  // namespace sidestep::backends::host
