// Result carries a value or an Error, and the macros that pass an Error on.
#include <array>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sidestep/memory_kind.hpp>
#include <sidestep/result.hpp>

#include "base/try.hpp"

namespace sidestep {
namespace {

const Error refused{ErrorCode::permission_denied, "cannot open x", "file:x", "ask its owner"};

TEST(Error, PrintsThePartsThatAreThere) {
    EXPECT_EQ(refused.to_string(), "cannot open x (file:x). ask its owner");
    EXPECT_EQ((Error{ErrorCode::internal, "m", "", ""}).to_string(), "m");
    EXPECT_EQ((Error{ErrorCode::internal, "m", "w", ""}).to_string(), "m (w)");
    EXPECT_EQ((Error{ErrorCode::internal, "m", "", "h"}).to_string(), "m. h");
}

// The numbers are the C ABI's: a change here breaks programs that are already built.
TEST(ErrorCode, NumbersAndNamesAreFixed) {
    constexpr std::array codes = {
        ErrorCode::invalid_argument, ErrorCode::not_found,        ErrorCode::permission_denied,
        ErrorCode::unsupported,      ErrorCode::path_unavailable, ErrorCode::out_of_memory,
        ErrorCode::no_space,         ErrorCode::end_of_file,      ErrorCode::io_error,
        ErrorCode::mismatch,         ErrorCode::cancelled,        ErrorCode::timed_out,
        ErrorCode::device_error,     ErrorCode::internal};
    std::set<std::string> names;
    for (std::size_t i = 0; i < codes.size(); ++i) {
        EXPECT_EQ(static_cast<int>(codes[i]), static_cast<int>(i) + 1);
        names.insert(to_string(codes[i]));
    }
    EXPECT_EQ(names.size(), codes.size());
    EXPECT_EQ(names.count("unknown"), 0u);
    EXPECT_STREQ(to_string(ErrorCode::io_error), "io_error");
    EXPECT_STREQ(to_string(static_cast<ErrorCode>(0)), "unknown");
}

TEST(Result, HoldsAValue) {
    Result<std::string> result(std::string("abc"));
    EXPECT_TRUE(result.ok());
    EXPECT_TRUE(static_cast<bool>(result));
    EXPECT_EQ(*result, "abc");
    EXPECT_EQ(result->size(), 3u);
    result.value() += "d";
    EXPECT_EQ(std::as_const(result).value(), "abcd");
}

TEST(Result, HoldsAnError) {
    const Result<int> result(refused);
    EXPECT_FALSE(result.ok());
    EXPECT_FALSE(static_cast<bool>(result));
    EXPECT_EQ(result.error().code, ErrorCode::permission_denied);
    EXPECT_EQ(result.error().hint, "ask its owner");
}

TEST(Result, GivesAwayAMoveOnlyValue) {
    Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
    const std::unique_ptr<int> taken = *std::move(result);
    ASSERT_NE(taken, nullptr);
    EXPECT_EQ(*taken, 7);
}

TEST(Result, CanHoldAnErrorAsItsValue) {
    // in_place construction keeps the two alternatives apart even when their types are near.
    const Result<std::string> text(std::string("m"));
    const Result<std::string> failure(Error{ErrorCode::internal, "m", {}, {}});
    EXPECT_TRUE(text.ok());
    EXPECT_FALSE(failure.ok());
}

TEST(ResultOfVoid, IsSuccessUntilAnErrorIsGiven) {
    const Result<void> fine;
    EXPECT_TRUE(fine.ok());
    const Result<void> failed(refused);
    EXPECT_FALSE(failed.ok());
    EXPECT_FALSE(static_cast<bool>(failed));
    EXPECT_EQ(failed.error().message, "cannot open x");
}

TEST(ResultDeathTest, ReadingTheValueOfAFailureEndsTheProcessWithItsText) {
    // GTEST_FLAG_SET came after the GoogleTest of Ubuntu 22.04.
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    const Result<int> result(refused);
    EXPECT_DEATH(static_cast<void>(*result), "value of a failed result was read: cannot open x");
}

Result<int> half(int number) {
    if (number % 2 != 0) return Error{ErrorCode::invalid_argument, "odd", {}, {}};
    return number / 2;
}

Result<void> must_be_small(int number) {
    if (number > 10) return Error{ErrorCode::no_space, "large", {}, {}};
    return {};
}

Result<int> quarter_of_small(int number, int& steps) {
    SIDESTEP_CHECK(must_be_small(number));
    ++steps;
    SIDESTEP_TRY(const int once, half(number));
    ++steps;
    SIDESTEP_TRY(const int twice, half(once));
    ++steps;
    return twice;
}

TEST(Try, PassesTheValueOnOrReturnsTheError) {
    int steps = 0;
    const auto good = quarter_of_small(8, steps);
    ASSERT_TRUE(good.ok());
    EXPECT_EQ(*good, 2);
    EXPECT_EQ(steps, 3);

    steps = 0;
    EXPECT_EQ(quarter_of_small(6, steps).error().message, "odd");
    EXPECT_EQ(steps, 2);

    steps = 0;
    EXPECT_EQ(quarter_of_small(12, steps).error().code, ErrorCode::no_space);
    EXPECT_EQ(steps, 0);
}

Result<int> taken_apart(Result<std::unique_ptr<int>> pointer) {
    SIDESTEP_TRY(const auto owned, std::move(pointer));
    return *owned;
}

TEST(Try, MovesTheValueOut) {
    EXPECT_EQ(*taken_apart(std::make_unique<int>(5)), 5);
    EXPECT_FALSE(taken_apart(refused).ok());
}

TEST(MemoryKind, EveryKindHasItsName) {
    std::set<std::string_view> names;
    for (int kind = 0; kind <= static_cast<int>(MemoryKind::storage); ++kind)
        names.insert(to_string(static_cast<MemoryKind>(kind)));
    EXPECT_EQ(names.size(), 8u);
    EXPECT_EQ(names.count("unknown"), 0u);
    EXPECT_EQ(to_string(MemoryKind::vmm), "vmm");
}

}  // namespace
}  // namespace sidestep
