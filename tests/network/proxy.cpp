#include "tests/network/proxy.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <gtest/gtest.h>

namespace sidestep::test {
namespace {

sockaddr_in at_port(int port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    return at;
}

int connect_to(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in at = at_port(port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0) return fd;
    ::close(fd);
    return -1;
}

}  // namespace

Proxy::Proxy(const std::string& port)
    : port_(port), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = at_port(0);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    accepting_ = std::thread([this] { accept(); });
}

Proxy::~Proxy() {
    ending_ = true;
    refuse();
    cut();
    for (Pair& pair : pairs_) {
        pair.there.join();
        pair.back.join();
        ::close(pair.client);
        ::close(pair.node);
    }
    ::close(listener_);
}

void Proxy::accept() {
    while (true) {
        const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) return;
        const int node = connect_to(std::stoi(port_));
        if (node < 0) {
            ::close(client);
            continue;
        }
        std::lock_guard lock(mutex_);
        const int number = ++connections_;  // counted, it can be cut
        Pair& pair = pairs_.emplace_back(Pair{client, node, number});
        std::string* const record = records_ ? &recorded_.emplace_back() : nullptr;
        pair.there =
            std::thread([this, client, node, number, record] { pass(client, node, number, record); });
        pair.back = std::thread([this, client, node] { pass(node, client, 0, nullptr); });
    }
}

void Proxy::look_for(std::string words) {
    std::lock_guard lock(mutex_);
    words_ = std::move(words);
}

std::vector<std::string> Proxy::recorded() {
    std::lock_guard lock(mutex_);
    return {recorded_.begin(), recorded_.end()};
}

// `passed`: what has come before, as far as the words may begin in it.
void Proxy::count(std::string& passed, const char* bytes, std::size_t size) {
    std::lock_guard lock(mutex_);
    if (words_.empty()) return;
    passed.append(bytes, size);
    for (std::size_t at = 0; (at = passed.find(words_, at)) != std::string::npos; ++at) ++seen_;
    passed.erase(0, passed.size() - std::min(passed.size(), words_.size() - 1));
}

void Proxy::pass(int from, int to, int number, std::string* record) {
    std::string before;
    std::array<char, 65536> bytes;
    std::size_t passed = 0;
    while (true) {
        const ssize_t came = ::recv(from, bytes.data(), bytes.size(), 0);
        while (stalled_ && !ending_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (came <= 0) break;
        if (number != 0) bytes_passed_ += static_cast<std::size_t>(came);
        const std::size_t damaged = damaged_byte_;
        if (number != 0 && number == damaged_ && damaged >= passed &&
            damaged < passed + static_cast<std::size_t>(came))
            bytes[damaged - passed] = static_cast<char>(bytes[damaged - passed] ^ 1);
        passed += static_cast<std::size_t>(came);
        count(before, bytes.data(), static_cast<std::size_t>(came));
        if (record != nullptr) {
            std::lock_guard lock(mutex_);
            record->append(bytes.data(), static_cast<std::size_t>(came));
        }
        for (ssize_t gone = 0; gone < came;) {
            const ssize_t sent =
                ::send(to, bytes.data() + gone, static_cast<std::size_t>(came - gone), MSG_NOSIGNAL);
            if (sent <= 0) break;
            gone += sent;
        }
    }
    ::shutdown(to, SHUT_RDWR);
    ::shutdown(from, SHUT_RDWR);
}

void Proxy::cut(int after) {
    std::lock_guard lock(mutex_);
    for (const Pair& pair : pairs_) {
        if (pair.number <= after) continue;
        ::shutdown(pair.client, SHUT_RDWR);
        ::shutdown(pair.node, SHUT_RDWR);
    }
}

void Proxy::refuse() {
    ::shutdown(listener_, SHUT_RDWR);
    if (accepting_.joinable()) accepting_.join();
}

}  // namespace sidestep::test
