// The tests, or one rank of those that need several processes.
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/nccl/processes.hpp"
#include "tests/nccl/world.hpp"

namespace {

// What the shim finds in its environment: an emulated machine, a folder to meet in, and no launcher.
std::string surroundings() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
          "SLURM_PROCID", "SIDESTEP_RANK", "SIDESTEP_RANKS", "SIDESTEP_GROUP_ID", "SIDESTEP_PROBE_FILE"})
        ::unsetenv(name);
    ::setenv("SIDESTEP_MACHINE", "dgx-h100", 1);
    ::setenv("SIDESTEP_GROUP_TIMEOUT", sidestep::nccl_test::default_timeout_s, 1);
    std::string folder = "/tmp/sidestep-nccl-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) return {};
    ::setenv("SIDESTEP_PEER_FOLDER", folder.c_str(), 1);
    return folder;
}

}  // namespace

int main(int count, char** arguments) {
    if (count > 1 && std::strcmp(arguments[1], "--rank") == 0)
        return sidestep::nccl_test::run_rank({arguments + 2, arguments + count});
    ::testing::InitGoogleTest(&count, arguments);
    const std::string folder = surroundings();
    const int failed = RUN_ALL_TESTS();
    std::error_code ignored;
    if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
    return failed;
}
