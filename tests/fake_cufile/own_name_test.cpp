// Sidestep's own library under cuFile's name is never taken for NVIDIA's: its calls would come back to the copy that makes them.
#include <gtest/gtest.h>

#include "driver/cufile.hpp"

namespace sidestep::fake_cufile {
namespace {

TEST(OwnName, IsPassedOver) {
    const auto own = driver::Cufile::load({SIDESTEP_OWN_CUFILE});
    ASSERT_FALSE(own.ok());
    EXPECT_EQ(own.error().code, ErrorCode::unsupported);
    EXPECT_NE(own.error().message.find("Sidestep's own"), std::string::npos) << own.error().to_string();
    // Loaded now, it is what its bare name means.
    const auto bare = driver::Cufile::load({"libcufile.so.0", "/no/such/libcufile.so.0"});
    ASSERT_FALSE(bare.ok());
    EXPECT_NE(bare.error().message.find("Sidestep's own"), std::string::npos) << bare.error().to_string();
    const auto next = driver::Cufile::load({SIDESTEP_OWN_CUFILE, SIDESTEP_FAKE_CUFILE});
    ASSERT_TRUE(next.ok()) << next.error().to_string();
    EXPECT_EQ((*next)->version(), 1150);
}

}  // namespace
}  // namespace sidestep::fake_cufile
