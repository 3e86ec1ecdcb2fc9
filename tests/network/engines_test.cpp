// Which engine two machines use, where one of them leaves no choice.
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/network/ncclnet_rig.hpp"
#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

class EnginesOfNodes : public test::Nodes {
protected:
    ~EnginesOfNodes() override {
        ::unsetenv("SIDESTEP_NETWORK");
        ::unsetenv("SIDESTEP_NCCL_NET");
    }
    Result<Context> client_with(const char* network) const {
        ::setenv("SIDESTEP_NETWORK", network, 1);
        return client();
    }
};

TEST_F(EnginesOfNodes, TcpWhereItIsAskedFor) {
    auto there = client_with("tcp");
    ASSERT_TRUE(there) << there.error().to_string();
    const auto memory = there->allocate(Place::host().on("n"), 4096);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const std::string text = test::text_of(4096, 1);
    const auto done = there->copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    for (const std::string& note : done->notes) EXPECT_EQ(note.find("reached by"), std::string::npos) << note;
}

// A machine that has no card says so at once, and one that has it does not go to another without.
TEST_F(EnginesOfNodes, RdmaAloneIsNotReplacedBySockets) {
    auto there = client_with("verbs");
    if (!there) {
        EXPECT_TRUE(there.error().code == ErrorCode::unsupported ||
                    there.error().code == ErrorCode::not_found)
            << there.error().to_string();
        EXPECT_FALSE(there.error().hint.empty()) << there.error().to_string();
        return;
    }
    ::setenv("SIDESTEP_NETWORK", "tcp", 1);
    serve(allow);
    const auto memory = there->allocate(Place::host().on("n"), 4096);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::unsupported) << memory.error().to_string();
}

// Both ways, by memory of the caller, of the node, and of its GPUs; whole and in parts.
TEST_F(EnginesOfNodes, NetworkPluginWhereItIsAskedFor) {
    ::setenv("SIDESTEP_NCCL_NET", SIDESTEP_FAKE_NCCL_NET, 1);
    for (const char* network : {"ncclnet", "auto"}) {
        ::setenv("SIDESTEP_NETWORK", network, 1);
        serve(allow);
        auto there = client_with(network);
        ASSERT_TRUE(there) << there.error().to_string();
        for (const Place& place : {Place::host(), Place::gpu(1)}) {
            constexpr Bytes size = 24_MiB + 12'345;
            const auto memory = there->allocate(place.on("n"), size);
            ASSERT_TRUE(memory) << memory.error().to_string();
            const std::string text = test::text_of(size, 1);
            std::string back(size, '?');
            const auto put = there->copy(Buffer::host(text.data(), size), memory->buffer()).wait();
            ASSERT_TRUE(put) << put.error().to_string();
            const auto get = there->copy(memory->buffer(), Buffer::host(back.data(), size)).wait();
            ASSERT_TRUE(get) << get.error().to_string();
            EXPECT_TRUE(back == text) << place.to_string();
            const std::string notes = fmt::format("{}", fmt::join(put->notes, "; "));
            EXPECT_NE(notes.find("n was reached by ncclnet (fast0, fast1)"), std::string::npos) << notes;
            // Emulated GPUs have none.
            EXPECT_EQ(notes.find("by the network plugin straight into gpu:1 and out of it, by its address "
                                 "(no dma-buf: ") != notes.npos,
                      place.is_gpu())
                << notes;
        }
    }
}

// Bytes that go another way than the plugin's devices could: the note says why.
TEST_F(EnginesOfNodes, NetworkPluginThatTakesNoMemoryOfGpus) {
    const wire::test::StandIn plugin;
    ::setenv("SIDESTEP_NCCL_NET", plugin.new_name().c_str(), 1);
    ::setenv("SIDESTEP_NETWORK", "ncclnet", 1);
    plugin.fault("no-gpu-memory");
    serve(allow);
    auto there = client_with("ncclnet");
    ASSERT_TRUE(there) << there.error().to_string();
    const auto memory = there->allocate(Place::gpu(1).on("n"), 4_MiB);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const std::string text = test::text_of(4_MiB, 1);
    const auto put = there->copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait();
    plugin.fault("");
    ASSERT_TRUE(put) << put.error().to_string();
    const std::string notes = fmt::format("{}", fmt::join(put->notes, "; "));
    EXPECT_NE(notes.find("since its cards do not reach gpu:1: neither by dma-buf"), std::string::npos)
        << notes;
}

// Of copies between two nodes, the note names what carries them now.
TEST_F(EnginesOfNodes, NodesThatFellToAnotherEngine) {
    const wire::test::StandIn plugin;
    ::setenv("SIDESTEP_NCCL_NET", SIDESTEP_FAKE_NCCL_NET, 1);
    ::setenv("SIDESTEP_NETWORK", "auto", 1);
    serve(allow);
    auto there = client_with("auto");
    ASSERT_TRUE(there) << there.error().to_string();
    const std::string text = test::text_of(8_MiB, 1);
    const auto from = there->allocate(Place::host().on("n"), text.size());
    const auto to = there->allocate(Place::host().on("m"), text.size());
    ASSERT_TRUE(from && to);
    ASSERT_TRUE(there->copy(Buffer::host(text.data(), text.size()), from->buffer()).wait());
    for (const char* engine : {"by ncclnet", "by tcp"}) {
        const auto done = there->copy(from->buffer(), to->buffer()).wait();
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_NE(done->explain().find(std::string("n sent them to m itself, ") + engine), std::string::npos)
            << done->explain();
        plugin.fault("isend");
    }
    plugin.fault("");
    std::string back(text.size(), '?');
    ASSERT_TRUE(there->copy(to->buffer(), Buffer::host(back.data(), back.size())).wait());
    EXPECT_TRUE(back == text);
}

// No other engine stands in for it, and nothing is loaded where nobody asks.
TEST_F(EnginesOfNodes, NetworkPluginAloneIsNotReplaced) {
    ::setenv("SIDESTEP_NCCL_NET", "nowhere-to-be-found", 1);
    const auto refused = client_with("ncclnet");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::not_found) << refused.error().to_string();
    EXPECT_FALSE(refused.error().hint.empty());
    // With a warning.
    EXPECT_TRUE(client_with("auto"));
    ::setenv("SIDESTEP_NCCL_NET", SIDESTEP_FAKE_NCCL_NET, 1);
    auto there = client_with("ncclnet");
    ASSERT_TRUE(there) << there.error().to_string();
    ::setenv("SIDESTEP_NETWORK", "tcp", 1);
    serve(allow);
    const auto memory = there->allocate(Place::host().on("n"), 4096);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::unsupported) << memory.error().to_string();
}

}  // namespace
}  // namespace sidestep
