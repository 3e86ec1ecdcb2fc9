// An engine that does not bring the bytes it is given is found out before anything of a copy goes over it. And what a node
// lends to another by a token. And strangers, who show no key.
#include "wire/trial.hpp"

#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "backends/host/host_backend.hpp"
#include "backends/tcp/tcp_engine.hpp"
#include "tests/network/hanging_files.hpp"
#include "tests/network/link_rig.hpp"
#include "wire/peers.hpp"
#include "wire/server.hpp"

namespace sidestep::wire {
namespace {

enum class Lies { never, in_one_byte, by_silence, by_hanging };

// What takes a socket by Lies::by_hanging does not come back while this is set.
std::atomic<bool> hangs{false};
std::atomic<int> hanging{0};

// Sockets under another name, which change a byte of each large push, or send none.
class OtherEngine final : public backend::NetworkEngine {
public:
    explicit OtherEngine(Lies lies, std::shared_ptr<std::atomic<bool>> recovered = {})
        : lies_(lies), recovered_(std::move(recovered)) {}
    bool works() const override { return !recovered_ || *recovered_; }
    bool has_recovered() const override { return recovered_ && *recovered_; }
    std::string_view name() const override { return "other"; }
    std::size_t useful_sockets() const override { return 1; }
    std::shared_ptr<backend::Link> link(std::weak_ptr<backend::LinkOwner> owner) override {
        return std::make_shared<OtherLink>(sockets_.link(std::move(owner)), lies_);
    }

private:
    class OtherLink final : public backend::Link {
    public:
        OtherLink(std::shared_ptr<backend::Link> inner, Lies lies) : inner_(std::move(inner)), lies_(lies) {}
        Result<void> add(int socket, const backend::SocketKeys& keys) override {
            if (lies_ == Lies::by_hanging) {
                ++hanging;
                hangs.wait(true);
            }
            return inner_->add(socket, keys);
        }
        std::size_t sockets() const override { return inner_->sockets(); }
        void send(const backend::Frame& frame, const void* payload, std::function<void()> sent) override {
            if (frame.kind != backend::Frame::Kind::push || lies_ == Lies::never || lies_ == Lies::by_hanging)
                return inner_->send(frame, payload, std::move(sent));
            if (lies_ == Lies::by_silence) return sent();
            const auto changed = std::make_shared<std::string>(static_cast<const char*>(payload), frame.size);
            if (!changed->empty()) changed->back() ^= 1;
            inner_->send(frame, changed->data(), [changed, sent = std::move(sent)] { sent(); });
        }
        void look() override { inner_->look(); }
        void resume(Resume whom) override { inner_->resume(whom); }
        void close(Error why) override { inner_->close(std::move(why)); }
        void end(Error why) override { inner_->end(std::move(why)); }

    private:
        const std::shared_ptr<backend::Link> inner_;
        const Lies lies_;
    };
    const Lies lies_;
    const std::shared_ptr<std::atomic<bool>> recovered_;  // null: it cannot tell
    backends::tcp::Engine sockets_{1};
};

std::shared_ptr<const Engines> engines(Lies lies, bool sockets_too,
                                       std::shared_ptr<std::atomic<bool>> recovered = {}) {
    std::vector<std::unique_ptr<backend::NetworkEngine>> all;
    all.push_back(std::make_unique<OtherEngine>(lies, std::move(recovered)));
    if (sockets_too) all.push_back(std::make_unique<backends::tcp::Engine>(1));
    return std::make_shared<const Engines>(std::move(all));
}

// A node and a client of it.
struct Two {
    Two(Lies nodes, Lies clients, bool sockets_too, std::shared_ptr<std::atomic<bool>> recovered = {},
        std::size_t most_clients = 4096)
        : theirs(engines(nodes, sockets_too, recovered)) {
        registry.add(backends::host::create({}), topology);
        ServerOptions options;
        options.listen = {{"127.0.0.1", 0}};
        options.allowed = Allowances::parse("host=1MiB,file:/etc").value();
        options.key = key;
        options.node = "the-node";
        options.most_clients = most_clients;
        server = Server::start({topology, registry, engine, shared}, theirs, std::move(options)).value();
        peers = std::make_unique<Peers>(
            engines(clients, sockets_too, recovered), "here", [this]() -> Result<std::string> { return key; },
            4);
    }
    Result<std::shared_ptr<Peer>> peer() const { return peers->get({"n", server->addresses()}); }

