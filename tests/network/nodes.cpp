#include "tests/network/nodes.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace sidestep::test {

namespace fs = std::filesystem;

namespace {

fs::path make_folder() {
    std::string name = (fs::temp_directory_path() / "sidestep-network-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    fs::create_directories(fs::path(name) / "in");
    fs::create_directories(fs::path(name) / "out");
    return name;
}

}  // namespace

Nodes::Nodes() : folder(make_folder()), machine(*Context::open({"dgx-h100"})) {
    serve("gpu:*,host=256MiB,file:" + path("in") + ",file:" + path("out") + "=rw,shared:*");
    here = std::make_unique<Context>(*client());
}

Nodes::~Nodes() {
    here.reset();
    serving.reset();
    fs::remove_all(folder);
}

void Nodes::serve(const std::string& allowed, ServeOptions options) {
    options.listen = address.empty() ? "127.0.0.1:0" : address;
    options.allow = allow = allowed;
    options.key_file = path("key");
    options.name = "the-node";
    serving.reset();
    auto started = machine.serve(options);
    if (!started) ADD_FAILURE() << started.error().to_string();
    serving = std::make_unique<Serving>(std::move(*started));
    address = serving->addresses().front();
}

Result<Context> Nodes::client(const std::string& key_file) const {
    ContextOptions options{"dgx-h100"};
    options.nodes = "n=" + address + ",m=" + address;  // one node by two names is two to its client
    options.key_file = key_file.empty() ? path("key") : key_file;
    return Context::open(std::move(options));
}

bool Nodes::holds(const Buffer& memory, std::string_view bytes) {
    if (memory.place().is_file()) return test::get(memory.place().path()) == bytes;
    held_.assign(bytes.size(), '\0');
    const auto done = here->copy(memory, Buffer::host(held_.data(), held_.size())).wait();
    EXPECT_TRUE(done) << done.error().to_string();
    return held_ == bytes;
}

std::string Nodes::port() const {
    return address.substr(address.rfind(':') + 1);
}

RawSocket::RawSocket(const std::string& port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo("127.0.0.1", port.c_str(), &hints, &found) != 0) return;
    fd_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd_, found->ai_addr, found->ai_addrlen) != 0) {
        ::close(fd_);
        fd_ = -1;
    }
    ::freeaddrinfo(found);
}

RawSocket::~RawSocket() {
    if (fd_ >= 0) ::close(fd_);
}

bool RawSocket::send(const std::string& bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::string RawSocket::receive(std::size_t most, int within_ms) const {
    std::string all;
    while (all.size() < most) {
        pollfd waits{fd_, POLLIN, 0};
        if (::poll(&waits, 1, within_ms) <= 0) break;
        std::string part(most - all.size(), '\0');
        const ssize_t came = ::recv(fd_, part.data(), part.size(), 0);
        if (came <= 0) break;
        all += part.substr(0, static_cast<std::size_t>(came));
    }
    return all;
}

bool RawSocket::ended(int within_ms) const {
    pollfd waits{fd_, POLLIN, 0};
    char byte = 0;
    while (::poll(&waits, 1, within_ms) > 0)
        if (::recv(fd_, &byte, 1, 0) <= 0) return true;
    return false;
}

}  // namespace sidestep::test
