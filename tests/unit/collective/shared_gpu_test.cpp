#include "collective/shared_gpu.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace sidestep::collective {
namespace {

Hello rank(std::uint32_t number, std::uint32_t process, std::string gpu) {
    Hello hello;
    hello.rank = number;
    hello.ranks = 4;
    hello.process = process;
    hello.program = {process, 1};
    hello.place = "gpu:0";
    hello.gpu = std::move(gpu);
    return hello;
}

std::string among(const std::vector<Hello>& hellos) {
    std::vector<const Hello*> ranks;
    for (const Hello& hello : hellos) ranks.push_back(&hello);
    return shared_gpu(ranks);
}

TEST(SharedGpu, NamesTheFirstTwoProcessesOnOneGpu) {
    const std::string said = among({rank(0, 11, "a"), rank(1, 12, "b"), rank(2, 13, "b"), rank(3, 14, "a")});
    EXPECT_TRUE(said.starts_with("rank 0 (process 11, gpu:0) and rank 3 (process 14, gpu:0) are on one GPU"))
        << said;
}

// In containers that show one GPU each, all are gpu:0.
TEST(SharedGpu, OtherGpusOfTheSameNumberAreOthers) {
    EXPECT_EQ(among({rank(0, 11, "a"), rank(1, 12, "b")}), "");
}

TEST(SharedGpu, RanksOfOneProcessRunAtTheSameTime) {
    EXPECT_EQ(among({rank(0, 11, "a"), rank(1, 11, "a")}), "");
}

// Of containers with process numbers of their own.
TEST(SharedGpu, AProcessIsMoreThanItsNumber) {
    Hello other = rank(1, 11, "a");
    other.program = {7, 7};
    EXPECT_NE(among({rank(0, 11, "a"), other}), "");
}

TEST(SharedGpu, EmulatedOnesAreNotHadInTurns) {
    EXPECT_EQ(among({rank(0, 11, ""), rank(1, 12, "")}), "");
}

TEST(SharedGpu, TravelsInTheFirstMessage) {
    const auto heard = parse_hello(to_bytes(rank(2, 13, std::string("\0\x01x", 3))));
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->gpu, std::string("\0\x01x", 3));
}

}  // namespace
}  // namespace sidestep::collective
