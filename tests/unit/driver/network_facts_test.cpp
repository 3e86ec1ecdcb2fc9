// What the files of a machine say of its RDMA cards and limits.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "driver/network_facts.hpp"

namespace sidestep::driver {
namespace {

namespace fs = std::filesystem;

class NetworkFactsTest : public testing::Test {
protected:
    NetworkFactsTest() {
        std::string name = (fs::temp_directory_path() / "sidestep-facts-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) std::abort();
        root = name;
    }
    ~NetworkFactsTest() override { fs::remove_all(root); }

    void put(const std::string& path, const std::string& text) const {
        fs::create_directories((root / path).parent_path());
        std::ofstream(root / path) << text;
    }

    fs::path root;
    NetworkFacts facts;
};

TEST_F(NetworkFactsTest, PortsHaveStateRateAndKindsOfAddresses) {
    const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
    put(port + "state", "4: ACTIVE\n");
    put(port + "link_layer", "Ethernet\n");
    put(port + "rate", "100 Gb/sec (2X HDR)\n");
    put(port + "gid_attrs/types/0", "IB/RoCE v1\n");
    put(port + "gid_attrs/types/1", "RoCE v2\n");
    put(port + "gid_attrs/types/2", "RoCE v2\n");
    put(port + "gid_attrs/types/3", "");  // not used
    put("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    put("etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
    put("etc/libibverbs.d/rxe.driver", "driver rxe\n");
    put("etc/libibverbs.d/README", "");
    add_rdma_facts(MachineFiles(root.string()), facts);
    EXPECT_EQ(facts, (NetworkFacts{{"rdma.mlx5_0.1", "ACTIVE, Ethernet, 100 Gb/sec (2X HDR)"},
                                   {"gids.mlx5_0.1", "IB/RoCE v1 x 1, RoCE v2 x 2"},
                                   {"rdma.rxe0.1", "DOWN, link layer not told, rate not told"},
                                   {"rdma_providers", "mlx5, rxe"}}));
}

TEST_F(NetworkFactsTest, OfThreeNumbersTheLastIsTheBound) {
    put("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
    put("proc/sys/net/core/rmem_max", "212992\n");
    put("proc/sys/kernel/osrelease", "6.12.1\n");
    add_limit_facts(MachineFiles(root.string()), facts);
    EXPECT_EQ(facts["tcp_rmem_max"], "6291456");
    EXPECT_EQ(facts["rmem_max"], "212992");
    EXPECT_EQ(facts["kernel"], "Linux 6.12.1");
    EXPECT_FALSE(facts.contains("tcp_wmem_max"));
    EXPECT_TRUE(facts.contains("memlock"));
}

TEST_F(NetworkFactsTest, WhatIsNotThereIsNotTold) {
    add_rdma_facts(MachineFiles(root.string()), facts);
    add_socket_facts(-1, MachineFiles(root.string()), facts);
    EXPECT_TRUE(facts.empty());
}

}  // namespace
}  // namespace sidestep::driver
