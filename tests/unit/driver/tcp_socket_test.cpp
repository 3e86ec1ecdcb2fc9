// Connections over the loopback.
#include "driver/tcp_socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>

namespace sidestep::driver {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TcpSocket::Time in(milliseconds time) {
    return std::chrono::steady_clock::now() + time;
}

SocketAddress address(const std::string& host, std::uint16_t port = 0) {
    return SocketAddress::resolve(host, port).value().front();
}

// Somebody may connect, but need not have been seen yet.
TcpSocket accept(const TcpListener& listener) {
    const auto until = in(seconds(10));
    for (;;) {
        auto answer = listener.accept();
        if (answer.value().has_value()) return std::move(**answer);
        if (std::chrono::steady_clock::now() > until)
            abort_on_error({ErrorCode::timed_out, "nobody", "", ""});
        std::this_thread::sleep_for(milliseconds(1));
    }
}

struct Pair {
    TcpListener listener;
    TcpSocket client;
    TcpSocket server;
};

Pair make_pair(const std::string& host = "127.0.0.1") {
    auto listener = TcpListener::bind(address(host)).value();
    auto client = TcpSocket::connect(listener.local().value(), in(seconds(10))).value();
    auto server = accept(listener);
    return {std::move(listener), std::move(client), std::move(server)};
}

int option(int socket, int level, int name) {
    int found = -1;
    socklen_t size = sizeof(found);
    EXPECT_EQ(::getsockopt(socket, level, name, &found, &size), 0);
    return found;
}

void expect_both_ways(const std::string& host, const std::string& shown) {
    const Pair pair = make_pair(host);
    const std::string asked = "who is there?";
    ASSERT_TRUE(pair.client.send_all(asked.data(), asked.size(), in(seconds(10))).ok());
    std::string heard(asked.size(), ' ');
    ASSERT_TRUE(pair.server.receive_all(heard.data(), heard.size(), in(seconds(10))).ok());
    EXPECT_EQ(heard, asked);
    ASSERT_TRUE(pair.server.send_all("me", 2, in(seconds(10))).ok());
    ASSERT_TRUE(pair.client.receive_all(heard.data(), 2, in(seconds(10))).ok());
    EXPECT_EQ(heard.substr(0, 2), "me");

    EXPECT_EQ(pair.client.peer()->to_string(), pair.listener.local()->to_string());
    EXPECT_EQ(pair.client.local()->to_string(), pair.server.peer()->to_string());
    EXPECT_EQ(pair.client.peer()->to_string(), shown + std::to_string(pair.client.peer()->port()));
    EXPECT_NE(pair.client.peer()->port(), 0);
    EXPECT_TRUE(pair.client.peer()->loopback());
}

TEST(TcpSocket, TalksOverIpv4) {
    expect_both_ways("127.0.0.1", "127.0.0.1:");
}

TEST(TcpSocket, TalksOverIpv6) {
    const auto probe = TcpListener::bind(address("::1"));
    if (!probe) GTEST_SKIP() << "no IPv6 here: " << probe.error().to_string();
    expect_both_ways("::1", "[::1]:");
}

TEST(TcpSocket, IsSetUpOnBothEnds) {
    const Pair pair = make_pair();
    for (const int number : {pair.client.number(), pair.server.number(), pair.listener.number()}) {
        EXPECT_NE(::fcntl(number, F_GETFL) & O_NONBLOCK, 0);
        EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
    }
    EXPECT_EQ(option(pair.client.number(), IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option(pair.server.number(), IPPROTO_TCP, TCP_NODELAY), 1);
}

TEST(TcpSocket, TellsWhereNobodyListens) {
    SocketAddress at;
    {
        const auto listener = TcpListener::bind(address("127.0.0.1")).value();
        at = listener.local().value();
    }
    const auto refused = TcpSocket::connect(at, in(seconds(10)));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::not_found);
    EXPECT_EQ(refused.error().where, at.to_string());
    EXPECT_EQ(refused.error().message, "no connection: Connection refused");
}

// The system gives out its ports one after the other, so that sooner or later it is the very one that is asked for,
// and a socket shakes hands with itself.
TEST(TcpSocket, NeverTalksToItself) {
    const SocketAddress given = [] {
        const Pair pair = make_pair();
        pair.server.shut_down();  // the first to go keeps its port for a while
        char byte = 0;
        EXPECT_FALSE(pair.client.receive_all(&byte, 1, in(seconds(10))).ok());
        return pair.client.local().value();
    }();
    for (int i = 0; i < 40000; ++i) {
        const auto refused = TcpSocket::connect(given, in(seconds(10)));
        ASSERT_FALSE(refused.ok()) << i << ": " << refused->local()->to_string();
        ASSERT_EQ(refused.error().code, ErrorCode::not_found);
    }
}

// A listener that accepts nobody, and keeps no more than one or two who wait.
TEST(TcpSocket, GivesUpAtTheDeadline) {
    const auto listener = TcpListener::bind(address("127.0.0.1")).value();
    ASSERT_EQ(::listen(listener.number(), 0), 0);
    std::vector<TcpSocket> waiting;
    for (int i = 0; i < 10; ++i) {
        const auto start = std::chrono::steady_clock::now();
        auto socket = TcpSocket::connect(listener.local().value(), start + milliseconds(50));
        if (socket) {
            waiting.push_back(std::move(*socket));
            continue;
        }
        EXPECT_EQ(socket.error().code, ErrorCode::timed_out) << socket.error().to_string();
        EXPECT_EQ(socket.error().where, listener.local()->to_string());
        const auto took = std::chrono::steady_clock::now() - start;
        EXPECT_GE(took, milliseconds(50));
        EXPECT_LT(took, seconds(5));

        const auto past = TcpSocket::connect(listener.local().value(), start - seconds(1));
        ASSERT_FALSE(past.ok());
        EXPECT_EQ(past.error().code, ErrorCode::timed_out);
        return;
    }
    FAIL() << "ten connections to a listener that keeps none";
}

TEST(TcpSocket, SendsPartsInTheirOrder) {
    const Pair pair = make_pair();
    const std::array<TcpSocket::Part, 4> parts{{{"one ", 4}, {nullptr, 0}, {"two ", 4}, {"three", 5}}};
    EXPECT_EQ(pair.client.send(parts).value(), 13u);
    std::string heard(13, ' ');
    ASSERT_TRUE(pair.server.receive_all(heard.data(), heard.size(), in(seconds(10))).ok());
    EXPECT_EQ(heard, "one two three");

    std::vector<TcpSocket::Part> many(256, {"x", 1});
    EXPECT_EQ(pair.client.send(many).value(), 256u);
    many.push_back({"x", 1});
    ASSERT_FALSE(pair.client.send(many).ok());
    EXPECT_EQ(pair.client.send(many).error().code, ErrorCode::invalid_argument);
}

TEST(TcpSocket, ReceivesIntoPartsInTheirOrder) {
    const Pair pair = make_pair();
    std::array<char, 8> bytes{'-', '-', '-', '-', '-', '-', '-', '-'};
    const std::array<TcpSocket::Room, 3> rooms{{{&bytes[5], 2}, {nullptr, 0}, {&bytes[0], 3}}};
    EXPECT_FALSE(pair.server.receive(rooms).value().has_value()) << "nothing has come";
    ASSERT_TRUE(pair.client.send_all("abcd", 4, in(seconds(10))).ok());
    Bytes came = 0;
    for (int i = 0; i < 10'000 && came < 4; ++i) {
        const auto more = pair.server.receive(came == 0 ? std::span<const TcpSocket::Room>(rooms)
                                                        : std::span(&rooms[2], 1));
        came += more.value().value_or(0);
        if (came == 0) std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(std::string(bytes.data(), bytes.size()), "cd---ab-");
    EXPECT_FALSE(pair.server.receive(std::span(&rooms[1], 1)).value().has_value()) << "there is no room";
    const std::vector<TcpSocket::Room> many(257, {&bytes[0], 1});
    EXPECT_EQ(pair.server.receive(many).error().code, ErrorCode::invalid_argument);
}

TEST(TcpSocket, SendsNothingWhereNobodyReads) {
    const Pair pair = make_pair();
    const std::string block(1 << 20, 'x');
    const TcpSocket::Part part{block.data(), block.size()};
    Bytes sent = 0;
    Bytes taken = 1;
    for (int i = 0; i < 1000 && taken > 0; ++i) {
        taken = pair.client.send(std::span(&part, 1)).value();
        sent += taken;
    }
    EXPECT_EQ(taken, 0u) << "after " << sent << " bytes";
    EXPECT_GT(sent, 0u);

    const auto late = pair.client.send_all(block.data(), block.size(), in(milliseconds(50)));
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::timed_out);
}

TEST(TcpSocket, ReceivesWhatIsThere) {
    const Pair pair = make_pair();
    std::array<char, 100> room{};
    EXPECT_EQ(pair.server.receive(room.data(), room.size()).value(), std::nullopt);
    const auto late = pair.server.receive_all(room.data(), room.size(), in(milliseconds(20)));
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::timed_out);
    EXPECT_EQ(late.error().message, "0 of 100 bytes came in time");

