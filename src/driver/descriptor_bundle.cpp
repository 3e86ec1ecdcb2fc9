// A bundle is one end of a socket pair with a message in it that nobody ever takes out: it is looked at
// (MSG_PEEK), and each look gives fresh descriptors. A message carries at most 253 (SCM_MAX_FD of Linux), so
// more of them go into bundles of their own, and those into one.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/local_socket.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr std::size_t max_in_message = 250;
constexpr char plain = 'd';   // the message's descriptors are those that were bundled
constexpr char nested = 'b';  // they are bundles

struct Peeked {
    char kind = 0;
    std::vector<Fd> descriptors;
};

Result<Fd> pack(std::span<const int> descriptors, char kind) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
        return system_error(errno, "no socket could be made", "socketpair");
    const Fd kept(ends[0]);
    Fd bundle(ends[1]);
    iovec part{&kind, 1};
    std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    if (::sendmsg(kept.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        const int number = errno;
        return system_error(number, fmt::format("{} descriptors could not be bundled", descriptors.size()),
                            "sendmsg", number == ETOOMANYREFS ? "raise `ulimit -n`" : "");
    }
    return bundle;
}

Error no_bundle(const char* why) {
    return Error{ErrorCode::io_error,
                 fmt::format("a descriptor that should stand for others does not: {}", why),
                 "descriptor bundle",
                 {}};
}

Result<Peeked> peek(int bundle) {
    Peeked peeked;
    iovec part{&peeked.kind, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE((max_in_message + 3) * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(bundle, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1)
        return no_bundle("it is empty");
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            peeked.descriptors.emplace_back(number);
        }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0)
        return Error{ErrorCode::io_error, "this process has no room for the descriptors of shared memory",
                     "descriptor bundle", "raise `ulimit -n`"};
    if (peeked.kind != plain && peeked.kind != nested) return no_bundle("it holds something else");
    return peeked;
}

}  // namespace

Result<Fd> bundle_descriptors(std::span<const int> descriptors) {
    if (descriptors.empty() || descriptors.size() > max_in_message * max_in_message)
        return Error{ErrorCode::unsupported,
                     fmt::format("{} descriptors cannot be bundled", descriptors.size()),
                     "descriptor bundle",
                     {}};
    if (descriptors.size() <= max_in_message) return pack(descriptors, plain);
    std::vector<Fd> bundles;
    std::vector<int> numbers;
    for (std::size_t at = 0; at < descriptors.size(); at += max_in_message) {
        const auto part = descriptors.subspan(at, std::min(max_in_message, descriptors.size() - at));
        SIDESTEP_TRY(Fd bundle, pack(part, plain));
        numbers.push_back(bundle.get());
        bundles.push_back(std::move(bundle));
    }
    return pack(numbers, nested);
}

Result<std::vector<Fd>> open_bundle(int bundle, std::size_t max) {
    SIDESTEP_TRY(Peeked outer, peek(bundle));
    std::vector<Fd> all;
    if (outer.kind == plain) {
        all = std::move(outer.descriptors);
    } else {
        for (const Fd& part : outer.descriptors) {
            SIDESTEP_TRY(Peeked inner, peek(part.get()));
            if (inner.kind != plain) return no_bundle("bundles lie too deep");
            for (Fd& descriptor : inner.descriptors) all.push_back(std::move(descriptor));
            if (all.size() > max) break;
        }
    }
    if (all.size() > max) return no_bundle("it holds too many");
    return all;
}

}  // namespace sidestep::driver
