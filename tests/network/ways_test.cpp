// Which of a node's addresses a connection takes.
#include "wire/ways.hpp"

#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "backends/tcp/tcp_engine.hpp"
#include "tests/network/loopback.hpp"
#include "wire/peers.hpp"

// The resolver does not answer for "hangs.test" while the one is set; the other counts the calls that wait for it.
static std::atomic<bool> resolver_hangs{false};
static std::atomic<int> resolver_hanging{0};

// Instead of the C library's. An address of "two-kinds.test" is none of this machine: 2001:db8::/32 is for documents.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** list) {
    static const auto call = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    const std::string_view host = name != nullptr ? name : "";
    if (host == "two-kinds.test" && (hints->ai_flags & AI_NUMERICHOST) == 0) {
        const int code = call("2001:db8::1", service, hints, list);
        return code != 0 ? code : call("127.0.0.1", service, hints, &(*list)->ai_next);
    }
    if (host != "hangs.test" || (hints->ai_flags & AI_NUMERICHOST) != 0)
        return call(name, service, hints, list);
    ++resolver_hanging;
    const auto longest = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (resolver_hangs && std::chrono::steady_clock::now() < longest)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --resolver_hanging;
    return EAI_AGAIN;
}

namespace sidestep::wire {
namespace {

using namespace std::chrono_literals;
using driver::SocketAddress;
using driver::TcpListener;
using driver::TcpSocket;

// Connections to it are neither made nor refused.
struct Silent {
    Silent() {
        EXPECT_EQ(::listen(listener.number(), 0), 0);
        for (int i = 0; i < 10; ++i) {
            auto socket = TcpSocket::connect(listener.local().value(), test::Clock::now() + 100ms);
            if (!socket) return;
            waiting.push_back(std::move(*socket));
        }
        ADD_FAILURE() << "ten connections to a listener that keeps none";
    }
    TcpListener listener = TcpListener::bind(SocketAddress::resolve("127.0.0.1", 0).value().front()).value();
    std::vector<TcpSocket> waiting;
};

HostPort at(const TcpListener& listener) {
    return {"127.0.0.1", listener.local()->port()};
}

// They are tried side by side: one after the other they would take longer than there is time.
TEST(Ways, OneThatAnswersIsFoundBehindManyThatDoNot) {
    const std::deque<Silent> silent(12);
    const auto listener = TcpListener::bind(SocketAddress::resolve("127.0.0.1", 0).value().front()).value();
    NodeAddress node{"n", {}};
    for (const Silent& one : silent) node.at.push_back(at(one.listener));
    node.at.push_back(at(listener));
    const auto until = test::Clock::now() + 12 * Ways::patience - 4s;
    const auto reached = Ways(node).connect(0, until);
    ASSERT_TRUE(reached) << reached.error().to_string();
    EXPECT_EQ(reached->way, silent.size());
    EXPECT_LT(test::Clock::now(), until);
    EXPECT_EQ(reached->socket.peer()->to_string(), listener.local()->to_string());
}

TEST(Ways, SayWhyNoneIsTaken) {
    const Silent silent;
    const HostPort refuses{"127.0.0.1", 1};
    struct Case {
        std::vector<HostPort> at;
        ErrorCode code;
    };
    for (const auto& [all, code] :
         {Case{{refuses}, ErrorCode::not_found}, Case{{refuses, at(silent.listener)}, ErrorCode::timed_out},
          Case{{at(silent.listener), refuses}, ErrorCode::timed_out}}) {
        const auto reached = Ways({"n", all}).connect(0, test::patience());
        ASSERT_FALSE(reached);
        EXPECT_EQ(reached.error().code, code) << reached.error().to_string();
    }
}

// Each way has its part of the time, and who connects is not held up by a call that does not come back.
TEST(Ways, ANameThatIsNotResolvedHoldsNobody) {
    const auto listener = TcpListener::bind(SocketAddress::resolve("127.0.0.1", 0).value().front()).value();
    const HostPort unresolved{"hangs.test", 1};
    resolver_hangs = true;
    Ways both({"n", {unresolved, at(listener)}});
    const auto alone = Ways({"n", {unresolved}}).connect(0, test::Clock::now() + 50ms);
    const auto reached = both.connect(0, test::Clock::now() + 6s);
    EXPECT_EQ(resolver_hanging, 2) << "the resolver was waited for";
    resolver_hangs = false;
    EXPECT_TRUE(test::comes([] { return resolver_hanging == 0; }));
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, ErrorCode::timed_out) << alone.error().to_string();
    ASSERT_TRUE(reached) << reached.error().to_string();
    EXPECT_EQ(reached->way, 1);
}

// As localhost where IPv6 is off.
TEST(Ways, WhoListensGoesOnWithTheAddressesThatThisMachineHas) {
    std::vector<TcpListener> listeners;
    std::vector<HostPort> addresses;
    const auto done = listen_at({"two-kinds.test", 0}, listeners, addresses);
    ASSERT_TRUE(done) << done.error().to_string();
    ASSERT_EQ(addresses.size(), 1);
    EXPECT_EQ(addresses.front().host, "127.0.0.1");
    for (const auto& none : {HostPort{"2001:db8::1", 0}, HostPort{"two-kinds.test", addresses.front().port}})
        EXPECT_EQ(listen_at(none, listeners, addresses).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(listeners.size(), 1);
}

TEST(Ways, WhoListensWaitsForNoResolverForLong) {
    std::vector<TcpListener> listeners;
    std::vector<HostPort> addresses;
    resolver_hangs = true;
    const auto done = listen_at({"hangs.test", 0}, listeners, addresses, 50ms);
    resolver_hangs = false;
    EXPECT_TRUE(test::comes([] { return resolver_hanging == 0; }));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::timed_out) << done.error().to_string();
}

// Each would wait for it by itself else, one after the other.
TEST(Ways, ThoseWhoWaitForANodeFailTogether) {
    constexpr int count = 8, tries_of_one = 3;
    const auto listener = TcpListener::bind(SocketAddress::resolve("127.0.0.1", 0).value().front()).value();
    std::vector<std::unique_ptr<backend::NetworkEngine>> engines;
    engines.push_back(std::make_unique<backends::tcp::Engine>(1));
    Peers peers(
        std::make_shared<const Engines>(std::move(engines)), "here",
        []() -> Result<std::string> { return std::string(32, 'k'); }, 4);
    std::atomic<int> begun{0}, connections{0};
    std::atomic<bool> over{false};
    std::thread hangs_up([&] {
        for (std::vector<TcpSocket> held; !over; std::this_thread::sleep_for(1ms)) {
            if (auto came = listener.accept(); came && *came) {
                ++connections;
                held.push_back(std::move(**came));
            }
            if (begun == count) held.clear();
        }
    });
    std::vector<std::thread> waiting;
    for (int i = 0; i < count; ++i)
        waiting.emplace_back([&] {
            ++begun;
            EXPECT_FALSE(peers.get({"m", {at(listener)}}));
        });
    for (std::thread& one : waiting) one.join();
    over = true;
    hangs_up.join();
    EXPECT_LT(connections, count * tries_of_one);
}

}  // namespace
}  // namespace sidestep::wire
