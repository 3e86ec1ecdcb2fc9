// Bytes over sockets that are encrypted, by OpenSSL and, where it can, by the kernel.
#include "driver/tls_socket.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include "tests/contents.hpp"
#include "tests/network/loopback.hpp"

namespace sidestep::driver {
namespace {

using Kernel = TlsSocket::Kernel;
using Part = TcpSocket::Part;
using Room = TcpSocket::Room;

const std::string secret_there(tls_secret_bytes, 't');
const std::string secret_back(tls_secret_bytes, 'b');

std::vector<Part> parts_of(std::string_view text, std::size_t cut) {
    std::vector<Part> parts;
    for (std::size_t at = 0; at < text.size() && parts.size() < 256; at += cut)
        parts.push_back({text.data() + at, std::min(cut, text.size() - at)});
    return parts;
}

std::vector<Room> rooms_of(std::string& text, std::size_t from, std::size_t cut) {
    std::vector<Room> rooms;
    for (std::size_t at = from; at < text.size() && rooms.size() < 256; at += cut)
        rooms.push_back({text.data() + at, std::min(cut, text.size() - at)});
    return rooms;
}

// All of it, in parts of that size, whatever is taken at once.
Result<void> send_all(TlsSocket& socket, std::string_view text, std::size_t cut) {
    const auto until = wire::test::patience();
    while (!text.empty()) {
        const auto parts = parts_of(text, cut);
        const auto sent = socket.send(parts);
        if (!sent) return sent.error();
        text.remove_prefix(*sent);
        if (wire::test::Clock::now() > until) return Error{ErrorCode::timed_out, "not taken", "test", {}};
    }
    return {};
}

// So many bytes, or what came before the end.
Result<std::string> receive_all(TlsSocket& socket, std::size_t size, std::size_t cut) {
    std::string text(size, '?');
    const auto until = wire::test::patience();
    for (std::size_t at = 0; at < size;) {
        const auto rooms = rooms_of(text, at, cut);
        const auto came = socket.receive(rooms);
        if (!came) return came.error();
        if (*came && **came == 0) return text.substr(0, at);
        at += came->value_or(0);
        if (wire::test::Clock::now() > until) return Error{ErrorCode::timed_out, "nothing comes", "test", {}};
    }
    return text;
}

std::string got(const Result<std::string>& came, const std::string& otherwise) {
    return came ? *came : otherwise;
}

TlsSocket encrypted(TcpSocket socket, bool client, Kernel kernel) {
    auto made = TlsSocket::encrypted(std::move(socket), client ? secret_there : secret_back,
                                     client ? secret_back : secret_there, kernel);
    EXPECT_TRUE(made) << made.error().to_string();
    // In a virtual machine whose kernel has it (tests/vm/jobs/kernel_tls).
    const bool kernel_has_it = std::getenv("SIDESTEP_TEST_KERNEL_TLS") != nullptr;
    if (kernel == Kernel::keeps_out || kernel_has_it) {
        EXPECT_EQ(made->words(),
                  kernel == Kernel::keeps_out ? "encrypted by OpenSSL" : "encrypted by the kernel");
    }
    return std::move(*made);
}

class TlsSocketTest : public testing::TestWithParam<std::tuple<Kernel, Kernel>> {};

TEST_P(TlsSocketTest, BytesComeAsTheyWereInAnyCut) {
    struct Case {
        std::size_t size, parts, rooms;
    };
    for (const Case& one : {Case{1, 1, 1}, Case{64, 64, 128 << 10}, Case{16384, 16384, 16384},
                            Case{16385, 7, 100}, Case{300'000, 100'000, 70'000}, Case{300'000, 1000, 1 << 20},
                            Case{3 << 20, 256 << 10, 12'345}, Case{3 << 20, 12'345, 256 << 10}}) {
        wire::test::Ends ends = wire::test::connected();
        TlsSocket client = encrypted(std::move(ends.one), true, std::get<0>(GetParam()));
        TlsSocket server = encrypted(std::move(ends.other), false, std::get<1>(GetParam()));
        const std::string there = test::text_of(one.size, 1);
        const std::string back = test::text_of(one.size, 2);
        std::thread other([&] {
            EXPECT_TRUE(got(receive_all(server, one.size, one.rooms), "") == there) << one.size;
            EXPECT_TRUE(send_all(server, back, one.parts).ok());
        });
        EXPECT_TRUE(send_all(client, there, one.parts).ok());
        EXPECT_TRUE(got(receive_all(client, one.size, one.rooms), "") == back) << one.size;
        other.join();
        EXPECT_FALSE(client.holds());
    }
}

// What the rooms have no place for waits, and is told of, since nobody is woken for it.
TEST_P(TlsSocketTest, WhatIsLeftIsHeld) {
    wire::test::Ends ends = wire::test::connected();
    TlsSocket client = encrypted(std::move(ends.one), true, std::get<0>(GetParam()));
    TlsSocket server = encrypted(std::move(ends.other), false, Kernel::keeps_out);
    ASSERT_TRUE(send_all(client, "abcdef", 6).ok());
    EXPECT_EQ(got(receive_all(server, 2, 2), ""), "ab");
    EXPECT_TRUE(server.holds());
    EXPECT_EQ(got(receive_all(server, 4, 4), ""), "cdef");
    EXPECT_FALSE(server.holds());
    client.socket().shut_down();
    EXPECT_EQ(got(receive_all(server, 1, 1), "?"), "");
}

INSTANTIATE_TEST_SUITE_P(Ends, TlsSocketTest,
                         testing::Combine(testing::Values(Kernel::where_it_can, Kernel::keeps_out),
                                          testing::Values(Kernel::where_it_can, Kernel::keeps_out)));

// What travels, with one byte of it changed: nothing of it arrives as if it were good.
TEST(TlsSocketTamper, IsSeen) {
    const std::string text = "what nobody else is to read";
    const std::size_t record = tls_record_head + text.size() + 1 + 16;
    for (std::size_t byte = 0; byte <= record; ++byte) {
        wire::test::Ends sent = wire::test::connected();
        TlsSocket client = encrypted(std::move(sent.one), true, Kernel::keeps_out);
        ASSERT_TRUE(send_all(client, text, text.size()).ok());
        std::string travels(record, '\0');
        ASSERT_TRUE(sent.other.receive_all(travels.data(), record, wire::test::patience()).ok());
        EXPECT_EQ(travels.find("nobody"), std::string::npos);
        if (byte < record) travels[byte] = static_cast<char>(travels[byte] ^ 1);
        wire::test::Ends ends = wire::test::connected();
        ASSERT_TRUE(ends.one.send_all(travels.data(), record, wire::test::patience()).ok());
        ends.one.shut_down();
        TlsSocket server = encrypted(std::move(ends.other), false, Kernel::keeps_out);
        const auto came = receive_all(server, text.size(), text.size());
        // A longer record than came is cut off.
        EXPECT_EQ(got(came, "") == text, byte == record) << byte;
    }
}

TEST(TlsSocketTamper, RecordsComeOnceAndInOrder) {
    wire::test::Ends sent = wire::test::connected();
    TlsSocket client = encrypted(std::move(sent.one), true, Kernel::keeps_out);
    const std::size_t record = tls_record_head + 1 + 1 + 16;
    std::string travels(2 * record, '\0');
    ASSERT_TRUE(send_all(client, "a", 1).ok());
    ASSERT_TRUE(send_all(client, "b", 1).ok());
    ASSERT_TRUE(sent.other.receive_all(travels.data(), travels.size(), wire::test::patience()).ok());
    const std::string first = travels.substr(0, record);
    const std::string second = travels.substr(record);
    for (const std::string& one : {first + first, second + first, second}) {
        wire::test::Ends ends = wire::test::connected();
        ASSERT_TRUE(ends.one.send_all(one.data(), one.size(), wire::test::patience()).ok());
        TlsSocket server = encrypted(std::move(ends.other), false, Kernel::keeps_out);
        const auto came = receive_all(server, 2, 2);
        ASSERT_FALSE(came);
        EXPECT_EQ(came.error().code, ErrorCode::io_error) << came.error().to_string();
    }
}

TEST(TlsSocketTamper, OtherHeadsAreNone) {
    for (const auto& [head, size] :
         std::vector<std::pair<std::array<unsigned char, 5>, std::size_t>>{{{23, 3, 3, 0, 17}, 17},
                                                                           {{23, 3, 3, 0x41, 0}, 16384 + 256},
                                                                           {{23, 3, 3, 0x41, 1}, 0},
                                                                           {{23, 3, 3, 0, 16}, 0},
                                                                           {{22, 3, 3, 0, 17}, 0},
                                                                           {{23, 3, 1, 0, 17}, 0}}) {
        const auto found = parse_record_head(head.data());
        EXPECT_EQ(found ? *found : 0, size);
    }
}

}  // namespace
}  // namespace sidestep::driver
