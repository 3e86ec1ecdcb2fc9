// What groups of several processes compute: every operation, in place and out of place, on any alignment.
#include "tests/multiprocess/collective_groups.hpp"

namespace sidestep::multiprocess {
namespace {

// Several times on the same memory, so that it is mapped by all at some time where that is needed.
TEST_F(Groups, EveryOperationInPlaceAndOffEveryBoundary) {
    join(4, long_timeout);
    for (const char* what : {"1 2 0", "5 2 0", "2003 2 0", "2003 2 1", "60007 3 0", "60007 3 4", "60007 2 7"})
        expect_all(fmt::format("others {}", what), "ok");
    expect_all("leave", "ok");
    expect_no_entries();
}

TEST_F(Groups, EveryOperationOfTwoLargeOnes) {
    join(2, long_timeout);
    expect_all("others 400009 3 0", "ok");
    expect_all("others 400009 1 12", "ok");
}

// On every rank, every time, and wherever the memory begins.
TEST_F(Groups, FloatsHaveTheSameBits) {
    join(4, long_timeout);
    for (const int count : {3, 1009, many_floats}) {
        const std::string first = tell(fmt::format("floats {} 0", count))[0];
        EXPECT_TRUE(first.starts_with("ok ")) << first;
        for (const int offset : {0, 0, 8, 1}) expect_all(fmt::format("floats {} {}", count, offset), first);
    }
}

}  // namespace
}  // namespace sidestep::multiprocess
