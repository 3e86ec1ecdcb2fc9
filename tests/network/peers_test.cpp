// Connections to nodes that nobody needs any more.
#include "wire/peers.hpp"

#include <thread>

#include "backends/tcp/tcp_engine.hpp"
#include "tests/network/nodes.hpp"
#include "wire/key.hpp"

namespace sidestep::wire {
namespace {

using namespace std::chrono_literals;

class PeersTest : public sidestep::test::Nodes {
protected:
    PeersTest() {
        std::vector<std::unique_ptr<backend::NetworkEngine>> all;
        all.push_back(std::make_unique<backends::tcp::Engine>(2));
        peers = std::make_unique<Peers>(
            std::make_shared<const Engines>(std::move(all)), "here", [this] { return read_key(path("key")); },
            4);
    }
    ~PeersTest() override { peers.reset(); }

    bool clients_become(std::size_t count) const {
        const auto until = std::chrono::steady_clock::now() + 20s;
        while (serving->counts().clients != count && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(1ms);
        return serving->counts().clients == count;
    }
    std::shared_ptr<Peer> connect() {
        auto peer = peers->get({"n", {*parse_host_port(address)}});
        EXPECT_TRUE(peer) << peer.error().to_string();
        return peer ? *peer : nullptr;
    }

    std::unique_ptr<Peers> peers;
};

TEST_F(PeersTest, EndAfterSomeTimeAndAreMadeAnew) {
    for (int times = 0; times < 2; ++times) {
        auto peer = connect();
        ASSERT_TRUE(peer && peer->session(1, Peers::in_time()));
        ASSERT_TRUE(clients_become(1));
        // Somebody has it, however long.
        std::this_thread::sleep_for(20ms);
        peers->close_idle(10ms);
        EXPECT_FALSE(peer->end());
        // Nobody has, but it is not long ago.
        peer.reset();
        peers->close_idle(1h);
        std::this_thread::sleep_for(20ms);
        EXPECT_EQ(serving->counts().clients, 1);
        peers->close_idle(10ms);
        EXPECT_TRUE(clients_become(0));
        EXPECT_EQ(peers->find("n"), nullptr);
    }
}

}  // namespace
}  // namespace sidestep::wire
