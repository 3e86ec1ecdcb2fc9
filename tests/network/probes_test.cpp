// The node's end of plain sockets, over connections of this process.
#include "wire/probes.hpp"

#include <sys/ioctl.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/loopback.hpp"
#include "wire/probe_loop.hpp"

namespace sidestep::wire {
namespace {

std::string request(char what, std::uint64_t count) {
    std::string text(1, what);
    for (int byte = 0; byte < 8; ++byte) text += static_cast<char>(count >> (8 * byte));
    return text;
}

class ProbesTest : public testing::Test {
protected:
    // Longer than the test's own.
    static constexpr Probes::Limits endless_patience{std::chrono::minutes(3), std::chrono::minutes(3)};
    void start(Probes::Limits limits = {}) { probes = std::make_unique<Probes>(limits); }

    // A socket of the client's, whose other end is a probe.
    driver::TcpSocket client(std::uint64_t number = 1) const {
        test::Ends ends = test::connected();
        const auto added = probes->add(number, std::move(ends.other));
        EXPECT_TRUE(added.ok()) << added.error().to_string();
        return std::move(ends.one);
    }
    static void say(const driver::TcpSocket& socket, const std::string& text) {
        ASSERT_TRUE(socket.send_all(text.data(), text.size(), test::patience()).ok());
    }
    static std::string hear(const driver::TcpSocket& socket, std::size_t bytes) {
        std::string text(bytes, '\0');
        const auto heard = socket.receive_all(text.data(), text.size(), test::patience());
        return heard ? text : heard.error().to_string();
    }
    // The node hangs up, with nothing more said.
    static bool ended(const driver::TcpSocket& socket) {
        char byte = 0;
        return socket.receive_all(&byte, 1, test::patience()).error().code != ErrorCode::timed_out;
    }

    std::unique_ptr<Probes> probes;
};

TEST_F(ProbesTest, DrainsGivesAndEchoes) {
    start();
    const auto socket = client();
    EXPECT_EQ(probes->count(), 1u);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1'000'003}, std::size_t{40'000'003}}) {
        say(socket, request('d', bytes) + std::string(bytes, 'x'));
        EXPECT_EQ(hear(socket, 1), "d");
        say(socket, request('s', bytes));
        EXPECT_EQ(hear(socket, bytes).size(), bytes) << "whatever they are";
    }
    say(socket, request('e', 2) + "12345678");
    EXPECT_EQ(hear(socket, 8), "12345678");
    say(socket, "abcdefgh" + request('d', 0));
    EXPECT_EQ(hear(socket, 9), "abcdefghd");
}

// So a large amount does not stay in the caches of processors.
TEST(ProbeLoopTest, GoesThroughItsMemory) {
    test::Ends ends = test::connected();
    const auto sender = driver::PlainSocket::make(std::move(ends.one), std::chrono::seconds(60)).value();
    const auto receiver = driver::PlainSocket::make(std::move(ends.other), std::chrono::seconds(60)).value();
    std::string sent;
    for (int number = 0; sent.size() < 1'000'000; ++number) sent += std::to_string(number);
    ProbeLoop loop;
    loop.prepare(sent.size());
    const auto until = ProbeLoop::Clock::now() + std::chrono::seconds(60);
    const auto there = std::async(std::launch::async, [&] { return sender.send(sent.data(), sent.size()); });
    ASSERT_TRUE(loop.receive(receiver, sent.size(), until).ok());
    auto back = std::async(std::launch::async, [&] { return loop.send(receiver, sent.size(), until); });
    std::string got(sent.size(), '\0');
    ASSERT_TRUE(sender.receive(got.data(), got.size()).ok());
    EXPECT_TRUE(back.get().ok());
    EXPECT_TRUE(got == sent);
    EXPECT_EQ(loop.send(receiver, 1, ProbeLoop::Clock::now()).error().code, ErrorCode::timed_out);
}

TEST_F(ProbesTest, WhatThereIsNotIsHungUpOn) {
    start(endless_patience);
    constexpr std::uint64_t endless = ~std::uint64_t{0};
    for (const std::string& said :
         {request('x', 1), request('d', endless), request('s', endless), request('e', endless),
          request('d', probe::most_bytes + 1), request('e', probe::most_echoes + 1), std::string(9, '\0')}) {
        const auto socket = client();
        say(socket, said);
        EXPECT_TRUE(ended(socket)) << said.front();
    }
    EXPECT_TRUE(test::comes([&] { return probes->count() == 0; }));
}

