#include "backends/host/copy_pool.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace sidestep::backends::host {
namespace {

TEST(CopyPool, FinishesWhatIsQueuedBeforeItEnds) {
    const std::vector<char> source(9'000'001, 'x');
    std::vector<std::vector<char>> targets(20, std::vector<char>(source.size()));
    std::vector<std::shared_ptr<CopyJob>> jobs;
    {
        CopyPool pool(3, {});
        for (auto& target : targets) {
            jobs.push_back(std::make_shared<CopyJob>(target.data(), source.data(), source.size()));
            ASSERT_TRUE(pool.submit(jobs.back()).ok());
        }
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_TRUE(jobs[i]->done());
        EXPECT_EQ(targets[i], source);
    }
}

TEST(CopyPool, EndsWithoutEverHavingBeenUsed) {
    const CopyPool pool(4, {0});
}

TEST(CopyPool, AJobIsNotDoneBeforeItIsSubmitted) {
    char from = 1;
    char to = 0;
    const CopyJob job(&to, &from, 1);
    EXPECT_FALSE(job.done());
}

}  // namespace
}  // namespace sidestep::backends::host
