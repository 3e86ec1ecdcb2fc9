// How both ends of a data socket show that they have the session's key; and tokens that nobody fetches.
#include "wire/data_hello.hpp"

#include <functional>
#include <future>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/loopback.hpp"
#include "wire/lent.hpp"

namespace sidestep::wire {
namespace {

const std::string session_key(32, 'k');

class DataHelloTest : public testing::Test {
protected:
    void SetUp() override {
        auto loaded = driver::Tls::load();
        if (!loaded) GTEST_SKIP() << loaded.error().to_string();
        tls = *loaded;
    }

    // What an honest server does, with the key that it has.
    struct Seen {
        DataHello hello;
        std::string answer;  // its nonce and code
        std::string code;    // the client's, if one came
        bool good = false;
    };
    Seen serve(const driver::TcpSocket& socket, const std::string& key) const {
        Seen seen;
        std::string bytes(data_hello_bytes, '\0');
        if (!socket.receive_all(bytes.data(), bytes.size(), test::patience())) return seen;
        seen.hello = parse_data_hello(bytes).value();
        const std::string nonce = tls->random(nonce_bytes).value();
        seen.answer = nonce + server_code(*tls, key, seen.hello, nonce).value();
        EXPECT_TRUE(socket.send_all(seen.answer.data(), seen.answer.size(), test::patience()).ok());
        std::string code(code_bytes, '\0');
        if (!socket.receive_all(code.data(), code.size(), test::patience())) return seen;
        seen.code = code;
        seen.good = driver::Tls::equal(client_code(*tls, key, seen.hello, nonce).value(), code);
        return seen;
    }

    // Enters a session while `other` has the other end; hangs up before it waits for what that has seen.
    Result<void> enter(const std::function<void(const driver::TcpSocket&)>& other,
                       std::uint64_t session = 42) const {
        test::Ends ends = test::connected();
        auto done = std::async(std::launch::async, [&, socket = std::move(ends.other)] { other(socket); });
        Result<void> entered;
        {
            const driver::TcpSocket mine = std::move(ends.one);
            if (auto keys = enter_session(*tls, mine, session, session_key, test::patience()); !keys)
                entered = keys.error();
        }
        done.get();
        return entered;
    }

