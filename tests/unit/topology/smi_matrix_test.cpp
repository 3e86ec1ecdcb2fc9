// What `nvidia-smi topo -m` prints, read: every pair has the class that the matrix says.
#include "topology/smi_matrix.hpp"

#include <gtest/gtest.h>

namespace sidestep::topology {
namespace {

// The classes of all pairs of GPUs and cards, in the order of the matrix.
std::string classes(const Topology& topology, const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t a = 0; a < names.size(); ++a) {
        for (std::size_t b = a + 1; b < names.size(); ++b) {
            const auto from = topology.find(names[a]);
            const auto to = topology.find(names[b]);
            text += (text.empty() ? "" : " ") +
                    (from && to ? to_string(topology.pair_class(*from, *to)) : std::string("missing"));
        }
    }
    return text;
}

Topology read(const std::string& text) {
    auto topology = read_smi_matrix(text, "matrix.txt");
    EXPECT_TRUE(topology.ok()) << topology.error().to_string();
    return topology.ok() ? std::move(*topology) : *Topology::create({});
}

TEST(SmiMatrix, ServerWithACardAGpu) {
    // With the escape sequences of a terminal, as copied from one.
    const Topology topology = read(
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV18\tNV18\tPXB\tNODE\tSYS\t0-55,112-167\t0\t\tN/A\n"
        "GPU1\tNV18\t X \tNV18\tNODE\tPXB\tSYS\t0-55,112-167\t0\t\tN/A\n"
        "GPU2\tNV18\tNV18\t X \tSYS\tSYS\tPIX\t56-111,168-223\t1\t\tN/A\n"
        "NIC0\tPXB\tNODE\tSYS\t X \tNODE\tSYS\n"
        "NIC1\tNODE\tPXB\tSYS\tNODE\t X \tSYS\n"
        "NIC2\tSYS\tSYS\tPIX\tSYS\tSYS\t X \n\n"
        "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n\n"
        "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_3\n  NIC2: mlx5_6\n");
    EXPECT_EQ(classes(topology, {"gpu:0", "gpu:1", "gpu:2", "nic:mlx5_0", "nic:mlx5_3", "nic:mlx5_6"}),
              "NV18 NV18 PXB NODE SYS NV18 NODE PXB SYS SYS SYS PIX NODE SYS SYS");
    EXPECT_TRUE(topology.find(DeviceKind::nvswitch, 0)) << "36 links cannot be to single GPUs";
    EXPECT_TRUE(topology.peer_access(0, 2).allowed);
    EXPECT_FALSE(topology.notes().empty());
}

TEST(SmiMatrix, MeshOfNvlinksAndPlainPcie) {
    const Topology mesh = read(
        "     GPU0 GPU1 GPU2 CPU Affinity\n"
        "GPU0  X   NV1  NV2  0-19\n"
        "GPU1 NV1   X   PHB  0-19\n"
        "GPU2 NV2  PHB   X   0-19\n");
    EXPECT_EQ(classes(mesh, {"gpu:0", "gpu:1", "gpu:2"}), "NV1 NV2 PHB");
    EXPECT_FALSE(mesh.find(DeviceKind::nvswitch, 0));
    const Topology plain = read(
        "GPU0 GPU1 GPU2 mlx5_0 CPU Affinity\nGPU0 X PIX SYS PIX 0-7\nGPU1 PIX X SYS PIX 0-7\nGPU2 SYS SYS X "
        "SYS 8-15\n"
        "mlx5_0 PIX PIX SYS X\n");
    EXPECT_EQ(classes(plain, {"gpu:0", "gpu:1", "gpu:2", "nic:mlx5_0"}), "PIX SYS PIX SYS PIX SYS");
    // A guest without cards: one processor, not one a GPU.
    const Topology guest = read("GPU0 GPU1 CPU Affinity\nGPU0 X NV18 0-11\nGPU1 NV18 X 0-11\n");
    EXPECT_FALSE(guest.find(DeviceKind::cpu, 1));
}

TEST(SmiMatrix, BadOnesAreRefused) {
    const struct {
        const char* text;
        const char* words;
    } cases[] = {
        {"", "0 of 0 lines"},
        {"hello\n", "no matrix of GPUs"},
        {"GPU0 GPU1 CPU Affinity\nGPU0 X NV18\n", "1 of 2 lines"},
        {"GPU0 GPU1\nGPU0 X\n", "GPU0: the line is too short"},
        {"GPU0 GPU1\nGPU0 X NEAR\nGPU1 NEAR X\n", "'NEAR' is no class of a pair"},
        {"GPU0 GPU1\nGPU0 X NVx\nGPU1 NVx X\n", "'NVx' is no number of NVLinks"},
        {"GPU0 GPU1\nGPU0 X NV99999999999\nGPU1 NV1 X\n", "is no number of NVLinks"},
    };
    for (const auto& one : cases) {
        const auto read = read_smi_matrix(one.text, "matrix.txt");
        ASSERT_FALSE(read.ok()) << one.text;
        EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(read.error().to_string().find(one.words), std::string::npos) << read.error().to_string();
    }
    std::string wide;
    for (int i = 0; i < 300; ++i) wide += " GPU" + std::to_string(i);
    EXPECT_NE(read_smi_matrix(wide, "x").error().message.find("too many"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::topology
