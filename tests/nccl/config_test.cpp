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

// Three ranks that do not block.
std::vector<ncclComm_t> non_blocking() {
    ncclConfig_t config = default_config();
    config.blocking = 0;
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

// Children that `make(rank, child)` makes of ranks of parents that do not block, all in one group: they are
// there when the group ends, and block.
template <typename Make>
void expect_blocking(int ranks, Make make) {
    std::vector<ncclComm_t> children(static_cast<std::size_t>(ranks));
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < ranks; ++rank)
        EXPECT_NCCL(make(rank, &children[static_cast<std::size_t>(rank)]));
    ASSERT_NCCL(ncclGroupEnd());
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
    expect_blocking(
        3, [&](int rank, ncclComm_t* child) { return ncclCommSplit(parent(rank), 0, rank, child, &config); });
    int excluded[] = {2};
    expect_blocking(2, [&](int rank, ncclComm_t* child) {
        return ncclCommShrink(parent(rank), excluded, 1, child, &config, NCCL_SHRINK_DEFAULT);
    });
    ncclUniqueId id{};
    ASSERT_NCCL(ncclCommGetUniqueId(parent(0), &id));
    expect_blocking(4, [&](int rank, ncclComm_t* child) {
        if (rank < 3) return ncclCommGrow(parent(rank), 4, nullptr, -1, child, &config);
        EXPECT_NCCL(sidestepNcclSetDevice(3));
        return ncclCommGrow(nullptr, 4, &id, 3, child, &config);
    });
    destroy(parents);
}

}  // namespace
}  // namespace sidestep::nccl_test::config