    std::shared_ptr<const driver::Tls> tls;
};

TEST_F(DataHelloTest, HasItsBytes) {
    const std::string nonce(nonce_bytes, 'n');
    for (const DataKind kind : {DataKind::link, DataKind::probe, DataKind::encrypted_link}) {
        const std::string said = data_hello(0x0102, nonce, kind);
        const std::string letter(1, static_cast<char>(kind));
        EXPECT_EQ(said, "SIDESTEP" + std::string("\2\1\0\0\0\0\0\0", 8) + letter + nonce);
        const auto hello = parse_data_hello(said);
        ASSERT_TRUE(hello.ok()) << hello.error().to_string();
        EXPECT_EQ(hello->session, 0x0102u);
        EXPECT_EQ(hello->kind, kind);
        EXPECT_EQ(hello->nonce, nonce);
    }
}

TEST_F(DataHelloTest, OtherBytesAreNone) {
    const std::string said = data_hello(1, std::string(nonce_bytes, 'n'));
    for (std::size_t size = 0; size < said.size(); ++size)
        EXPECT_EQ(parse_data_hello(said.substr(0, size)).error().code, ErrorCode::io_error) << size;
    EXPECT_FALSE(parse_data_hello(said + "x").ok());
    for (std::size_t at = 0; at < data_magic.size(); ++at) {
        std::string other = said;
        other[at] = static_cast<char>(other[at] ^ 0x20);
        EXPECT_FALSE(parse_data_hello(other).ok()) << at;
    }
    for (int kind = 0; kind < 256; ++kind) {
        std::string other = said;
        other[data_magic.size() + 8] = static_cast<char>(kind);
        EXPECT_EQ(parse_data_hello(other).ok(), kind >= 1 && kind <= 3) << kind;
    }
}

// A code for one purpose is of no use for another.
TEST_F(DataHelloTest, CodesDifferInAllThatTheyStandFor) {
    const std::string a(nonce_bytes, 'a'), b(nonce_bytes, 'b');
    std::set<std::string> codes;
    std::size_t made = 0;
    for (const std::string& key : {session_key, std::string(32, 'K')}) {
        for (const std::uint64_t session : {1, 2}) {
            for (const std::string& first : {a, b}) {
                for (const std::string& second : {a, b}) {
                    for (const DataKind kind : {DataKind::link, DataKind::probe, DataKind::encrypted_link}) {
                        const DataHello hello{session, first, kind};
                        codes.insert(server_code(*tls, key, hello, second).value());
                        codes.insert(client_code(*tls, key, hello, second).value());
                        made += 2;
                    }
                }
            }
        }
    }
    EXPECT_EQ(codes.size(), made);
    for (const std::string& code : codes) EXPECT_EQ(code.size(), code_bytes);
}

// What one end sends the other receives, under keys that differ each way and time; sockets that are not encrypted have none.
TEST_F(DataHelloTest, KeysOfBothEndsFit) {
    const std::string nonce(nonce_bytes, 'n');
    const auto keys_of = [&](const DataHello& hello, const std::string& key, driver::Tls::Role end) {
        return data_keys(*tls, key, hello, nonce, end).value();
    };
    std::set<std::string> all;
    std::size_t made = 0;
    for (const std::string& key : {session_key, std::string(32, 'K')}) {
        for (const char first : {'a', 'b'}) {
            const DataHello hello{1, std::string(nonce_bytes, first), DataKind::encrypted_link};
            const auto client = keys_of(hello, key, driver::Tls::Role::client);
            const auto server = keys_of(hello, key, driver::Tls::Role::server);
            EXPECT_EQ(client.out, server.in);
            EXPECT_EQ(client.in, server.out);
            all.insert({client.out, client.in});
            made += 2;
            EXPECT_TRUE(keys_of({1, hello.nonce, DataKind::link}, key, driver::Tls::Role::client).empty());
        }
    }
    EXPECT_EQ(all.size(), made);
    for (const std::string& key : all) EXPECT_EQ(key.size(), 28u);
}

TEST_F(DataHelloTest, BothEndsKnowEachOther) {
    Seen first, second;
    ASSERT_TRUE(enter([&](const auto& socket) { first = serve(socket, session_key); }).ok());
    ASSERT_TRUE(enter([&](const auto& socket) { second = serve(socket, session_key); }, 43).ok());
    EXPECT_TRUE(first.good);
    EXPECT_TRUE(second.good);
    EXPECT_EQ(first.hello.session, 42u);
    EXPECT_EQ(second.hello.session, 43u);
    EXPECT_NE(first.hello.nonce, second.hello.nonce) << "drawn anew each time";
}

// Frames follow the code at once: nothing of them may be swallowed.
TEST_F(DataHelloTest, LeavesWhatComesBehind) {
    test::Ends ends = test::connected();
    auto done = std::async(std::launch::async, [&] {
        EXPECT_TRUE(serve(ends.other, session_key).good);
        EXPECT_TRUE(ends.other.send_all("next", 4, test::patience()).ok());
    });
    ASSERT_TRUE(enter_session(*tls, ends.one, 1, session_key, test::patience()).ok());
    std::string next(4, '\0');
    ASSERT_TRUE(ends.one.receive_all(next.data(), next.size(), test::patience()).ok());
    EXPECT_EQ(next, "next");
    done.get();
}

TEST_F(DataHelloTest, AnotherKeyIsRefusedAndToldNothing) {
    std::string near = session_key;
    near.back() = 'l';
    for (const std::string& key : {std::string(32, '\0'), near}) {
        Seen seen;
        const auto entered = enter([&](const auto& socket) { seen = serve(socket, key); });
        ASSERT_FALSE(entered.ok());
        EXPECT_EQ(entered.error().code, ErrorCode::permission_denied) << entered.error().to_string();
        EXPECT_EQ(seen.code, "") << "a code for whoever has no key";
    }
}

TEST_F(DataHelloTest, WhatWasRecordedHelpsNobody) {
    Seen recorded;
    ASSERT_TRUE(enter([&](const auto& socket) { recorded = serve(socket, session_key); }).ok());
    ASSERT_TRUE(recorded.good);
    const auto answering = [](const std::function<std::string(const std::string&)>& answer) {
        return [answer](const driver::TcpSocket& socket) {
            std::string hello(data_hello_bytes, '\0');
            ASSERT_TRUE(socket.receive_all(hello.data(), hello.size(), test::patience()).ok());
            const std::string said = answer(hello);
            ASSERT_TRUE(socket.send_all(said.data(), said.size(), test::patience()).ok());
            char code = 0;
            EXPECT_FALSE(socket.receive_all(&code, 1, test::patience()).ok()) << "a code was sent";
        };
    };
    const auto replayed = enter(answering([&](const std::string&) { return recorded.answer; }));
    EXPECT_EQ(replayed.error().code, ErrorCode::permission_denied);
    // The client's own nonce, with the code that it would send itself.
    const auto mirrored = enter(answering([&](const std::string& hello) {
        const std::string nonce = hello.substr(data_hello_bytes - nonce_bytes);
        return nonce + client_code(*tls, session_key, parse_data_hello(hello).value(), nonce).value();
    }));
    EXPECT_EQ(mirrored.error().code, ErrorCode::permission_denied);
    // The right code for another session.
    const auto other = enter(answering([&](const std::string& hello) {
        DataHello changed = parse_data_hello(hello).value();
        changed.session += 1;
        const std::string nonce(nonce_bytes, 's');
        return nonce + server_code(*tls, session_key, changed, nonce).value();
    }));
    EXPECT_EQ(other.error().code, ErrorCode::permission_denied);
}

TEST_F(DataHelloTest, WhoHangsUpIsNoEnd) {
    for (const std::size_t answered : {std::size_t{0}, std::size_t{1}, nonce_bytes + code_bytes - 1}) {
        const auto entered = enter([answered](const driver::TcpSocket& socket) {
            std::string hello(data_hello_bytes, '\0');
            ASSERT_TRUE(socket.receive_all(hello.data(), hello.size(), test::patience()).ok());
            const std::string part(answered, 'p');
            ASSERT_TRUE(socket.send_all(part.data(), part.size(), test::patience()).ok());
            socket.shut_down();
        });
        ASSERT_FALSE(entered.ok()) << answered;
        EXPECT_TRUE(entered.error().code == ErrorCode::end_of_file ||
                    entered.error().code == ErrorCode::io_error)
            << entered.error().to_string();
    }
    const auto at_once = enter([](const driver::TcpSocket& socket) { socket.shut_down(); });
    EXPECT_FALSE(at_once.ok());
}

TEST_F(DataHelloTest, WhoSaysNothingIsNotWaitedForLonger) {
    const test::Ends ends = test::connected();
    for (const int answered : {0, 10}) {
        const std::string part(static_cast<std::size_t>(answered), 'p');
        ASSERT_TRUE(ends.other.send_all(part.data(), part.size(), test::patience()).ok());
        const auto until = test::Clock::now() + std::chrono::milliseconds(100);
        const auto entered = enter_session(*tls, ends.one, 1, session_key, until);
        ASSERT_FALSE(entered.ok());
        EXPECT_EQ(entered.error().code, ErrorCode::timed_out) << entered.error().to_string();
        EXPECT_GE(test::Clock::now(), until);
    }
}

TEST_F(DataHelloTest, LentTokensThatNobodyFetchesAreKeptForSomeTime) {
    const std::shared_ptr<Served> client(std::make_shared<int>(), nullptr);
    Lent lent;
    const auto now = Lent::Clock::now();
    for (std::size_t i = 0; i < Lent::most; ++i) ASSERT_TRUE(lent.lend(*tls, {client}, now));
    EXPECT_FALSE(lent.lend(*tls, {client}, now + Lent::kept_for));
    const auto later = lent.lend(*tls, {client}, now + Lent::kept_for + std::chrono::seconds(1));
    ASSERT_TRUE(later) << later.error().to_string();
    EXPECT_TRUE(lent.take(*later));
}

}  // namespace
}  // namespace sidestep::wire