    const std::string key = std::string(32, 'k');
    Topology topology = Topology::open("dgx-h100").value();
    backend::Registry registry;
    transfer::SharedMemory shared{registry, {}};
    transfer::Engine engine{topology, registry};
    std::shared_ptr<const Engines> theirs;
    std::unique_ptr<Server> server;
    std::unique_ptr<Peers> peers;
};

class Trial : public testing::Test {
protected:
    void SetUp() override {
        if (auto loaded = driver::Tls::load(); !loaded) GTEST_SKIP() << loaded.error().to_string();
    }
};

TEST_F(Trial, WhoLiesIsLeftForSockets) {
    struct Case {
        Lies node, client;
        const char* used;
    };
    const Case cases[] = {
        {Lies::never, Lies::never, "other"},
        {Lies::never, Lies::in_one_byte, "tcp"},
        {Lies::in_one_byte, Lies::never, "tcp"},
        {Lies::by_silence, Lies::never, "tcp"},
    };
    for (const auto& [node, client, used] : cases) {
        const Two two(node, client, true);
        const auto peer = two.peer();
        ASSERT_TRUE(peer) << peer.error().to_string();
        const auto session = (*peer)->session(1, test::patience());
        ASSERT_TRUE(session) << session.error().to_string();
        EXPECT_EQ((*peer)->engine(), used);
        // It is of use, and nothing is tried out again.
        EXPECT_TRUE((*peer)->session(1, test::patience()));
        EXPECT_TRUE((*peer)->ask(Word::trial, {}, test::patience())) << "regions of trials were given back";
    }
}

// After a fall to sockets the better engine is used again when it has recovered and its pause is over; one that
// cannot tell never is.
TEST_F(Trial, EngineThatRecoversIsUsedAgain) {
    const auto fall = [](Peer& peer) {
        const auto session = peer.session(1, test::patience()).value();
        EXPECT_EQ(peer.engine(), "other");
        session->link()->close({ErrorCode::io_error, "a port is down", "test", {}});
        EXPECT_TRUE(test::comes([&] { return session->renewed() == 1; }));
        EXPECT_EQ(peer.engine(), "tcp");
        return Peer::Time::clock::now();
    };
    const auto recovered = std::make_shared<std::atomic<bool>>(true);
    const Two two(Lies::never, Lies::never, true, recovered), stubborn(Lies::never, Lies::never, true);
    const auto peer = two.peer().value(), other = stubborn.peer().value();
    const auto fell = fall(*peer);
    fall(*other);
    EXPECT_TRUE(peer->session(1, test::patience()));
    EXPECT_EQ(peer->engine(), "tcp") << "its pause is not over";
    *recovered = false;
    std::this_thread::sleep_for(Peer::engine_pause);
    EXPECT_TRUE(peer->session(1, test::patience()));
    EXPECT_EQ(peer->engine(), "tcp");
    EXPECT_EQ(peer->take_news(), "");
    *recovered = true;
    EXPECT_TRUE(test::comes([&] { return peer->session(1, test::patience()) && peer->engine() == "other"; }));
    EXPECT_GE(Peer::Time::clock::now() - fell, Peer::engine_pause);
    EXPECT_EQ(peer->take_news(), "n is reached by other again");
    EXPECT_EQ(peer->take_news(), "");
    EXPECT_TRUE(other->session(1, test::patience()));
    EXPECT_EQ(other->engine(), "tcp");
}

// Whatever waits for them meanwhile.
TEST_F(Trial, LostConnectionsDoNotWaitForOtherTasks) {
    const Two two(Lies::never, Lies::never, true);
    const auto session = two.peer().value()->session(1, test::patience()).value();
    std::atomic<bool> over{false};
    for (int i = 0; i < 64; ++i) ASSERT_TRUE(two.peers->workers().add([&over] { over.wait(false); }));
    session->link()->close({ErrorCode::io_error, "a port is down", "test", {}});
    EXPECT_TRUE(test::comes([&] { return session->renewed() == 1; }));
    over = true;
    over.notify_all();
}

// An engine of a node that does not come back from a socket that it was given.
TEST_F(Trial, WhoHangsHoldsUpNoQuestion) {
    hangs = true;
    const Two two(Lies::by_hanging, Lies::never, true);
    const auto peer = two.peer().value();
    std::thread opens([&] { static_cast<void>(peer->session(1, test::patience())); });
    EXPECT_TRUE(test::comes([&] { return hanging > 0; }));
    const auto lent = peer->ask(Word::lend, to_body(std::uint64_t{0}), test::patience());
    EXPECT_TRUE(lent) << lent.error().to_string();
    hangs = false;
    hangs.notify_all();
    opens.join();
}

TEST_F(Trial, FilesThatHangHoldUpNoOtherQuestion) {
    hangs = true;
    const int before = hanging;
    Two two(Lies::never, Lies::never, true);
    two.registry.add(std::make_unique<test::HangingFiles>(hangs, hanging), two.topology);
    const auto peer = two.peer().value();
    for (int i = 0; i < 16; ++i) peer->tell(Word::describe, to_body(Buffer::file("/etc/passwd")));
    EXPECT_TRUE(test::comes([&] { return hanging >= before + 8; }));
    const auto lent = peer->ask(Word::lend, to_body(std::uint64_t{0}), test::patience());
    EXPECT_TRUE(lent) << lent.error().to_string();
    hangs = false;
    hangs.notify_all();
}

// One that no message holds would end the connection, and the next one.
TEST_F(Trial, PathsThatAreTooLongAreRefusedAsSuch) {
    const Two two(Lies::never, Lies::never, true);
    const auto peer = two.peer().value();
    const auto channel = peer->channel();
    for (const std::size_t size : {longest_path - 1, longest_path, std::size_t{60'000}, longest_message}) {
        const std::string path = "/" + std::string(size, 'x');
        for (const auto& [word, body] : {std::pair(Word::describe, to_body(Buffer::file(path))),
                                         std::pair(Word::list, to_body(ListRequest{path, {}}))}) {
            const auto error = peer->ask(word, body, test::patience()).error();
            EXPECT_EQ(error.code, ErrorCode::invalid_argument) << error.to_string();
            EXPECT_NE(error.message.find("too long"), std::string::npos) << error.to_string();
        }
    }
    EXPECT_TRUE(peer->ask(Word::lend, to_body(std::uint64_t{0}), test::patience()));
    EXPECT_EQ(peer->channel(), channel);
}

TEST_F(Trial, WhoseConnectionIsLostComesAgainToANodeThatIsFull) {
    const Two two(Lies::never, Lies::never, true, {}, 1);
    const auto peer = two.peer().value();
    const auto channel = peer->channel();
    channel->close(test::some_error());
    EXPECT_TRUE(test::comes([&] { return peer->channel() != channel; }));
    EXPECT_TRUE(peer->ask(Word::lend, to_body(std::uint64_t{0}), test::patience()));
}

// Nobody knows of what an answer names that nobody has waited for.
TEST_F(Trial, WhatIsAnsweredTooLateIsGivenBack) {
    const Two two(Lies::never, Lies::never, true);
    const auto peer = two.peer().value();
    const auto ask = [&](Word word, const std::string& body) {
        return peer->ask(word, body, test::patience());
    };
    const Bytes all = Bytes{1} << 20;
    const std::string whole = to_body(AllocateRequest{Place::host(), all}),
                      little = to_body(AllocateRequest{Place::host(), 4096});
    const auto allocate = [&](const std::string& body) {
        const auto answer = ask(Word::allocate, body);
        return answer ? std::optional(parse_allocated(*answer)->address) : std::nullopt;
    };
    const auto address = allocate(little).value();
    const auto region = [&] { return parse_attached(ask(Word::trial, {}).value())->region; };
    const AttachRequest part{
        Buffer::memory(Place::host(), reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), 4096),
        {}};
    const auto answered = [&](const char* word) {
        const std::string line =
            std::string("sidestep_requests_total{word=\"") + word + "\",outcome=\"ok\"} ";
        const std::string text = two.server->metrics();
        return std::stoi(text.substr(text.find(line) + line.size()));
    };
    // Asks until nobody has waited; answers how often that was. What was answered in time is given back here.
    const auto too_late = [&](Word word, const char* name, const std::function<std::string()>& body) {
        const int before = answered(name);
        int times = 1;
        for (; const auto answer = peer->ask(word, body(), test::Clock::now()); ++times)
            word == Word::allocate ? peer->tell(Word::free, to_body(parse_allocated(*answer)->address))
                                   : peer->tell(Word::detach, to_body(parse_attached(*answer)->region));
        EXPECT_TRUE(test::comes([&] { return answered(name) >= before + times; })) << name;
        return static_cast<std::uint64_t>(times);
    };
    const std::uint64_t mine = parse_attached(ask(Word::attach, to_body(part)).value())->region;
    const auto reach = [&] {
        const auto token = parse_token(ask(Word::lend, to_body(mine)).value()).value();
        return to_body(ReachRequest{two.server->addresses().front().to_string(), token, 1});
    };
    struct Case {
        Word word;
        const char* name;
        std::function<std::string()> body;
    };
    for (const auto& [word, name, body] :
         {Case{Word::trial, "trial", [] { return std::string(); }},
          Case{Word::attach, "attach", [&] { return to_body(part); }}, Case{Word::reach, "reach", reach}}) {
        const std::uint64_t before = region();
        const std::uint64_t times = too_late(word, name, body);
        for (std::uint64_t number = before + 1; number <= before + times; ++number)
            EXPECT_TRUE(test::comes([&] { return !ask(Word::report, to_body(number)); })) << name;
    }
    peer->tell(Word::detach, to_body(mine));
    peer->tell(Word::free, to_body(address));
    too_late(Word::allocate, "allocate", [&] { return little; });
    EXPECT_TRUE(test::comes([&] { return allocate(whole).has_value(); }));
}

TEST_F(Trial, WithoutSocketsItFails) {
    const Two two(Lies::in_one_byte, Lies::never, false);
    const auto peer = two.peer();
    ASSERT_TRUE(peer) << peer.error().to_string();
    const auto session = (*peer)->session(1, test::patience());
    ASSERT_FALSE(session);
    EXPECT_NE(session.error().message.find("other bytes"), std::string::npos) << session.error().to_string();
    EXPECT_TRUE((*peer)->end());
}

using Lending = Trial;

TEST_F(Lending, TokensAreGoodOnce) {
    const Two two(Lies::never, Lies::never, true);
    const auto peer = two.peer();
    ASSERT_TRUE(peer) << peer.error().to_string();
    ASSERT_TRUE((*peer)->session(1, test::patience()));
    const auto ask = [&](Word word, const std::string& body) {
        return (*peer)->ask(word, body, test::patience());
    };
    const std::string addresses = two.server->addresses().front().to_string();
    const auto memory = parse_attached(ask(Word::trial, {}).value()).value();
    const auto lend = [&](std::uint64_t region) {
        return parse_token(ask(Word::lend, to_body(region)).value()).value();
    };
    const auto reach = [&](const std::string& token) {
        return ask(Word::reach, to_body(ReachRequest{addresses, token, 1}));
    };
    // Of the node as such.
    const std::string node = lend(0);
    EXPECT_EQ(node.size(), token_bytes);
    EXPECT_EQ(parse_attached(ask(Word::take, to_body(node)).value())->region, 0u);
    EXPECT_EQ(ask(Word::take, to_body(node)).error().code, ErrorCode::not_found) << "once";
    EXPECT_EQ(parse_attached(reach(lend(0)).value())->way, "other");
    for (const std::string& token : {std::string(), std::string(token_bytes, 'x'), node})
        EXPECT_EQ(reach(token).error().code, ErrorCode::not_found);
    // Of a region: as long as its client has it.
    EXPECT_EQ(ask(Word::lend, to_body(std::uint64_t{9999})).error().code, ErrorCode::not_found);
    const std::string late = lend(memory.region);
    (*peer)->tell(Word::detach, to_body(memory.region));
    EXPECT_TRUE(test::comes([&] { return !ask(Word::lend, to_body(memory.region)).ok(); }));
    EXPECT_EQ(ask(Word::take, to_body(late)).error().code, ErrorCode::not_found);
    // Where nobody listens, and where it is no address.
    for (const char* nowhere : {"127.0.0.1:1", "not an address", ""})
        EXPECT_FALSE(ask(Word::reach, to_body(ReachRequest{nowhere, node, 1}))) << nowhere;
    EXPECT_TRUE(ask(Word::trial, {})) << "it lives";
}

// Nodes that have each other fetch something would wait for each other else.
TEST_F(Lending, WhatWaitsForAnotherNodeHoldsUpNoOtherQuestion) {
    const Two two(Lies::never, Lies::never, true);
    const auto peer = two.peer().value();
    // Takes connections, and says nothing.
    const auto silent =
        driver::TcpListener::bind(driver::SocketAddress::resolve("127.0.0.1", 0).value().front()).value();
    const ReachRequest reach{silent.local().value().to_string(), std::string(token_bytes, 'x'), 1};
    for (int i = 0; i < 64; ++i) peer->tell(Word::reach, to_body(reach));
    const auto lent = peer->ask(Word::lend, to_body(std::uint64_t{0}), test::patience());
    ASSERT_TRUE(lent) << lent.error().to_string();
    EXPECT_TRUE(peer->ask(Word::take, to_body(parse_token(*lent).value()), test::patience()));
    Peers others(
        engines(Lies::never, true), "other", [&two]() -> Result<std::string> { return two.key; }, 4);
    EXPECT_TRUE(others.get({"n", two.server->addresses()}));
    const std::string told = two.server->metrics(), answered = "word=\"reach\",outcome=\"";
    EXPECT_EQ(told.find(answered), told.rfind(answered)) << "they still wait: none has failed\n" << told;
}

class Strangers : public Trial {
protected:
    // They begin to speak TLS, and say nothing more.
    void come(const Two& two, std::size_t count) {
        const HostPort at = two.server->addresses().front();
        const auto address = driver::SocketAddress::resolve(at.host, at.port).value().front();
        for (std::size_t i = 0; i < count; ++i) {
            here.push_back(driver::TcpSocket::connect(address, test::patience()).value());
            ASSERT_TRUE(here.back().send_all("\x16", 1, test::patience()));
        }
    }
    std::vector<driver::TcpSocket> here;
};

TEST_F(Strangers, TakeNoPlacesOfClients) {
    const Two two(Lies::never, Lies::never, true, {}, 8);
    come(two, 8);
    ASSERT_TRUE(test::comes([&] { return two.server->clients() == 8; }));
    const auto peer = two.peer();
    EXPECT_TRUE(peer) << peer.error().to_string();
    EXPECT_TRUE(test::comes([&] { return two.server->clients() <= 8; }));
}

TEST_F(Strangers, AreBoundedWhateverTheyBeginToSay) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{512, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const Two two(Lies::never, Lies::never, true);
    come(two, 150);
    const std::string none = "sidestep_refused_total{reason=\"full\"} 0";
    EXPECT_TRUE(test::comes([&] { return two.server->metrics().find(none) == std::string::npos; }));
    EXPECT_TRUE(two.peer());
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// One client of a node, without what brings its questions.
class OneClient : public Trial {
protected:
    void SetUp() override {
        Trial::SetUp();
        if (IsSkipped()) return;
        tls = driver::Tls::load().value();
        node.reset(new Node{{two.topology, two.registry, two.engine, two.shared},
                            Allowances::parse("").value(),
                            "n",
                            tls,
                            {},
                            std::make_shared<Pieces>(two.engine.machine().lookout)});
        served = std::make_shared<Served>(node, 1, two.key, "somewhere");
    }
    Two two{Lies::never, Lies::never, true};
    std::shared_ptr<const driver::Tls> tls;
    std::shared_ptr<Node> node;
    std::shared_ptr<Served> served;
};

TEST_F(OneClient, HasSoManyAnswersKeptWhateverItAsks) {
    constexpr std::uint64_t many = 1000;
    const auto ask = [&](std::uint64_t number) {
        return served->answer({Word::detach, number, to_body(std::uint64_t{7})}, 0, test::Clock::now());
    };
    const auto done = [&] { return node->counters->answers(static_cast<std::size_t>(Word::detach), 0); };
    for (std::uint64_t number = 1; number <= many; ++number) EXPECT_TRUE(ask(number)) << number;
    EXPECT_TRUE(ask(many)) << "it is kept";
    EXPECT_EQ(done(), many);
    EXPECT_TRUE(ask(1));
    EXPECT_EQ(done(), many + 1) << "it was forgotten";
    EXPECT_FALSE(ask(0)) << "nobody waits for one";
}

TEST_F(OneClient, HasFewTrialsAtATime) {
    std::uint64_t number = 0;
    const auto ask = [&](Word word, const std::string& body) {
        const auto said = served->answer({word, ++number, body}, 0, test::Clock::now());
        return parse_answer(parse_envelope(said.value())->body, "n");
    };
    const auto first = parse_attached(ask(Word::trial, {}).value()).value();
    for (std::ptrdiff_t i = 1; i < Served::most_trials; ++i) EXPECT_TRUE(ask(Word::trial, {}));
    EXPECT_EQ(ask(Word::trial, {}).error().code, ErrorCode::out_of_memory);
    EXPECT_TRUE(ask(Word::detach, to_body(first.region)));
    EXPECT_TRUE(ask(Word::trial, {}));
}

// In whatever order they are carried out, or not at all.
TEST_F(OneClient, GoesOnByItsNewestGreeting) {
    backends::tcp::Engine sockets{1};
    Session& session = served->session();
    session.use(sockets.link(served->shared_session()));
    std::array<std::atomic<int>, 3> heard{};
    const auto loop = driver::EventLoop::create("greetings").value();
    const auto end = [&](driver::TcpSocket socket, driver::Tls::Role role, std::atomic<int>* count) {
        Channel::Handlers handlers{[count](const std::string&) { count ? void(++*count) : void(); }, {}};
        return Channel::start(*loop, std::move(socket), tls->session(role, two.key).value(), "the other end",
                              std::move(handlers))
            .value();
    };
    std::vector<std::shared_ptr<Channel>> channels;
    std::vector<std::shared_ptr<backend::Link>> links;
    std::vector<std::function<void()>> greetings;
    for (std::uint64_t i = 0; i < heard.size(); ++i) {
        test::Ends ends = test::connected();
        channels.push_back(end(std::move(ends.one), driver::Tls::Role::server, nullptr));
        channels.push_back(end(std::move(ends.other), driver::Tls::Role::client, &heard[i]));
        links.push_back(sockets.link(served->shared_session()));
        greetings.push_back(
            served->come_again(channels[2 * i], links[i], {Word::hello, i + 1, to_body(Hello{})}, 1));
        EXPECT_TRUE(served->comes_again());
        if (i == 0) channels[0]->close(test::some_error());
        if (i == 1) {
            greetings[1]();
            greetings[0]();
            EXPECT_EQ(session.link(), links[1]);
            served->send(to_message({Word::answer, 9, {}}));
            EXPECT_TRUE(test::comes([&] { return heard[1] == 2; })) << "of the greeting, and this one";
            EXPECT_EQ(node->counters->answers(static_cast<std::size_t>(Word::hello), 0), 1u);
        }
    }
    greetings.clear();
    EXPECT_FALSE(served->comes_again());
    for (const auto& channel : channels) channel->close(test::some_error());
    served->session().give_up(test::some_error());
    session.link()->end(test::some_error());
}

}  // namespace
}  // namespace sidestep::wire
