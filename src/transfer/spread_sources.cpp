#include "transfer/spread_sources.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

// What opens sooner is waited for: to hand a call over to another thread takes about as long.
constexpr std::chrono::microseconds usual_opening_of_memory{100};

}  // namespace

SpreadSources::SpreadSources(base::BlockingCalls& calls, std::size_t memories, Attach attach)
    : calls_(calls),
      attach_(std::move(attach)),
      open_(memories),
      holders_(memories),
      linked_(memories),
      fetched_(memories) {}

void SpreadSources::set(std::size_t memory, backend::Registration* linked, backend::Registration* fetched) {
    linked_[memory] = linked;
    fetched_[memory] = fetched;
}

Result<bool> SpreadSources::hold(const std::vector<std::size_t>& memories, bool& held) {
    if (call_.running()) return false;
    if (const auto outcome = call_.take()) {
        SIDESTEP_CHECK(*outcome);
        for (auto& [memory, open] : std::exchange(new_, {})) {
            set(memory, open.linked.get(), open.fetched.get());
            open_[memory] = std::move(open);
            order_.push_back(memory);
        }
    }
    std::vector<std::size_t> missing;
    std::copy_if(memories.begin(), memories.end(), std::back_inserter(missing),
                 [this](std::size_t memory) { return linked_[memory] == nullptr; });
    if (!held) {
        // Held at once, lest those that are open already make room.
        for (const std::size_t memory : memories) ++holders_[memory];
        close_others(missing.size());
        held = order_.size() + missing.size() <= std::max(max_open, memories.size());
        if (!held) let_go(memories);
    }
    if (!held || missing.empty()) return held;
    open(std::move(missing));
    return !call_.running() && hold(memories, held);
}

void SpreadSources::let_go(const std::vector<std::size_t>& memories) {
    for (const std::size_t memory : memories) --holders_[memory];
}

// Those that nobody holds, the first of them first, until so many more may be opened.
void SpreadSources::close_others(std::size_t wanted) {
    std::size_t open = order_.size();
    std::erase_if(order_, [&](std::size_t memory) {
        if (open + wanted <= max_open || holders_[memory] > 0) return false;
        --open;
        closed_.push_back(std::exchange(open_[memory], {}));
        linked_[memory] = fetched_[memory] = nullptr;
        return true;
    });
}

void SpreadSources::open(std::vector<std::size_t> memories) {
    call_.make(
        &calls_,
        [this, memories = std::move(memories)]() -> Result<void> {
            closed_.clear();
            for (const std::size_t memory : memories) {
                SIDESTEP_TRY(Open opened, attach_(memory));
                new_.emplace_back(memory, std::move(opened));
            }
            return {};
        },
        usual_opening_of_memory);
}

}  // namespace sidestep::transfer
