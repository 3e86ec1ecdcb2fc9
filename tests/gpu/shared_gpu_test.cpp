// Two processes that join with the same GPU, which NCCL refuses and this library warns of.
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include <sidestep/context.hpp>
#include <sidestep/group.hpp>

#include "tests/gpu/raw_memory.hpp"

extern char** environ;

namespace sidestep::gpu_tests::shared_gpu {
namespace {

constexpr const char* group_variable = "SIDESTEP_TEST_GROUP";

// The words of the plan; what went wrong where there is none.
std::string plan_of(const GroupId& id, int rank) {
    const auto context = Context::open({"live"});
    if (!context) return context.error().to_string();
    GroupOptions options;
    options.timeout = std::chrono::seconds(20);
    const auto group = Group::join(*context, {id, rank, 2, Place::gpu(0)}, options);
    if (!group) return group.error().to_string();
    const auto plan = group->explain(Collective::all_reduce, 1000, Dtype::f32);
    return plan ? plan->to_string() : plan.error().to_string();
}

using SharedGpu = GpuTest;

// Is this program once more, started by the test below.
TEST_F(SharedGpu, DISABLED_TheOtherRank) {
    const char* const group = getenv(group_variable);
    ASSERT_NE(group, nullptr);
    const auto id = GroupId::parse(group);
    ASSERT_TRUE(id);
    const std::string said = plan_of(*id, 1);
    EXPECT_NE(said.find("one GPU"), std::string::npos) << said;
}

TEST_F(SharedGpu, IsSaidByTwoProcesses) {
    const auto id = GroupId::create();
    ASSERT_TRUE(id);
    setenv(group_variable, id->to_string().c_str(), 1);
    char program[] = "/proc/self/exe";
    char filter[] = "--gtest_filter=SharedGpu.DISABLED_TheOtherRank";
    char all[] = "--gtest_also_run_disabled_tests";
    char* arguments[] = {program, filter, all, nullptr};
    pid_t other = 0;
    posix_spawn_file_actions_t quiet;  // its summary is not this program's
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int started = posix_spawn(&other, program, &quiet, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&quiet);
    ASSERT_EQ(started, 0);
    const std::string said = plan_of(*id, 0);
    EXPECT_NE(said.find("one GPU"), std::string::npos) << said;
    int status = -1;
    waitpid(other, &status, 0);
    EXPECT_EQ(status, 0);
    unsetenv(group_variable);
}

}  // namespace
}  // namespace sidestep::gpu_tests::shared_gpu
