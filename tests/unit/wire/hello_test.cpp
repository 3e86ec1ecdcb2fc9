#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "wire/messages.hpp"

namespace sidestep::wire {
namespace {

TEST(Hello, SaysWhatBytesGetOnTheirWay) {
    Hello hello;
    hello.engines = {"tcp"};
    for (const auto& [checked, encrypted] :
         {std::pair{false, false}, std::pair{false, true}, std::pair{true, false}, std::pair{true, true}}) {
        hello.checked = checked;
        hello.encrypted = encrypted;
        const auto came = parse_hello(to_body(hello));
        ASSERT_TRUE(came.ok()) << came.error().to_string();
        EXPECT_EQ(came->checked, checked);
        EXPECT_EQ(came->encrypted, encrypted);
    }
    // One byte of flags differs between the last two; what a later version may ask for is not taken for this one's.
    hello.encrypted = true;
    std::string body = to_body(hello);
    hello.encrypted = false;
    const std::string without = to_body(hello);
    const auto at = std::mismatch(body.begin(), body.end(), without.begin()).first;
    ASSERT_NE(at, body.end());
    *at = 4;
    EXPECT_FALSE(parse_hello(body).ok());
}

}  // namespace
}  // namespace sidestep::wire
