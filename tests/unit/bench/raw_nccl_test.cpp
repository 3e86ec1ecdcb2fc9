#include "bench/raw_nccl.hpp"

#include <unistd.h>

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace sidestep::bench::raw {
namespace {

// Programs find the drop-in under NCCL's name. Figures of the library beside itself would say nothing.
TEST(RawNccl, TheDropInIsNotNcclWhereverItLies) {
    const std::string copy = testing::TempDir() + "libnccl-" + std::to_string(::getpid()) + ".so.2";
    std::filesystem::copy_file(SIDESTEP_NCCL_DROP_IN, copy);
    const auto opened = Nccl::open(copy);
    std::filesystem::remove(copy);
    ASSERT_FALSE(opened.ok());
    const std::string words = opened.error().to_string();
    EXPECT_NE(words.find(copy + " is the library that stands in for NCCL"), std::string::npos) << words;
}

}  // namespace
}  // namespace sidestep::bench::raw
