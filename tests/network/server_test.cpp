// A node that ends in the midst of something, and clients that do not keep to the order of things.
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "backend/file_piece.hpp"
#include "backends/host/host_backend.hpp"
#include "backends/tcp/tcp_engine.hpp"
#include "driver/event_loop.hpp"
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
    Result<std::shared_ptr<const void>> prepare(void*, Bytes) override {
        held_ += holds_;
        holds_.wait(true);
        return std::shared_ptr<const void>();
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

// Files whose last close does not come back while the one is set; the other counts those.
class SlowToClose final : public backend::Backend {
public:
    SlowToClose(std::atomic<bool>& hangs, std::atomic<int>& closing) : hangs_(hangs), closing_(closing) {}
    std::string_view name() const override { return "slow to close"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes({}); }
    std::vector<backend::Capability> capabilities() const override {
        return {backend::reads_files(PlaceKind::host, {MemoryKind::pageable, MemoryKind::pinned},
                                     backend::Reach::storage, "file I/O")};
    }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        if (!buffer.place().is_file()) return std::optional<backend::Description>();
        return std::optional<backend::Description>({buffer.place(), MemoryKind::storage, 4096});
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions&) override {
        if (!buffer.place().is_file()) return std::make_unique<backend::Registration>(buffer);
        return std::unique_ptr<backend::Registration>(std::make_unique<File>(buffer, *this));
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight&) override {
        return Error{ErrorCode::unsupported, "nothing here moves files", "test", {}};
    }

private:
    struct File final : backend::Registration {
        File(const Buffer& buffer, SlowToClose& its) : Registration(buffer), its_(its) {}
        ~File() override {
            ++its_.closing_;
            its_.hangs_.wait(true);
        }
        SlowToClose& its_;
    };
    std::atomic<bool>& hangs_;
    std::atomic<int>& closing_;
};

// A client that says what it likes.
class Speaker {
public:
    explicit Speaker(const Server& server) {
        Channel::Handlers handlers;
        handlers.message = [this](const std::string& message) {
            const auto envelope = parse_envelope(message);
            const std::lock_guard lock(mutex_);
            if (envelope && envelope->number == asked_) answer_ = envelope->body;
        };
        handlers.ended = [this](const Error&) { ended_ = true; };
        channel_ = Channel::start(*loop_, connect_to(server),
                                  tls_->session(driver::Tls::Role::client, common_key).value(), "n", handlers)
                       .value();
    }
    ~Speaker() {
        channel_->close(test::some_error());
        loop_->end();
    }
    Speaker(const Speaker&) = delete;
    Speaker& operator=(const Speaker&) = delete;

    // Nothing where the node has hung up.
    std::optional<std::string> ask(Word word, const std::string& body) {
        {
            const std::lock_guard lock(mutex_);
            answer_.reset();
            ++asked_;
        }
        channel_->send(to_message({word, asked_, body}));
        const auto answered = [this] {
            const std::lock_guard lock(mutex_);
            return answer_.has_value();
        };
        EXPECT_TRUE(test::comes([&] { return answered() || ended_; }));
        const std::lock_guard lock(mutex_);
        return answer_ ? std::optional(parse_answer(*answer_, "n").value()) : std::nullopt;
    }
    void tell(Word word, const std::string& body) const { channel_->send(to_message({word, 0, body})); }
    // What the node says of a new client.
    Hello greet() { return parse_hello(ask(Word::hello, to_body(Hello{})).value()).value(); }

private:
    const std::shared_ptr<const driver::Tls> tls_ = driver::Tls::load().value();
    const std::unique_ptr<driver::EventLoop> loop_ = driver::EventLoop::create("a speaker").value();
    std::shared_ptr<Channel> channel_;
    std::atomic<bool> ended_{false};
    std::mutex mutex_;  // guards what follows
    std::uint64_t asked_ = 0;
    std::optional<std::string> answer_;
};

// What it has here by then would be nobody's if it went on as another.
TEST(ServerClients, AGreetingIsTheFirstThatAClientSaysAndComesOnce) {
    const auto machine = std::make_shared<OwnMachine>();
    const auto server = serve(machine, sockets());
    Speaker other(*server);
    const Hello known = other.greet();
    Hello again;
    again.session = known.session;
    again.key = known.key;
    struct Case {
        bool greets;
        Word word;
        std::string body;
    };
    const std::string list = to_body(ListRequest{"/etc", {}});
    for (const auto& [greets, word, body] :
         {Case{true, Word::hello, to_body(again)}, Case{true, Word::hello, to_body(Hello{})},
          Case{false, Word::list, list}}) {
        Speaker speaker(*server);
        if (greets) speaker.greet();
        EXPECT_FALSE(speaker.ask(word, body)) << greets << " " << static_cast<int>(word);
    }
    EXPECT_TRUE(other.ask(Word::list, list)) << "another has taken its place";
    Speaker goes_on(*server);
    EXPECT_EQ(parse_hello(goes_on.ask(Word::hello, to_body(again)).value()).value().session, known.session);
}

// Two that are made ready at once, where one is left to have.
TEST(ServerClients, TrialsAreBoundedWhereTheyComeTogether) {
    std::atomic<bool> holds{false};
    std::atomic<int> held{0}, lent{0};
    std::shared_ptr<Session> last;
    const auto machine = std::make_shared<OwnMachine>();
    const auto server = serve(machine, engines_of(std::make_unique<SlowEngine>(holds, held, last)));
    Peers peers(
        sockets(), "here", []() -> Result<std::string> { return common_key; }, 4);
    const auto peer = peers.get({"n", server->addresses()}).value();
    const auto ask = [&] { lent += peer->ask(Word::trial, {}, test::patience()).ok(); };
    for (std::ptrdiff_t i = 1; i < Served::most_trials; ++i) ask();
    holds = true;
    std::thread one(ask), other(ask);
    EXPECT_TRUE(test::comes([&] { return held == 2; }));
    holds = false;
    holds.notify_all();
    one.join();
    other.join();
    EXPECT_EQ(lent, Served::most_trials);
}

// As many of them as there are threads for what waits for no file.
TEST(ServerClients, FilesThatAreSlowToCloseHoldUpNoOther) {
    constexpr int many = 8;
    for (const bool leave : {false, true}) {
        std::atomic<bool> hangs{true};
        std::atomic<int> closing{0};
        const auto machine = std::make_shared<OwnMachine>();
        machine->registry.add(backends::host::create({}), machine->topology);
        machine->registry.add(std::make_unique<SlowToClose>(hangs, closing), machine->topology);
        const auto server = serve(machine, sockets());
        std::deque<Speaker> speakers;
        for (int i = 0; i < many; ++i) {
            Speaker& speaker = speakers.emplace_back(*server);
            speaker.greet();
            const AttachRequest request{Buffer::file("/etc/passwd", 0, 16), {}};
            const auto attached = parse_attached(speaker.ask(Word::attach, to_body(request)).value()).value();
            leave ? speaker.tell(Word::leave, {}) : speaker.tell(Word::detach, to_body(attached.region));
        }
        EXPECT_TRUE(test::comes([&] { return closing == many; }));
        EXPECT_TRUE(Speaker(*server).ask(Word::hello, to_body(Hello{}))) << leave;
        hangs = false;
        hangs.notify_all();
    }
}

}  // namespace
}  // namespace sidestep::wire
