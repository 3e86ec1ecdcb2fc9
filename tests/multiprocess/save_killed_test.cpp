// A process that is killed while it saves, over and over: what is there afterwards is whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <sidestep/checkpoint.hpp>
#include <sidestep/repair.hpp>
#include "tests/contents.hpp"
#include "tests/multiprocess/process.hpp"

namespace sidestep::multiprocess {
namespace {

namespace fs = std::filesystem;

constexpr Bytes saved_bytes = 6_MiB;

// The seed that a file was saved with; all of its bytes are compared.
unsigned seed_of(const Checkpoint& checkpoint, std::size_t file) {
    auto only = Checkpoint::open(checkpoint.files()[file].path);
    EXPECT_TRUE(only) << only.error().to_string();
    if (!only) return 2;
    const auto seed = static_cast<unsigned>(std::stoul(only->metadata().at(0).second));
    std::string content = test::get(checkpoint.files()[file].path);
    for (const TensorInfo& tensor : only->tensors()) {
        const Buffer part = Buffer::host(content.data() + tensor.offset, tensor.bytes);
        EXPECT_EQ(differs(part, seed, std::stoul(tensor.name) * saved_bytes / 32), "")
            << tensor.name << " of seed " << seed;
    }
    return seed;
}

// A file that replaces another has a second, hidden name for the few microseconds of link and rename.
std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
        if (const std::string name = entry.path().filename(); name.find(".sidestep-") == std::string::npos)
            names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

void kill_while_it_saves(const TestFolder& folder, const std::string& command, int round) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(command), "ok");
    // Whenever it is: what the test expects holds at any moment.
    std::this_thread::sleep_for(std::chrono::milliseconds(11 * round % 60));
    peer.kill();
}

TEST(SaveKilled, OneFileIsTheOldOneOrTheNew) {
    TestFolder folder;
    fs::create_directory(folder.socket("out"));
    const std::string path = folder.socket("out/model.safetensors");
    for (int round = 0; round < 12; ++round) {
        kill_while_it_saves(folder, fmt::format("save {} 0 {}", path, saved_bytes), round);
        EXPECT_EQ(names_in(folder.socket("out")), std::vector<std::string>{"model.safetensors"});
        const auto checkpoint = Checkpoint::open(path);
        ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
        EXPECT_LT(seed_of(*checkpoint, 0), 2u);
    }
}

TEST(SaveKilled, SeveralFilesAreOfOneSave) {
    TestFolder folder;
    const std::string out = folder.socket("out");
    fs::create_directory(out);
    for (int round = 0; round < 12; ++round) {
        kill_while_it_saves(folder, fmt::format("save {} {} {}", out, saved_bytes / 32, saved_bytes), round);
        const auto checkpoint = Checkpoint::open(out);
        ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
        ASSERT_EQ(checkpoint->files().size(), 32u);
        std::set<unsigned> seeds;
        for (std::size_t file = 0; file < 32; ++file) seeds.insert(seed_of(*checkpoint, file));
        EXPECT_EQ(seeds.size(), 1u);
    }
    const auto repaired = repair(out);
    ASSERT_TRUE(repaired) << repaired.error().to_string();
    EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 33);
    EXPECT_TRUE(Checkpoint::open(out));
}

}  // namespace
}  // namespace sidestep::multiprocess
