#include "backends/host/copy_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <vector>

namespace sidestep::backends::host {
namespace {

TEST(CopyPool, FinishesWhatIsQueuedBeforeItEnds) {
    struct Owner final : backend::PieceOwner {
        ~Owner() override { close(); }
        void ended() override { ++times; }
        std::atomic<std::size_t> times{0};
    } owner;
    const std::vector<char> source(9'000'001, 'x');
    std::vector<std::vector<char>> targets(20, std::vector<char>(source.size()));
    std::deque<backend::Flight> flights;
    {
        CopyPool pool(3, {});
        for (auto& target : targets) {
            const CopySpan whole{target.data(), source.data(), source.size()};
            ASSERT_TRUE(pool.copy({whole}, source.size(), flights.emplace_back(owner)).ok());
        }
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
        EXPECT_TRUE(flights[i].over() && flights[i].result());
        EXPECT_EQ(targets[i], source);
    }
    EXPECT_EQ(owner.times, targets.size()) << "each end is told once";
}

TEST(CopyPool, EndsWithoutEverHavingBeenUsed) {
    const CopyPool pool(4, {0});
}

}  // namespace
}  // namespace sidestep::backends::host
