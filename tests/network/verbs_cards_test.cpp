// Links over several RDMA cards. SIDESTEP_TEST_VERBS names one card, SIDESTEP_TEST_OTHER_VERBS another;
// made for soft-RoCE in a virtual machine (tests/vm/jobs/verbs), whose network devices SIDESTEP_TEST_NETDEV and
// SIDESTEP_TEST_OTHER_NETDEV name.
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include "backend/nearness.hpp"
#include "backends/verbs/verbs_engine.hpp"
#include "tests/contents.hpp"
#include "tests/network/host_pages.hpp"
#include "tests/network/target.hpp"

namespace sidestep::wire {
namespace {

using backends::verbs::Engine;

using test::one_mib;

struct NoDmaBuf final : test::HostPages {
    Result<backend::DmaBuf> dma_buf(const Buffer&) override {
        return Error{ErrorCode::unsupported, "it has none", "test", {}};
    }
    Result<Allocation> scratch(const Place& gpu, Bytes bytes) override {
        auto memory = std::make_shared<std::vector<char>>(bytes);
        return Allocation(Buffer::memory(gpu, memory->data(), bytes), MemoryKind::device,
                          [memory]() mutable { memory.reset(); });
    }
};

std::uint64_t packets_of(const std::string& card) {
    std::ifstream file(fmt::format("/sys/class/infiniband/{}/ports/1/hw_counters/sent_pkts", card));
    std::uint64_t count = 0;
    file >> count;
    return count;
}

class VerbsCards : public test::TwoEnds<Engine> {
protected:
    void SetUp() override {
        for (const char* name : {"SIDESTEP_TEST_VERBS", "SIDESTEP_TEST_OTHER_VERBS", "SIDESTEP_TEST_NETDEV"})
            if (std::getenv(name) == nullptr) GTEST_SKIP() << name << " names no RDMA card or device";
        one = std::getenv("SIDESTEP_TEST_VERBS");
        other = std::getenv("SIDESTEP_TEST_OTHER_VERBS");
        engine = Engine::create({.cards = {one, other}}).value();
    }
    static void set_first_card(const char* state) {
        const auto command = fmt::format("ip link set {} {}", std::getenv("SIDESTEP_TEST_NETDEV"), state);
        ASSERT_EQ(std::system(command.c_str()), 0);
    }
    // Both ways, and over which cards that went.
    std::string brings_all(std::size_t sockets) {
        constexpr Bytes size = 8 * one_mib;
        join(size, sockets);
        const std::array<std::string, 2> bytes = {sidestep::test::text_of(size, 1),
                                                  sidestep::test::text_of(size, 2)};
        std::atomic<std::uint64_t> sent{0};
        for (std::size_t i = 0; i < 2; ++i) push(i, bytes[i], one_mib, sent);
        EXPECT_TRUE(test::comes([&] {
            return targets[0]->came == size && targets[1]->came == size && sent == 16;
        })) << targets[0]->why.to_string();
        EXPECT_TRUE(targets[0]->text() == bytes[1] && targets[1]->text() == bytes[0]);
        EXPECT_EQ(links[0]->over(), links[1]->over());
        const std::string over = links[0]->over();
        end();
        return over;
    }

