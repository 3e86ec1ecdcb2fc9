// Who a process is by what its launcher told it.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

class Launchers : public testing::Test {
protected:
    using Variables = std::map<std::string, std::string>;

    Launchers() {
        for (const char* name : {"SIDESTEP_RANK",
                                 "SIDESTEP_RANKS",
                                 "SIDESTEP_GROUP_ID",
                                 "RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "TORCHELASTIC_RESTART_COUNT",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "OMPI_MCA_ess_base_jobid",
                                 "PMIX_NAMESPACE",
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 "PMI_LOCAL_RANK",
                                 "PMI_LOCAL_SIZE",
                                 "MPI_LOCALRANKID",
                                 "MPI_LOCALNRANKS",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_NODES",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_NNODES"}) {
            if (const char* value = std::getenv(name)) before_[name] = value;
            ::unsetenv(name);
        }
    }
    ~Launchers() override {
        for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
    }

    static Result<Seating> seating(const Variables& variables) {
        for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
        auto found = Seating::from_environment();
        for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
        return found;
    }
    static void expect(const Variables& variables, int rank, int ranks, int gpu) {
        const auto found = seating(variables);
        ASSERT_TRUE(ok(found));
        EXPECT_EQ(found->rank, rank);
        EXPECT_EQ(found->ranks, ranks);
        EXPECT_EQ(found->place, Place::gpu(gpu));
        EXPECT_NE(found->id, GroupId{});
    }

private:
    Variables before_;
};

const std::map<std::string, std::string> torch{{"RANK", "2"},
                                               {"WORLD_SIZE", "4"},
                                               {"LOCAL_RANK", "2"},
                                               {"LOCAL_WORLD_SIZE", "4"},
                                               {"MASTER_ADDR", "localhost"},
                                               {"MASTER_PORT", "29500"},
                                               {"TORCHELASTIC_RUN_ID", "none"}};

// A step of 8 tasks of a job of 16.
const std::map<std::string, std::string> slurm{{"SLURM_PROCID", "3"},         {"SLURM_NTASKS", "16"},
                                               {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "3"},
                                               {"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"},
                                               {"SLURM_NNODES", "2"},         {"SLURM_STEP_NUM_NODES", "1"}};

TEST_F(Launchers, NoneIsNotFound) {
    EXPECT_EQ(seating({}).error().code, ErrorCode::not_found);
    // What a batch script of Slurm starts by itself, without srun.
    EXPECT_EQ(
        seating({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "7"}})
            .error()
            .code,
        ErrorCode::not_found);
}

TEST_F(Launchers, OneBelowAnother) {
    // srun that speaks MPICH's protocol: the ids of its steps tell jobs apart, and it knows the machines.
    auto both = slurm;
    both["PMI_RANK"] = "3";
    both["PMI_SIZE"] = "8";
    expect(both, 3, 8, 3);
    EXPECT_EQ(seating(both)->id, seating(slurm)->id);
    both["SLURM_STEP_NUM_NODES"] = "2";
    EXPECT_EQ(seating(both).error().code, ErrorCode::unsupported);
    // MPICH's and Open MPI's launchers in a job of Slurm: the ranks are theirs.
    auto hydra = slurm;
    hydra.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
    expect(hydra, 1, 2, 1);
    auto open = slurm;
    open.insert(
        {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
    expect(open, 1, 2, 1);
}

TEST_F(Launchers, Each) {
    expect(torch, 2, 4, 2);
    expect({{"OMPI_COMM_WORLD_RANK", "1"},
            {"OMPI_COMM_WORLD_SIZE", "2"},
            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
            {"PMIX_NAMESPACE", "prterun-1@1"}},
           1, 2, 1);
    expect({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "4"}}, 3, 4,
           3);
    expect(slurm, 3, 8, 3);
    expect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_LOCAL_RANK", "0"}, {"PMI_LOCAL_SIZE", "2"}}, 1, 2, 0);
    expect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, 1, 2, 1);
    expect({{"SIDESTEP_RANK", "1"},
            {"SIDESTEP_RANKS", "3"},
            {"SIDESTEP_GROUP_ID", "00112233445566778899aabbccddeeff"}},
           1, 3, 1);
}

