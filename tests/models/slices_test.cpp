// Fetched slices: a kernel before writes the send buffer, the entry line says where it lies, the reader loads
// it, and the barrier lets the owner write it again. Whether that barrier needs its release is load buffering,
// which the model leaves out.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/models/weak_memory.hpp"

namespace sidestep::models {
namespace {

constexpr unsigned data = 0, entry = 1, flag = 2;

struct Case {
    const char* name;
    bool boundary_releases, reader_fences, holds;
};

// The owner's task writes 1, and after the barrier of the first task 2: the reader must see 1.
Checker checker(const Case& c) {
    Program owner{{Do::store, data, 1}};
    if (c.boundary_releases) owner.push_back({Do::fence});
    owner.push_back({Do::store, entry, 1});
    owner.push_back({Do::wait_acquire, flag, 1});
    owner.push_back({Do::store, data, 2});
    if (c.boundary_releases) owner.push_back({Do::fence});
    owner.push_back({Do::store, entry, 2});
    Program reader;
    for (unsigned task = 1; task <= 2; ++task) {
        reader.push_back({Do::wait, entry, task});
        if (c.reader_fences) reader.push_back({Do::fence});
        reader.push_back({Do::expect, data, task});
        reader.push_back({Do::store_release, flag, task});
    }
    return Checker({owner, reader}, 3);
}

TEST(SlicesModel, TheReaderTakesTheDataOfItsTask) {
    const Case cases[] = {
        {"as it should be", true, true, true},
        {"entry without an acquire", true, false, false},
        {"boundary that releases nothing", false, true, false},
    };
    for (const Case& c : cases) {
        Checker model = checker(c);
        const auto found = model.counterexample();
        EXPECT_EQ(!found, c.holds) << c.name << "\n" << found.value_or("");
        EXPECT_TRUE(!c.holds || model.ended()) << c.name;
        if (found) std::printf("%s:\n%s", c.name, found->c_str());
    }
}

}  // namespace
}  // namespace sidestep::models
