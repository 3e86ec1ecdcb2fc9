#include "collective/stall_watch.hpp"

#include <gtest/gtest.h>

namespace sidestep::collective {
namespace {

using Say = StallWatch::Say;

TEST(StallWatch, TellsAtDoublingTimesAndOnceOfTheEnd) {
    struct Look {
        double waiting_s;
        Say says;
    };
    const Look looks[] =
        {
            {10, Say::nothing},   {29.9, Say::nothing}, {0.1, Say::nothing},
            {30, Say::waits},     {45, Say::nothing},   {60.5, Say::waits},
            {61.5, Say::nothing}, {61, Say::nothing},  // the rank that was waited for has come, another one is waited for since then
            {62, Say::nothing},   {0.2, Say::goes_on},  {0.1, Say::nothing},
            {31, Say::waits},     {0, Say::goes_on},
        };
    StallWatch watch;
    for (const Look& look : looks) {
        EXPECT_EQ(watch.look(look.waiting_s), look.says) << look.waiting_s;
        if (look.says == Say::goes_on) {
            EXPECT_EQ(watch.take_waited_s(), look.waiting_s == 0.2 ? 62 : 31);
        }
    }
}

}  // namespace
}  // namespace sidestep::collective