TEST_F(ProbesTest, WhoSaysOrTakesNothingIsHungUpOn) {
    start({std::chrono::milliseconds(100), std::chrono::milliseconds(60'000)});
    const auto nothing = client(), half = client(), less = client(), full = client();
    say(half, request('d', 5).substr(0, 4));
    say(less, request('d', 5) + "123");
    say(full, request('s', probe::most_bytes));
    for (const auto* socket : {&nothing, &half, &less}) EXPECT_TRUE(ended(*socket));
    EXPECT_TRUE(test::comes([&] { return probes->count() == 0; })) << "one that takes nothing";
}

// Something moves all the time, and yet it ends.
TEST_F(ProbesTest, WhoIsSlowIsHungUpOnInTheEnd) {
    start({std::chrono::milliseconds(60'000), std::chrono::milliseconds(200)});
    const auto socket = client();
    say(socket, request('d', probe::most_bytes));
    bool open = true;
    EXPECT_TRUE(test::comes([&] {
        open = open && socket.send_all("x", 1, test::patience()).ok();
        return probes->count() == 0;
    }));
    EXPECT_TRUE(ended(socket));
}

TEST_F(ProbesTest, ThereAreNotTooMany) {
    start();
    std::vector<driver::TcpSocket> sockets;
    for (std::uint64_t number = 1; number <= Probes::most / Probes::most_of_client; ++number) {
        for (std::size_t i = 0; i < Probes::most_of_client; ++i) sockets.push_back(client(number));
        test::Ends ends = test::connected();
        const auto more = probes->add(number, std::move(ends.other));
        ASSERT_FALSE(more.ok()) << number;
        EXPECT_EQ(more.error().code, ErrorCode::out_of_memory);
        EXPECT_TRUE(ended(ends.one));
    }
    EXPECT_EQ(probes->count(), Probes::most);
    test::Ends ends = test::connected();
    EXPECT_FALSE(probes->add(99, std::move(ends.other)).ok()) << "of another client";
    // Those of one client end with it, and others may come.
    probes->drop(1);
    EXPECT_TRUE(test::comes([&] { return probes->count() == Probes::most - Probes::most_of_client; }));
    EXPECT_TRUE(ended(sockets.front()));
    const auto again = client(99);
    say(again, request('d', 0));
    EXPECT_EQ(hear(again, 1), "d");
}

// In every state that one can be in.
TEST_F(ProbesTest, GoWhileTheyRun) {
    start(endless_patience);
    const auto idle = client(), draining = client(), giving = client(), echoing = client();
    say(draining, request('d', probe::most_bytes) + "some");
    say(giving, request('s', probe::most_bytes));
    say(echoing, request('e', 100) + "half");
    auto gone = std::async(std::launch::async, [this] { probes.reset(); });
    ASSERT_EQ(gone.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    for (const auto* socket : {&idle, &draining, &echoing}) EXPECT_TRUE(ended(*socket));
}

TEST_F(ProbesTest, NoneBeginsAfterTheEnd) {
    start();
    probes->end();
    test::Ends ends = test::connected();
    EXPECT_FALSE(probes->add(1, std::move(ends.other)).ok());
    EXPECT_TRUE(ended(ends.one));
}

// Its window is shut when it goes: nothing tells the kernel of the sender to try again soon.
TEST(PlainSocket, WhoSendsIntoAFullOneSeesItGo) {
    test::Ends ends = test::connected();
    auto sender = driver::PlainSocket::make(std::move(ends.one), std::chrono::seconds(20)).value();
    const int number = test::number_of(std::move(ends.other));
    auto other = std::make_unique<driver::PlainSocket>(
        driver::PlainSocket::make(driver::TcpSocket(driver::Fd(number)), std::chrono::seconds(20)).value());
    const std::vector<char> some(1 << 20, 's');
    auto sending = std::async(std::launch::async, [&] {
        Result<void> sent;
        while (sent) sent = sender.send(some.data(), some.size());
        return sent;
    });
    int before = -1;
    int queued = 0;
    ASSERT_TRUE(test::comes([&] {
        before = queued;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        return ::ioctl(number, FIONREAD, &queued) == 0 && queued > 0 && queued == before;
    }));
    other->shut_down();
    std::vector<char> memory(1 << 20);
    Result<Bytes> got = Bytes{0};
    while (got) got = other->receive_some(memory.data(), memory.size());
    EXPECT_EQ(got.error().code, ErrorCode::end_of_file) << got.error().to_string();
    other.reset();
    const Result<void> sent = sending.get();
    EXPECT_NE(sent.error().code, ErrorCode::timed_out) << sent.error().to_string();
}

}  // namespace
}  // namespace sidestep::wire
