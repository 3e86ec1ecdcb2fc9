// The topology files that the project ships: recorded machines, and the example of the documentation.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <sidestep/topology.hpp>

namespace sidestep {
namespace {

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

TEST(TopologyFiles, TheExampleInTheDocumentationLoads) {
    const std::string page = text_of(SIDESTEP_SOURCE_DIR "/docs/topology-format.md");
    const auto start = page.find("```json\n");
    ASSERT_NE(start, std::string::npos);
    const auto machine =
        Topology::from_json(page.substr(start + 8, page.find("```", start + 8) - start - 8), "");
    ASSERT_TRUE(machine.ok()) << machine.error().to_string();
    EXPECT_EQ(machine->gpu_count(), 2);
    EXPECT_EQ(to_string(machine->pair_class(*machine->find(Place::gpu(0)), *machine->find(Place::gpu(1)))),
              "NV18");
}

TEST(TopologyFiles, RecordedMachinesLoadAndReachTheirHost) {
    int machines = 0;
    for (const auto& entry : std::filesystem::directory_iterator(SIDESTEP_SOURCE_DIR "/tests/recorded")) {
        if (entry.path().extension() != ".json") continue;
        ++machines;
        const auto machine = Topology::load(entry.path().string());
        ASSERT_TRUE(machine.ok()) << machine.error().to_string();
        EXPECT_EQ(Topology::from_json(machine->to_json(), "")->parts(), machine->parts()) << entry.path();
        EXPECT_FALSE(machine->to_text().empty());
        for (int gpu = 0; gpu < machine->gpu_count(); ++gpu) {
            const auto id = machine->find(Place::gpu(gpu));
            ASSERT_TRUE(id) << entry.path() << " gpu:" << gpu;
            EXPECT_TRUE(machine->path(*id, machine->find(Place::host()).value()))
                << entry.path() << " gpu:" << gpu;
        }
    }
    if (machines == 0) GTEST_SKIP() << "tests/recorded holds no recorded machine yet";
}

}  // namespace
}  // namespace sidestep