    ASSERT_TRUE(pair.client.send_all("abcdef", 6, in(seconds(10))).ok());
    ASSERT_TRUE(pair.server.receive_all(room.data(), 1, in(seconds(10))).ok());
    EXPECT_EQ(pair.server.receive(room.data(), 0).value(), std::nullopt) << "no room is not the end";
    EXPECT_EQ(pair.server.receive(room.data(), 2).value(), Bytes{2});
    EXPECT_EQ(pair.server.receive(room.data(), room.size()).value(), Bytes{3});
    EXPECT_EQ(room[0], 'd');
}

TEST(TcpSocket, MovesMoreThanTheSystemKeeps) {
    const Pair pair = make_pair();
    constexpr Bytes size = 8_MiB;
    std::vector<std::uint32_t> numbers(size / sizeof(std::uint32_t));
    std::iota(numbers.begin(), numbers.end(), 7u);
    Result<void> sent;
    std::thread sender([&] { sent = pair.client.send_all(numbers.data(), size, in(seconds(60))); });
    std::vector<std::uint32_t> heard(numbers.size());
    const auto received = pair.server.receive_all(heard.data(), size, in(seconds(60)));
    sender.join();
    ASSERT_TRUE(sent.ok()) << sent.error().to_string();
    ASSERT_TRUE(received.ok()) << received.error().to_string();
    EXPECT_TRUE(heard == numbers);
}

