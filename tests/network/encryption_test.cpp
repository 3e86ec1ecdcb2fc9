// What travels between machines of which one at least asks for encryption.
#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "tests/network/nodes.hpp"
#include "tests/network/proxy.hpp"

namespace sidestep {
namespace {

using test::Proxy;

const std::string pattern = "these words are not for others;";

std::string text_of_pattern(std::size_t size) {
    std::string text;
    while (text.size() < size) text += pattern;
    text.resize(size);
    return text;
}

class Encryption : public test::Nodes {
protected:
    ~Encryption() override { ::unsetenv("SIDESTEP_NETWORK"); }

    static Context machine_that(bool encrypts, const std::string& nodes = {}, const std::string& key = {}) {
        ContextOptions options{"dgx-h100"};
        options.nodes = nodes;
        options.key_file = key;
        options.network_encryption = encrypts;
        auto opened = Context::open(std::move(options));
        if (!opened) abort_on_error(opened.error());
        return std::move(*opened);
    }
    // The node serves anew, and is reached through a proxy.
    void serve_as(bool encrypts) {
        serving.reset();
        machine = machine_that(encrypts);
        serve(allow);
        proxy = std::make_unique<Proxy>(port());
        proxy->look_for(pattern);
    }
    Context client_that(bool encrypts) const {
        return machine_that(encrypts, "n=" + proxy->address(), path("key"));
    }
    static bool told(const Receipt& receipt) {
        return std::any_of(receipt.notes.begin(), receipt.notes.end(), [](const std::string& note) {
            return note.find("n was reached by tcp (encrypted by ") != std::string::npos;
        });
    }

    std::unique_ptr<Proxy> proxy;
};

class EncryptionOfEnds : public Encryption, public testing::WithParamInterface<std::tuple<bool, bool>> {};

// Small and large, both ways, in memory and in a file.
TEST_P(EncryptionOfEnds, NobodyElseReads) {
    const auto [node, client] = GetParam();
    serve_as(node);
    const Context there = client_that(client);
    for (const std::size_t size : {std::size_t{100}, std::size_t{70'000}, std::size_t{20} << 20}) {
        const std::string text = text_of_pattern(size);
        std::string back(size, '?');
        const auto memory = there.allocate(Place::gpu(1).on("n"), size);
        ASSERT_TRUE(memory) << memory.error().to_string();
        const int before = proxy->seen();
        const auto put = there.copy(Buffer::host(text.data(), size), memory->buffer()).wait();
        ASSERT_TRUE(put) << put.error().to_string();
        const int between = proxy->seen();
        const auto get = there.copy(memory->buffer(), Buffer::host(back.data(), size)).wait();
        ASSERT_TRUE(get) << get.error().to_string();
        EXPECT_TRUE(back == text);
        const bool plain = !node && !client;
        EXPECT_EQ(between > before, plain) << size;
        EXPECT_EQ(proxy->seen() > between, plain) << size;
        EXPECT_EQ(told(*put), !plain);
        EXPECT_EQ(told(*get), !plain);
    }
}

INSTANTIATE_TEST_SUITE_P(Who, EncryptionOfEnds, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& who) {
                             return std::string(std::get<0>(who.param) ? "node" : "no_node") +
                                    (std::get<1>(who.param) ? "_client" : "_no_client");
                         });

// A changed byte is not taken for good, and what was lost comes over the next connection.
TEST_F(Encryption, ChangedBytesEndAConnection) {
    serve_as(true);
    const Context there = client_that(false);
    const std::string text = test::text_of(4 << 20, 1);
    const auto memory = there.allocate(Place::host().on("n"), text.size());
    ASSERT_TRUE(memory) << memory.error().to_string();
    proxy->damage(2, 1'000'000);  // the first is the control connection
    const auto done = there.copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(std::any_of(done->notes.begin(), done->notes.end(), [](const std::string& note) {
        return note.find("was lost once") != std::string::npos;
    }));
    std::string back(text.size(), '?');
    ASSERT_TRUE(there.copy(memory->buffer(), Buffer::host(back.data(), back.size())).wait());
    EXPECT_TRUE(back == text);
}

// Where an end has only what cannot be encrypted, it is told why.
TEST_F(Encryption, IsRefusedWhereItCannotBe) {
    ::setenv("SIDESTEP_NETWORK", "verbs", 1);
    ContextOptions options{"dgx-h100"};
    options.network_encryption = true;
    const auto refused = Context::open(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument) << refused.error().to_string();
    EXPECT_NE(refused.error().message.find("encrypted"), std::string::npos);

    // A client with a plugin only, of a node that encrypts.
    ::setenv("SIDESTEP_NETWORK", "tcp", 1);
    serve_as(true);
    ::setenv("SIDESTEP_NETWORK", "ncclnet", 1);
    ::setenv("SIDESTEP_NCCL_NET", SIDESTEP_FAKE_NCCL_NET, 1);
    const Context plugin = client_that(false);
    ::unsetenv("SIDESTEP_NCCL_NET");
    const auto memory = plugin.allocate(Place::host().on("n"), 4096);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::unsupported) << memory.error().to_string();
    EXPECT_NE(memory.error().message.find("only tcp encrypts"), std::string::npos)
        << memory.error().to_string();
}

// Past this machine: bytes whose client asks for encryption do not go between two nodes as they are.
TEST_F(Encryption, TwoNodesEncryptWhatAClientEncrypts) {
    for (const bool nodes : {false, true}) {
        serve_as(nodes);
        Context other = machine_that(false);
        ServeOptions options;
        options.listen = "127.0.0.1:0";
        options.allow = allow;
        options.key_file = path("key");
        const auto second = other.serve(options);
        ASSERT_TRUE(second) << second.error().to_string();
        const std::string at = second->addresses().front();
        Proxy to_second(at.substr(at.rfind(':') + 1));
        to_second.look_for(pattern);
        const Context there =
            machine_that(true, "n=" + proxy->address() + ",o=" + to_second.address(), path("key"));
        const std::string text = text_of_pattern(1 << 20);
        std::string back(text.size(), '?');
        const auto from = there.allocate(Place::host().on("n"), text.size());
        const auto to = there.allocate(Place::host().on("o"), text.size());
        ASSERT_TRUE(from && to);
        ASSERT_TRUE(there.copy(Buffer::host(text.data(), text.size()), from->buffer()).wait());
        const auto passed = there.copy(from->buffer(), to->buffer()).wait();
        ASSERT_TRUE(passed) << passed.error().to_string();
        ASSERT_TRUE(there.copy(to->buffer(), Buffer::host(back.data(), back.size())).wait());
        EXPECT_TRUE(back == text);
        EXPECT_EQ(proxy->seen() + to_second.seen(), 0);
        // Straight where the nodes encrypt, else by this machine.
        EXPECT_EQ(passed->route->lanes.front().hops.size(), nodes ? 1u : 2u);
    }
}

}  // namespace
}  // namespace sidestep
