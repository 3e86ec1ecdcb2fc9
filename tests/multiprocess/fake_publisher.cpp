#include "tests/multiprocess/fake_publisher.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sidestep::multiprocess {
namespace {

sockaddr_un address_of(const std::string& socket) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket.c_str(), sizeof(address.sun_path) - 1);
    return address;
}

bool has_input(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 20'000) == 1;
}

// Its head with the version, the word, the number of the question, and the text.
std::string message_of(char word, std::uint64_t number, const std::string& text) {
    const auto size = static_cast<std::uint16_t>(text.size());
    std::string bytes("SSDP\2\0", 6);
    bytes += word;
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    return bytes + text;
}

RealOffer receive(int fd) {
    RealOffer heard;
    if (!has_input(fd)) return heard;
    heard.message.resize(8192);
    iovec part{heard.message.data(), heard.message.size()};
    alignas(cmsghdr) char control[256] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    heard.message.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && size > 0)
        std::memcpy(&heard.descriptor, CMSG_DATA(header), sizeof(int));
    return heard;
}

bool send(int fd, const std::string& text, const std::vector<int>& descriptors) {
    iovec part{const_cast<char*>(text.data()), text.size()};
    std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
        std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    return ::sendmsg(fd, &message, MSG_NOSIGNAL) >= 0;
}

}  // namespace

std::string question(const std::string& name) {
    return message_of(2, 1, name);
}

RealOffer hear_offer(const std::string& socket) {
    RealOffer heard;
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(socket);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
        !receive(fd).message.empty() && send(fd, question(socket.substr(socket.rfind('/') + 1)), {}))
        heard = receive(fd);
    ::close(fd);
    return heard;
}

FakePublisher::FakePublisher(const std::string& socket) : socket_(socket) {
    listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(socket);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
}

FakePublisher::~FakePublisher() {
    close_connections();
    ::close(listener_);
}

int FakePublisher::accept() {
    return has_input(listener_) ? ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC) : -1;
}

std::string FakePublisher::welcome() const {
    struct stat status {};
    EXPECT_EQ(::lstat(socket_.c_str(), &status), 0);
    return message_of(0, 0, fmt::format("{}:{}", status.st_dev, status.st_ino));
}

bool FakePublisher::answer(const std::string& message, const std::vector<int>& descriptors) {
    return begin(welcome(), {}) && !receive(connections_.back()).message.empty() &&
           send(connections_.back(), message, descriptors);
}

bool FakePublisher::begin(const std::string& message, const std::vector<int>& descriptors) {
    const int fd = accept();
    if (fd < 0) return false;
    connections_.push_back(fd);
    return send(fd, message, descriptors);
}

bool FakePublisher::hang_up() {
    const int fd = accept();
    if (fd < 0) return false;
    ::close(fd);
    return true;
}

void FakePublisher::close_connections() {
    for (const int fd : connections_) ::close(fd);
    connections_.clear();
}

}  // namespace sidestep::multiprocess