TEST(TcpSocket, SeesTheEnd) {
    const Pair pair = make_pair();
    ASSERT_TRUE(pair.client.send_all("last", 4, in(seconds(10))).ok());
    pair.client.shut_down();
    std::array<char, 100> room{};
    const auto rest = pair.server.receive_all(room.data(), room.size(), in(seconds(10)));
    ASSERT_FALSE(rest.ok());
    EXPECT_EQ(rest.error().code, ErrorCode::end_of_file);
    EXPECT_EQ(rest.error().message, "the other end said 4 of 100 bytes");
    EXPECT_EQ(pair.server.receive(room.data(), room.size()).value(), Bytes{0});

    // This end has shut down, too: no signal, an error.
    const auto sent = pair.client.send_all("more", 4, in(seconds(10)));
    ASSERT_FALSE(sent.ok());
    EXPECT_EQ(sent.error().code, ErrorCode::io_error);
    EXPECT_EQ(sent.error().message, "a connection ended: Broken pipe");
}

TEST(TcpSocket, SeesAReset) {
    auto listener = TcpListener::bind(address("127.0.0.1")).value();
    const auto client = TcpSocket::connect(listener.local().value(), in(seconds(10))).value();
    {
        const TcpSocket server = accept(listener);
        const linger at_once{1, 0};
        ASSERT_EQ(::setsockopt(server.number(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    }
    char byte = 0;
    const auto received = client.receive_all(&byte, 1, in(seconds(10)));
    ASSERT_FALSE(received.ok());
    EXPECT_EQ(received.error().code, ErrorCode::io_error);
    EXPECT_EQ(received.error().message, "a connection ended: Connection reset by peer");
    const auto sent = client.send_all(&byte, 1, in(seconds(10)));
    ASSERT_FALSE(sent.ok());
    EXPECT_EQ(sent.error().code, ErrorCode::io_error);
}

TEST(TcpListener, AnswersNothingWhereNobodyWaits) {
    const auto listener = TcpListener::bind(address("127.0.0.1")).value();
    EXPECT_FALSE(listener.accept().value().has_value());
}

TEST(TcpListener, TellsWhyItCannot) {
    const auto listener = TcpListener::bind(address("127.0.0.1")).value();
    const auto again = TcpListener::bind(listener.local().value());
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(again.error().where, listener.local()->to_string());
    EXPECT_EQ(again.error().message, "cannot listen: Address already in use");
    // 192.0.2.0/24 is for documents, 203.0.113.0/24 too.
    const auto foreign = TcpListener::bind(address("203.0.113.7"));
    ASSERT_FALSE(foreign.ok());
    EXPECT_EQ(foreign.error().code, ErrorCode::unsupported);
    EXPECT_EQ(foreign.error().hint, "it is no address of this machine");
}

// A server that ended has left connections in TIME_WAIT, which do not keep the next one from the port.
TEST(TcpListener, TakesOverThePortOfAnEarlierOne) {
    SocketAddress at;
    {
        const Pair pair = make_pair();
        at = pair.listener.local().value();
        pair.server.shut_down();
        char byte = 0;
        EXPECT_EQ(pair.client.receive_all(&byte, 1, in(seconds(10))).error().code, ErrorCode::end_of_file);
    }
    EXPECT_TRUE(TcpListener::bind(at).ok());
}

TEST(TcpListener, ListensAtAllAddressesOfBothKinds) {
    const auto v6 = TcpListener::bind(address("::"));
    if (!v6) GTEST_SKIP() << "no IPv6 here: " << v6.error().to_string();
    const auto v4 = TcpListener::bind(address("0.0.0.0", v6->local()->port()));
    EXPECT_TRUE(v4.ok()) << v4.error().to_string();
}

TEST(TcpListener, TellsThatNoDescriptorIsLeft) {
    const auto listener = TcpListener::bind(address("127.0.0.1")).value();
    const auto client = TcpSocket::connect(listener.local().value(), in(seconds(10))).value();
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto refused = listener.accept();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
    accept(listener);  // who waited still waits
}

TEST(SocketAddress, ResolvesNumbers) {
    const auto v4 = address("10.0.0.2", 47900);
    EXPECT_EQ(v4.to_string(), "10.0.0.2:47900");
    EXPECT_EQ(v4.port(), 47900);
    EXPECT_FALSE(v4.loopback());
    EXPECT_EQ(address("::1", 80).to_string(), "[::1]:80");
    EXPECT_EQ(address("2001:db8:0:0::7", 1).to_string(), "[2001:db8::7]:1");
    EXPECT_EQ(SocketAddress::resolve("127.0.0.1", 1)->size(), 1u) << "once, not once a kind of socket";
}

TEST(SocketAddress, KnowsTheLoopback) {
    for (const char* here : {"127.0.0.1", "127.255.1.2", "::1", "::ffff:127.0.0.1", "localhost"})
        EXPECT_TRUE(address(here).loopback()) << here;
    for (const char* there : {"128.0.0.1", "126.0.0.1", "0.0.0.0", "::", "::2", "fe80::1", "::ffff:10.0.0.1"})
        EXPECT_FALSE(address(there).loopback()) << there;
    EXPECT_FALSE(SocketAddress().loopback());
    EXPECT_EQ(SocketAddress().to_string(), "nowhere");
}

TEST(SocketAddress, ResolvesNoNonsense) {
    // Longer than any name, so that no name server is asked.
    for (const std::string& host : {std::string(300, 'x'), std::string("1.2.3.4\0y", 9), std::string()}) {
        const auto found = SocketAddress::resolve(host, 1);
        ASSERT_FALSE(found.ok()) << host;
        EXPECT_EQ(found.error().code, ErrorCode::not_found) << found.error().to_string();
    }
}

}  // namespace
}  // namespace sidestep::driver
