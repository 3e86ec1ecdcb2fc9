#include "tests/multiprocess/fake_publisher.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

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

}  // namespace

RealOffer hear_offer(const std::string& socket) {
    RealOffer heard;
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(socket);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 && has_input(fd)) {
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
    }
    ::close(fd);
    return heard;
}

FakePublisher::FakePublisher(const std::string& socket) {
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

bool FakePublisher::answer(const std::string& text, const std::vector<int>& descriptors) {
    const int fd = accept();
    if (fd < 0) return false;
    connections_.push_back(fd);
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
