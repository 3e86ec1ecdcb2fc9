// What a configuration may hold, and what a child takes from its parent.
#include <array>
#include <climits>
#include <string>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::config {
namespace {

struct Field {
    const char* name;
    int ncclConfig_t::*member;
    std::vector<int> allowed;
    std::vector<int> refused;
};

const std::array fields = {
    Field{"blocking", &ncclConfig_t::blocking, {1}, {-1, 2, 3}},
    Field{"cgaClusterSize", &ncclConfig_t::cgaClusterSize, {0, 4}, {-1}},
    Field{"minCTAs", &ncclConfig_t::minCTAs, {1, 64}, {0, -1}},
    Field{"maxCTAs", &ncclConfig_t::maxCTAs, {1, INT_MAX}, {0, -1}},
    Field{"splitShare", &ncclConfig_t::splitShare, {0, 1}, {-1, 2}},
    Field{"collnetEnable", &ncclConfig_t::collnetEnable, {0, 1}, {-1, 2}},
    Field{"CTAPolicy", &ncclConfig_t::CTAPolicy, {0, 1, 2, 3}, {-1, 4, INT_MAX}},
    Field{"shrinkShare", &ncclConfig_t::shrinkShare, {0, 1}, {-1, 2}},
    Field{"nvlsCTAs", &ncclConfig_t::nvlsCTAs, {1, 16}, {0, -1}},
    Field{"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, {1, 64}, {0, 65}},
    Field{"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, {0, 1}, {-1, 2}},
    Field{"trafficClass", &ncclConfig_t::trafficClass, {-1, 0, 7}, {}},
};

TEST(NcclConfig, RangesOfItsFields) {
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ncclComm_t comm = nullptr;
    for (const Field& field : fields) {
        ncclConfig_t config = default_config();
        for (const int value : field.allowed) {
            config.*field.member = value;
            EXPECT_NCCL(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config)) << field.name << " " << value;
            EXPECT_NCCL(ncclCommDestroy(comm));
        }
        for (const int value : field.refused) {
            config.*field.member = value;
            EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), +ncclInvalidArgument)
                << field.name << " " << value;
            EXPECT_EQ(comm, nullptr);
            EXPECT_NE(last_error().find(std::string(field.name) + " is " + std::to_string(value)),
                      std::string::npos)
                << last_error();
        }
    }
}

TEST(NcclConfig, NoFewerBlocksAtMostThanAtLeast) {
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ncclComm_t comm = nullptr;
    ncclConfig_t config = default_config();
    config.minCTAs = config.maxCTAs = 4;
    EXPECT_NCCL(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config));
    EXPECT_NCCL(ncclCommDestroy(comm));
    config.minCTAs = 5;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("minCTAs is 5, more than its maxCTAs, 4"), std::string::npos) << last_error();
}

ncclConfig_t non_blocking_config() {
    ncclConfig_t config = default_config();
    config.blocking = 0;
    return config;
}

// Three ranks that do not block.
std::vector<ncclComm_t> non_blocking() {
    ncclConfig_t config = non_blocking_config();
    const ncclUniqueId id = new_id();
    std::vector<ncclComm_t> comms(3);
    for (int rank = 0; rank < 3; ++rank) {
        EXPECT_NCCL(sidestepNcclSetDevice(rank));
        EXPECT_EQ(ncclCommInitRankConfig(&comms[static_cast<std::size_t>(rank)], 3, id, rank, &config),
                  +ncclInProgress);
    }
    for (ncclComm_t comm : comms) EXPECT_EQ(settled(comm), +ncclSuccess);
    return comms;
}

// Children that `make(rank, child)` makes of ranks of `parents`, all in one group, which answers `ended`: they block.
template <typename Make>
void expect_blocking(int ranks, const std::vector<ncclComm_t>& parents, ncclResult_t ended, Make make) {
    std::vector<ncclComm_t> children(static_cast<std::size_t>(ranks));
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < ranks; ++rank)
        EXPECT_NCCL(make(rank, &children[static_cast<std::size_t>(rank)]));
    ASSERT_EQ(ncclGroupEnd(), ended) << last_error();
    for (ncclComm_t parent : parents) EXPECT_EQ(settled(parent), +ncclSuccess);
    for (ncclComm_t child : children) {
        ASSERT_NE(child, nullptr);
        EXPECT_NCCL(ncclCommFinalize(child));
    }
    destroy(children);
}

TEST(NcclConfig, AChildTakesOverNothingWhereItHasAConfiguration) {
    const auto parents = non_blocking();
    const auto parent = [&](int rank) { return parents[static_cast<std::size_t>(rank)]; };
    ncclConfig_t config = default_config();
    expect_blocking(3, parents, ncclInProgress, [&](int rank, ncclComm_t* child) {
        return ncclCommSplit(parent(rank), 0, rank, child, &config);
    });
    int excluded[] = {2};
    expect_blocking(2, parents, ncclInProgress, [&](int rank, ncclComm_t* child) {
        return ncclCommShrink(parent(rank), excluded, 1, child, &config, NCCL_SHRINK_DEFAULT);
    });
    ncclUniqueId id{};
    ASSERT_NCCL(ncclCommGetUniqueId(parent(0), &id));
    expect_blocking(4, parents, ncclSuccess, [&](int rank, ncclComm_t* child) {
        if (rank < 3) return ncclCommGrow(parent(rank), 4, nullptr, -1, child, &config);
        EXPECT_NCCL(sidestepNcclSetDevice(3));
        return ncclCommGrow(nullptr, 4, &id, 3, child, &config);
    });
    destroy(parents);
}

// As in NCCL. Programs take the answer for an error, where it is none that they expect.
TEST(NcclConfig, ACommunicatorThatBlocksDoesSoWhenItIsDividedWhateverItsChildDoes) {
    World world(2);
    ncclConfig_t config = non_blocking_config();
    int excluded[] = {1};
    std::vector<ncclComm_t> children(3);
    ASSERT_NCCL(world.together([&](int rank) {
        EXPECT_NCCL(ncclCommSplit(world[rank], 0, rank, &children[static_cast<std::size_t>(rank)], &config));
    }));
    EXPECT_NCCL(ncclCommShrink(world[0], excluded, 1, &children[2], &config, NCCL_SHRINK_DEFAULT));
    for (ncclComm_t child : children) {
        ASSERT_NE(child, nullptr);
        EXPECT_EQ(ncclCommFinalize(child), +ncclInProgress);
        EXPECT_EQ(settled(child), +ncclSuccess);
    }
    destroy(children);
}

}  // namespace
}  // namespace sidestep::nccl_test::config