// The driver has lost GPU 1.
TEST_F(Launchers, TheGpuIsTheOneThatIsThere) {
    Topology::Parts parts;
    for (const int gpu : {3, 0, 2})
        parts.devices.push_back({DeviceKind::gpu, gpu, fmt::format("gpu:{}", gpu), "", "", 0, 0});
    const auto path =
        std::filesystem::temp_directory_path() / fmt::format("sidestep-gap-{}.json", ::getpid());
    std::ofstream(path) << Topology::create(parts)->to_json();
    auto variables = torch;
    variables["SIDESTEP_MACHINE"] = path.string();
    for (const auto& [local, gpu] : {std::pair{0, 0}, {1, 2}, {2, 3}, {3, 3}}) {
        variables["LOCAL_RANK"] = std::to_string(local);
        EXPECT_EQ(seating(variables)->place, Place::gpu(gpu)) << local;
    }
    std::filesystem::remove(path);
}

TEST_F(Launchers, TheIdOfSidestepRunIsTakenAsItIs) {
    auto variables = torch;
    variables["SIDESTEP_RANK"] = "0";
    variables["SIDESTEP_RANKS"] = "2";
    variables["LOCAL_RANK"] = "0";
    variables["SIDESTEP_GROUP_ID"] = "00112233445566778899aabbccddeeff";
    const auto found = seating(variables);
    ASSERT_TRUE(ok(found));
    EXPECT_EQ(found->ranks, 2);  // before any other launcher's
    EXPECT_EQ(found->id.to_string(), "00112233445566778899aabbccddeeff");
}

TEST_F(Launchers, TheIdIsTheSameForAllRanksAndAnotherOneInAnotherJob) {
    std::set<std::string> ids;
    for (int rank = 0; rank < 4; ++rank) {
        auto variables = torch;
        variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
        ids.insert(seating(variables)->id.to_string());
    }
    EXPECT_EQ(ids.size(), 1u);
    for (const auto& [name, value] : std::map<std::string, std::string>{{"MASTER_PORT", "29501"},
                                                                        {"TORCHELASTIC_RUN_ID", "x"},
                                                                        {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                                        {"SIDESTEP_GROUP_ID", "mine"}}) {
        auto variables = torch;
        variables[name] = value;
        ids.insert(seating(variables)->id.to_string());
    }
    EXPECT_EQ(ids.size(), 5u);
}

TEST_F(Launchers, SeveralMachinesAreUnsupported) {
    auto variables = torch;
    variables["LOCAL_WORLD_SIZE"] = "2";
    EXPECT_EQ(seating(variables).error().code, ErrorCode::unsupported);
    auto step = slurm;
    step["SLURM_STEP_NUM_NODES"] = "2";
    EXPECT_EQ(seating(step).error().code, ErrorCode::unsupported);
    EXPECT_EQ(
        seating({{"PMI_RANK", "0"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "4"}})
            .error()
            .code,
        ErrorCode::unsupported);
}

TEST_F(Launchers, Nonsense) {
    for (const auto& [name, value] : std::multimap<std::string, std::string>{{"RANK", "4"},
                                                                             {"RANK", "1x"},
                                                                             {"RANK", "99999999999999999999"},
                                                                             {"WORLD_SIZE", "0"},
                                                                             {"LOCAL_RANK", "-1"}}) {
        auto variables = torch;
        variables[name] = value;
        EXPECT_EQ(seating(variables).error().code, ErrorCode::invalid_argument) << name << "=" << value;
    }
}

TEST(GroupIds, ParseWhatTheyPrint) {
    const GroupId id = *GroupId::create();
    EXPECT_EQ(*GroupId::parse(id.to_string()), id);
    EXPECT_NE(*GroupId::create(), id);
    for (const char* text :
         {"", "0", "0011223344556677889900aabbccddee00", "zz112233445566778899aabbccddeeff"})
        EXPECT_FALSE(GroupId::parse(text).ok()) << text;
}

}  // namespace
}  // namespace sidestep::groups
