// Runs every file of a fuzz target's corpus through it once, so that every build does, with any compiler.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/fuzz/fuzz_target.hpp"

namespace sidestep {
namespace {

std::size_t replay(const std::string& folder) {
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream file(entry.path(), std::ios::binary);
        EXPECT_TRUE(file) << entry.path();
        std::stringstream text;
        text << file.rdbuf();
        const std::string bytes = text.str();
        SCOPED_TRACE(entry.path());
        EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
                  0);
        ++files;
    }
    return files;
}

TEST(FuzzCorpus, EveryFileKeepsThePromises) {
    EXPECT_GE(replay(SIDESTEP_SOURCE_DIR "/tests/fuzz/corpus/" SIDESTEP_FUZZ_TARGET), 5U);
}

// Real files, or near ones, are the best of seeds. Readers of other files have to bear them.
TEST(FuzzCorpus, EveryRecordedFileKeepsThePromises) {
    const std::string folder = std::string(SIDESTEP_FUZZ_TARGET) == "nccl_xml" ? "/nccl" : "";
    EXPECT_GE(replay(SIDESTEP_SOURCE_DIR "/tests/recorded" + folder), 1U);
}

}  // namespace
}  // namespace sidestep
