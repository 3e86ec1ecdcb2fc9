// The page over HTTP that has what a node has counted.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/network/loopback.hpp"
#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

class MetricsPageTest : public test::Nodes {
protected:
    MetricsPageTest() {
        ServeOptions options;
        options.listen = "127.0.0.1:0";
        options.allow = allow;
        options.key_file = path("key");
        options.metrics = "127.0.0.1:0";
        auto started = machine.serve(options);
        if (!started) {
            ADD_FAILURE() << started.error().to_string();
            return;
        }
        serving = std::make_unique<Serving>(std::move(*started));
        address = serving->addresses().front();
        here = std::make_unique<Context>(*client());
    }
    std::string page_port() const {
        const std::string& at = serving->metrics_addresses().front();
        return at.substr(at.rfind(':') + 1);
    }
    // All that is answered, until the node hangs up.
    std::string ask(const std::string& request) const {
        const test::RawSocket socket(page_port());
        socket.send(request);
        return socket.receive(1 << 20, 20'000);
    }
    std::string get() const { return ask("GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n"); }
};

TEST_F(MetricsPageTest, HasWhatTheNodeHasDone) {
    const std::string before = get();
    EXPECT_TRUE(before.starts_with("HTTP/1.1 200 OK\r\n")) << before;
    EXPECT_NE(before.find("\nsidestep_clients 0\n"), std::string::npos) << before;
    const auto memory = here->allocate(Place::gpu(0).on("n"), 4096);
    ASSERT_TRUE(memory) << memory.error().to_string();
    std::string text = test::text_of(4096);
    ASSERT_TRUE(here->copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait());
    ASSERT_FALSE(here->size(Buffer::file("/etc/passwd").on("n")));
    const std::string after = get();
    for (const char* line :
         {"sidestep_clients 1", "sidestep_place_bytes_total{place=\"gpu\",direction=\"received\"} 4096",
          "sidestep_requests_total{word=\"allocate\",outcome=\"ok\"} 1",
          "sidestep_requests_total{word=\"describe\",outcome=\"permission_denied\"} 1"})
        EXPECT_NE(after.find("\n" + std::string(line) + "\n"), std::string::npos) << line << "\n" << after;
    // The page is the text.
    const std::string body = after.substr(after.find("\r\n\r\n") + 4);
    EXPECT_NE(after.find("Content-Length: " + std::to_string(body.size()) + "\r\n"), std::string::npos);
    EXPECT_NE(serving->metrics().find("sidestep_clients 1\n"), std::string::npos);
}

TEST_F(MetricsPageTest, SumsDoNotFallWhenClientsLeave) {
    constexpr int clients = 50;
    std::atomic<bool> over{false};
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i)
        readers.emplace_back([&] {
            for (Bytes last = 0; !over;) {
                const Bytes now = serving->counts().received;
                EXPECT_GE(now, last);
                last = now;
            }
        });
    here.reset();
    std::string text = test::text_of(4096);
    for (int i = 0; i < clients; ++i) {
        const auto one = client();
        const auto memory = one->allocate(Place::host().on("n"), text.size());
        EXPECT_TRUE(memory && one->copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait());
    }
    EXPECT_TRUE(wire::test::comes([&] { return serving->counts().clients == 0; }));
    over = true;
    for (std::thread& one : readers) one.join();
    EXPECT_EQ(serving->counts().received, clients * text.size());
}

TEST_F(MetricsPageTest, NothingElseIsAnswered) {
    EXPECT_TRUE(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    EXPECT_TRUE(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    EXPECT_TRUE(ask("\x16\x03\x01 nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\nX: " + std::string(9000, 'x')).starts_with("HTTP/1.1 400 "));
    const test::RawSocket silent(page_port()), half(page_port());
    half.send("GET /metrics HTTP/1.1\r\nHost: n\r\n");
    EXPECT_TRUE(silent.ended(20'000));
    EXPECT_TRUE(half.ended(20'000));
    EXPECT_TRUE(get().starts_with("HTTP/1.1 200 "));
}

TEST_F(MetricsPageTest, ManyVisitorsDoNotKeepOthersOut) {
    std::vector<std::unique_ptr<test::RawSocket>> silent;
    for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<test::RawSocket>(page_port()));
    EXPECT_TRUE(get().starts_with("HTTP/1.1 200 "));
    EXPECT_TRUE(silent.front()->ended(3000)) << "the first had to make room, before its time was over";
}

TEST_F(MetricsPageTest, GoesWithTheNode) {
    const test::RawSocket silent(page_port());
    const std::string at = page_port();
    serving.reset();
    EXPECT_TRUE(silent.ended(3000));
    EXPECT_FALSE(test::RawSocket(at).send("GET /metrics HTTP/1.1\r\n\r\n"));
}

TEST_F(MetricsPageTest, WhereItCannotBeIsAnError) {
    ServeOptions options;
    options.listen = "127.0.0.1:0";
    options.key_file = path("key");
    options.metrics = serving->metrics_addresses().front();
    const auto taken = machine.serve(options);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::invalid_argument) << taken.error().to_string();
    options.metrics = "127.0.0.1:port";
    EXPECT_FALSE(machine.serve(options));
    options.metrics.clear();
    const auto none = machine.serve(options);
    ASSERT_TRUE(none) << none.error().to_string();
    EXPECT_TRUE(none->metrics_addresses().empty());
    EXPECT_NE(none->metrics().find("sidestep_clients 0\n"), std::string::npos);
}

}  // namespace
}  // namespace sidestep
