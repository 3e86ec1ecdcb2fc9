// A node that ends while a call of a client hangs.
#include <atomic>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include "backends/tcp/tcp_engine.hpp"
#include "tests/network/hanging_files.hpp"
#include "tests/network/link_rig.hpp"
#include "wire/peers.hpp"
#include "wire/server.hpp"

namespace sidestep::wire {
namespace {

struct OwnMachine {
    Topology topology = Topology::open("dgx-h100").value();
    backend::Registry registry;
    transfer::SharedMemory shared{registry, {}};
    transfer::Engine engine{topology, registry};
};

std::shared_ptr<const Engines> sockets() {
    std::vector<std::unique_ptr<backend::NetworkEngine>> all;
    all.push_back(std::make_unique<backends::tcp::Engine>(1));
    return std::make_shared<const Engines>(std::move(all));
}

TEST(ServerEnd, ACallThatHangsKeepsWhatItUses) {
    const std::string key(32, 'k');
    std::atomic<bool> stuck{true};
    std::atomic<int> calls{0};
    auto machine = std::make_shared<OwnMachine>();
    const std::weak_ptr<OwnMachine> kept = machine;
    machine->registry.add(std::make_unique<test::HangingFiles>(stuck, calls), machine->topology);
    ServerOptions options;
    options.listen = {{"127.0.0.1", 0}};
    options.allowed = Allowances::parse("file:/etc").value();
    options.key = key;
    auto server =
        Server::start({machine->topology, machine->registry, machine->engine, machine->shared, machine},
                      sockets(), std::move(options))
            .value();
    Peers peers(
        sockets(), "here", [&]() -> Result<std::string> { return key; }, 4);
    const auto peer = peers.get({"n", server->addresses()}).value();
    peer->tell(Word::describe, to_body(Buffer::file("/etc/passwd")));
    EXPECT_TRUE(test::comes([&] { return calls > 0; }));
    server.reset();
    machine.reset();
    EXPECT_FALSE(kept.expired()) << "the machine has gone, and a call is not through with it";
    stuck = false;
    stuck.notify_all();
    EXPECT_TRUE(test::comes([&] { return kept.expired(); }));
}

}  // namespace
}  // namespace sidestep::wire
