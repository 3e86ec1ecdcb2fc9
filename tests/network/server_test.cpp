// A node that ends in the midst of something.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

const std::string common_key(32, 'k');

std::shared_ptr<const Engines> engines_of(std::unique_ptr<backend::NetworkEngine> one) {
    std::vector<std::unique_ptr<backend::NetworkEngine>> all;
    all.push_back(std::move(one));
    return std::make_shared<const Engines>(std::move(all));
}

std::shared_ptr<const Engines> sockets() {
    return engines_of(std::make_unique<backends::tcp::Engine>(1));
}

std::unique_ptr<Server> serve(const std::shared_ptr<OwnMachine>& machine,
                              std::shared_ptr<const Engines> engines) {
    ServerOptions options;
    options.listen = {{"127.0.0.1", 0}};
    options.allowed = Allowances::parse("file:/etc,host=1MiB").value();
    options.key = common_key;
    return Server::start({machine->topology, machine->registry, machine->engine, machine->shared, machine},
                         std::move(engines), std::move(options))
        .value();
}

driver::TcpSocket connect_to(const Server& server) {
    const HostPort& at = server.addresses().front();
    const auto there = driver::SocketAddress::resolve(at.host, at.port).value().front();
    return driver::TcpSocket::connect(there, test::patience()).value();
}

TEST(ServerEnd, ACallThatHangsKeepsWhatItUses) {
    std::atomic<bool> stuck{true};
    std::atomic<int> calls{0};
    auto machine = std::make_shared<OwnMachine>();
    const std::weak_ptr<OwnMachine> kept = machine;
    machine->registry.add(std::make_unique<test::HangingFiles>(stuck, calls), machine->topology);
    auto server = serve(machine, sockets());
    Peers peers(
        sockets(), "here", []() -> Result<std::string> { return common_key; }, 4);
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

// Sockets, but the one who asks for a link may have to wait for it.
class SlowEngine final : public backend::NetworkEngine {
public:
    SlowEngine(std::atomic<bool>& holds, std::atomic<int>& held, std::shared_ptr<Session>& last)
        : holds_(holds), held_(held), last_(last) {}
    std::string_view name() const override { return "tcp"; }
    std::size_t useful_sockets() const override { return 1; }
    std::shared_ptr<backend::Link> link(std::weak_ptr<backend::LinkOwner> owner) override {
        if (holds_) {
            last_ = std::dynamic_pointer_cast<Session>(owner.lock());
            ++held_;
            holds_.wait(true);
        }
        return sockets_.link(std::move(owner));
    }

private:
    backends::tcp::Engine sockets_{1};
    std::atomic<bool>& holds_;
    std::atomic<int>& held_;
    std::shared_ptr<Session>& last_;
};

TEST(ServerEnd, WhoIsLetInMeanwhileIsEndedToo) {
    std::atomic<bool> holds{false};
    std::atomic<int> held{0};
    std::shared_ptr<Session> last;
    const auto engines = engines_of(std::make_unique<SlowEngine>(holds, held, last));
    auto server = serve(std::make_shared<OwnMachine>(), engines);
    Peers peers(
        sockets(), "here", []() -> Result<std::string> { return common_key; }, 4);
    const auto peer = peers.get({"n", server->addresses()}).value();
    holds = true;
    const auto newcomer = connect_to(*server);
    ASSERT_TRUE(test::say(newcomer, "\x16"));  // as TLS begins
    ASSERT_TRUE(test::comes([&] { return held == 1; }));
    std::thread ends([&] { server.reset(); });
    // A node that tells its clients first, and lets others in after that, does it within this time.
    const auto until = test::Clock::now() + std::chrono::milliseconds(500);
    while (!peer->end() && test::Clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    holds = false;
    holds.notify_all();
    ends.join();
    EXPECT_TRUE(last->end()) << "nobody has ended its session";
    EXPECT_TRUE(test::comes([&] { return peer->end().has_value(); }));
}

}  // namespace
}  // namespace sidestep::wire
