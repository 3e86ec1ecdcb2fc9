// Plain sockets to a node, over the public API, and who does not get them.
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/network/nodes.hpp"
#include "wire/data_hello.hpp"

namespace sidestep {
namespace {

class ProbeTest : public test::Nodes {
protected:
    // A sample of the node's page.
    double metric(const std::string& name) const {
        const std::string text = serving->metrics();
        const std::size_t at = text.find("\n" + name + " ");
        return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
    }
    bool comes(const std::string& name, double value) const {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (metric(name) != value) {
            if (std::chrono::steady_clock::now() > until) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return true;
    }
};

TEST_F(ProbeTest, MeasuresBothWays) {
    for (const std::size_t sockets : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{16}}) {
        auto probe = here->probe_network("n", sockets);
        ASSERT_TRUE(probe) << probe.error().to_string();
        EXPECT_TRUE(sockets == 0 || probe->sockets() == sockets);
        EXPECT_GE(probe->sockets(), 1u);
        EXPECT_EQ(probe->node(), "the-node");
        EXPECT_EQ(probe->address(), address);
        for (const Bytes bytes : {Bytes{1}, Bytes{17}, 3_MiB}) {
            const auto there = probe->send(bytes), back = probe->receive(bytes);
            ASSERT_TRUE(there) << there.error().to_string();
            ASSERT_TRUE(back) << back.error().to_string();
            EXPECT_GT(*there, 0);
            EXPECT_GT(*back, 0);
        }
        const auto echoed = probe->echo(3);
        ASSERT_TRUE(echoed) << echoed.error().to_string();
        EXPECT_GT(*echoed, 0);
        EXPECT_EQ(metric("sidestep_probes"), static_cast<double>(probe->sockets()));
        for (const auto& none :
             {probe->send(0), probe->receive(0), probe->echo(0), probe->send(Bytes{2} << 40)}) {
            ASSERT_FALSE(none);
            EXPECT_EQ(none.error().code, ErrorCode::invalid_argument);
        }
        EXPECT_TRUE(probe->send(1)) << "what is refused here spoils nothing";
        probe = Error{};
        EXPECT_TRUE(comes("sidestep_probes", 0));
    }
}

// It is no copy: it touches no place.
TEST_F(ProbeTest, NeedsNoAllowance) {
    serve("");
    auto probe = here->probe_network("n");
    ASSERT_TRUE(probe) << probe.error().to_string();
    EXPECT_TRUE(probe->send(1000));
    EXPECT_EQ(metric(R"(sidestep_link_bytes_total{direction="received"})"), 0);
}

TEST_F(ProbeTest, ClosedForIdlenessItIsOpenedAgain) {
    auto probe = here->probe_network("n", 2);
    ASSERT_TRUE(probe);
    std::this_thread::sleep_for(std::chrono::milliseconds(10'500));
    EXPECT_TRUE(probe->send(1000));
    EXPECT_TRUE(comes("sidestep_probes", 2));
}

TEST_F(ProbeTest, TooManyAreTurnedAway) {
    auto most = here->probe_network("n", 16);
    ASSERT_TRUE(most) << most.error().to_string();
    const auto beside = here->probe_network("n", 16);
    ASSERT_TRUE(beside) << beside.error().to_string();
    const auto more = here->probe_network("n", 1);
    ASSERT_FALSE(more);
    EXPECT_TRUE(more.error().code == ErrorCode::end_of_file || more.error().code == ErrorCode::io_error)
        << more.error().to_string();
    EXPECT_TRUE(comes(R"(sidestep_refused_total{reason="probe"})", 1))
        << "it is hung up on before it is counted";
    const auto over = here->probe_network("n", 17);
    ASSERT_FALSE(over);
    EXPECT_EQ(over.error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(most->send(1000)) << "those that are there go on";
    EXPECT_TRUE(here->allocate(Place::host().on("n"), 4096)) << "and so do copies";
}

TEST_F(ProbeTest, WithAnotherKeyThereIsNone) {
    test::put(path("other"), std::string(64, 'a') + "\n");
    std::filesystem::permissions(path("other"), std::filesystem::perms::owner_read);
    auto stranger = client(path("other"));
    ASSERT_TRUE(stranger);
    const auto probe = stranger->probe_network("n");
    ASSERT_FALSE(probe);
    EXPECT_EQ(probe.error().code, ErrorCode::permission_denied) << probe.error().to_string();
    EXPECT_TRUE(comes(R"(sidestep_refused_total{reason="key"})", 1));
}

// A stranger who knows the number of a session, and not its key.
TEST_F(ProbeTest, WithoutTheSessionsKeyThereIsNone) {
    auto probe = here->probe_network("n", 1);
    ASSERT_TRUE(probe);
    int answered = 0;
    for (std::uint64_t session = 1; session <= 8; ++session) {
        const test::RawSocket socket(port());
        socket.send(wire::data_hello(session, std::string(wire::nonce_bytes, 'n'), wire::DataKind::probe));
        const std::string answer = socket.receive(wire::nonce_bytes + wire::code_bytes, 5000);
        if (!answer.empty()) {
            ++answered;
            // The node's own code, and then one that would fit a drain.
            socket.send(answer.substr(wire::nonce_bytes));
            socket.send("d" + std::string(8, '\0'));
        }
        EXPECT_TRUE(socket.ended(5000)) << session;
    }
    EXPECT_GE(answered, 1) << "of the session that there is";
    EXPECT_EQ(metric("sidestep_probes"), 1);
    EXPECT_EQ(metric(R"(sidestep_refused_total{reason="data_socket"})"), 8);
}

TEST_F(ProbeTest, TheNodeGoesUnderIt) {
    auto idle = here->probe_network("n", 2);
    auto busy = here->probe_network("n", 2);
    ASSERT_TRUE(idle && busy);
    auto sending = std::async(std::launch::async, [&] { return busy->send(Bytes{1} << 40); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    serving.reset();
    const auto sent = sending.get();
    ASSERT_FALSE(sent);
    EXPECT_TRUE(sent.error().code == ErrorCode::io_error || sent.error().code == ErrorCode::end_of_file)
        << sent.error().to_string();
    EXPECT_FALSE(idle->send(1000));
    EXPECT_FALSE(idle->send(1000)) << "again";
}

TEST_F(ProbeTest, TheClientGoesUnderIt) {
    auto probe = here->probe_network("n", 2);
    ASSERT_TRUE(probe);
    probe = Error{};
    here.reset();
    EXPECT_TRUE(comes("sidestep_probes", 0));
    EXPECT_TRUE(comes("sidestep_clients", 0));
}

TEST_F(ProbeTest, NobodyListens) {
    serving.reset();
    const auto probe = here->probe_network("n");
    ASSERT_FALSE(probe);
    EXPECT_EQ(probe.error().code, ErrorCode::not_found) << probe.error().to_string();
    const auto name = here->probe_network("a b");
    ASSERT_FALSE(name);
    EXPECT_EQ(name.error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace sidestep
