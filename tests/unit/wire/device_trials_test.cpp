// What came of trials of a card with a GPU's memory: how long it holds.
#include <gtest/gtest.h>

#include "backend/device_trial.hpp"

namespace sidestep::backend {
namespace {

constexpr auto holds_for = DeviceTrials::silence_holds_for;

struct Tried {
    const char* what;
    Result<void> outcome;
    DeviceTrials::Clock::duration later;
    int trials;  // made by two registrations, the second so much later
};

TEST(DeviceTrials, AnOutcomeHolds) {
    const Error silent{ErrorCode::timed_out, "nothing came back", "card"};
    const Error full{ErrorCode::out_of_memory, "no room", "card"};
    const Error other{ErrorCode::mismatch, "other bytes came", "card"};
    for (const Tried& tried : {Tried{"bytes came unhurt", {}, 1000 * holds_for, 1},
                               Tried{"other bytes came", other, 1000 * holds_for, 1},
                               Tried{"nothing answered, soon", silent, holds_for / 2, 1},
                               Tried{"nothing answered, after a while", silent, holds_for, 2},
                               Tried{"the card had no room", full, {}, 2}}) {
        DeviceTrials trials;
        int made = 0;
        const auto attempt = [&] {
            ++made;
            return tried.outcome;
        };
        const DeviceTrials::Clock::time_point begin{std::chrono::hours(1)};
        for (const auto now : {begin, begin + tried.later}) {
            const auto found = trials.once(0, Place::gpu(1), "nobody", attempt, now);
            EXPECT_EQ(found.ok(), tried.outcome.ok()) << tried.what;
            EXPECT_EQ(found.ok() ? "" : found.error().message,
                      tried.outcome.ok() ? "" : tried.outcome.error().message);
        }
        EXPECT_EQ(made, tried.trials) << tried.what;
        // Another GPU, and another way to this one, are other questions.
        EXPECT_EQ(trials.once(0, Place::gpu(2), "nobody", attempt, begin).ok(), tried.outcome.ok());
        EXPECT_EQ(trials.once(1, Place::gpu(1), "nobody", attempt, begin).ok(), tried.outcome.ok());
        EXPECT_EQ(made, tried.trials + 2) << tried.what;
    }
}

}  // namespace
}  // namespace sidestep::backend
