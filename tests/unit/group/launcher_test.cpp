// Who a process is by what its launcher told it.
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
                                 "MPI_LOCALRANKID",
                                 "MPI_LOCALNRANKS",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_NODES",
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

TEST_F(Launchers, NoneIsNotFound) {
    EXPECT_EQ(seating({}).error().code, ErrorCode::not_found);
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
    expect({{"SLURM_PROCID", "0"},
            {"SLURM_NTASKS", "8"},
            {"SLURM_LOCALID", "0"},
            {"SLURM_JOB_ID", "7"},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_NNODES", "1"}},
           0, 8, 0);
    expect({{"SIDESTEP_RANK", "1"},
            {"SIDESTEP_RANKS", "3"},
            {"SIDESTEP_GROUP_ID", "00112233445566778899aabbccddeeff"}},
           1, 3, 1);
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
    EXPECT_EQ(seating({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NNODES", "2"}}).error().code,
              ErrorCode::unsupported);
}

TEST_F(Launchers, Nonsense) {
    for (const auto& [name, value] :
         std::map<std::string, std::string>{{"RANK", "4"}, {"WORLD_SIZE", "0"}, {"LOCAL_RANK", "-1"}}) {
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