    std::string one, other;
};

TEST_F(VerbsCards, RailsGoOverAllOfThem) {
    const std::string both = fmt::format("{}, {}", one, other);
    EXPECT_EQ(brings_all(4), both);
    EXPECT_EQ(brings_all(1), one);
    EXPECT_EQ(engine->useful_sockets(), 4u);
}

// The link ends; the next one goes over what is left, and over both when the card is back.
TEST_F(VerbsCards, OneThatGoesDownIsLeftOut) {
    join(16 * one_mib, 2);
    const std::string bytes = sidestep::test::text_of(16 * one_mib, 1);
    std::atomic<std::uint64_t> sent{0};
    push(0, bytes, one_mib, sent);
    ASSERT_TRUE(test::comes([&] { return sent == 16; }));
    set_first_card("down");
    EXPECT_TRUE(test::comes([&] { return targets[0]->ends > 0 && targets[1]->ends > 0; }));
    fmt::print("with {} down: {}\n", one, targets[0]->why.to_string());
    end();
    EXPECT_TRUE(engine->works());
    EXPECT_EQ(brings_all(2), other);
    set_first_card("up");
    ASSERT_TRUE(test::comes([&] { return brings_all(2) == fmt::format("{}, {}", one, other); }));
    // One that lost a link though its port is up.
    engine->avoid({ErrorCode::io_error, "broke", one, {}});
    EXPECT_EQ(brings_all(2), other);
    engine->avoid({ErrorCode::io_error, "broke", other, {}});
    EXPECT_FALSE(engine->works());
}

// A frame goes by the rail whose cards are nearest to its bytes and to where they go, and no other.
TEST_F(VerbsCards, NearestOneCarriesThem) {
    Topology::Parts parts;
    parts.name = "made up";
    parts.devices = {{.kind = DeviceKind::cpu, .index = 0, .name = "cpu:0"},
                     {.kind = DeviceKind::host_bridge, .index = 0, .name = "bridge:0"},
                     {.kind = DeviceKind::pcie_switch, .index = 0, .name = "switch:0"},
                     {.kind = DeviceKind::gpu, .index = 0, .name = "gpu:0"},
                     {.kind = DeviceKind::nic, .index = 0, .name = "nic:" + one},
                     {.kind = DeviceKind::nic, .index = 1, .name = "nic:" + other}};
    parts.links = {{0, 1, LinkKind::pcie, 16, 64, 0.1},
                   {1, 2, LinkKind::pcie, 16, 64, 0.1},
                   {2, 3, LinkKind::pcie, 16, 64, 0.1},
                   {1, 4, LinkKind::pcie, 16, 64, 0.1},
                   {2, 5, LinkKind::pcie, 16, 64, 0.1}};
    const auto topology = Topology::create(std::move(parts)).value();
    engine = Engine::create({.cards = {one, other}, .topology = &topology}).value();
    join(16 * one_mib, 4);
    std::string bytes = sidestep::test::text_of(16 * one_mib, 1);
    NoDmaBuf exporter;
    const auto reached = engine->prepare_device(Buffer::gpu(0, bytes.data(), bytes.size()), exporter);
    ASSERT_TRUE(reached && *reached) << reached.error().to_string();
    EXPECT_NE((*reached)->words.find(fmt::format("{} (PIX): one switch from gpu:0", other)),
              std::string::npos)
        << (*reached)->words;
    // Rails that have not met carry nothing.
    ASSERT_TRUE(test::comes([&] { return links[0]->over() == fmt::format("{}, {}", one, other); }));
    std::atomic<std::uint64_t> sent{0};
    const std::string first(one_mib, 'a');
    for (int i = 0; i < 8; ++i) push(0, first, one_mib, sent);
    ASSERT_TRUE(test::comes([&] { return sent == 8; }));
    std::uint64_t all = 8;
    const auto expect_by_other = [&](const char* what, const std::string& from, std::uint8_t to_gpu) {
        const auto before = std::pair(packets_of(one), packets_of(other));
        Frame frame{Frame::Kind::push, 1, 1, 0, one_mib};
        frame.to_gpu = to_gpu;
        for (; frame.offset < from.size(); frame.offset += one_mib)
            links[0]->send(frame, from.data() + frame.offset, [&] { ++sent; });
        all += 16;
        ASSERT_TRUE(test::comes([&] { return sent == all; }));
        EXPECT_TRUE(targets[1]->text() == from);
        const auto by_one = packets_of(one) - before.first, by_other = packets_of(other) - before.second;
        fmt::print("packets {}: {} by {}, {} by {}\n", what, by_one, one, by_other, other);
        EXPECT_GT(by_other, 20 * by_one) << what;
    };
    expect_by_other("from gpu:0", bytes, 0);
    expect_by_other("to gpu:0", sidestep::test::text_of(16 * one_mib, 2), backend::told_gpu(Place::gpu(0)));
    end();
}

}  // namespace
}  // namespace sidestep::wire
