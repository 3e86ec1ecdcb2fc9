#include "transfer/spread_sources.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/try.hpp"

namespace sidestep::transfer {
namespace {

// What opens sooner is waited for: to hand a call over to another thread takes about as long.
constexpr std::chrono::microseconds usual_opening_of_memory{100};

}  // namespace

Result<bool> SpreadSources::hold(const std::vector<std::size_t>& memories, bool& held) {
    if (call_.running()) return false;
    if (const auto outcome = call_.take()) {
        SIDESTEP_CHECK(*outcome);
        for (auto& [memory, open] : std::exchange(new_, {})) {
            attached_.all[memory] = std::move(open);
            order_.push_back(memory);
        }
    }
    std::vector<std::size_t> missing;
    std::ranges::copy_if(memories, std::back_inserter(missing),
                         [this](std::size_t memory) { return attached_.all[memory].empty(); });
    if (!held) {
        // Held at once, lest those that are open already make room.
        for (const std::size_t memory : memories) ++holders_[memory];
        close_others(missing.size());
        held = order_.size() + missing.size() <= std::max(max_open, memories.size());
        if (!held) let_go(memories);
    }
    if (!held || missing.empty()) return held;
    const auto open = [this, missing = std::move(missing)]() -> Result<void> {
        closed_.clear();
        for (const std::size_t memory : missing) {
            SIDESTEP_TRY(Open opened, attach_(memory));
            new_.emplace_back(memory, std::move(opened));
        }
        return {};
    };
    call_.make(&calls_, open, usual_opening_of_memory);
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
        closed_.push_back(std::exchange(attached_.all[memory], {}));
        return true;
    });
}

}  // namespace sidestep::transfer
