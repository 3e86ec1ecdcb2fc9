// A node that serves, and a client of it, in one process.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <sidestep/sidestep.hpp>

#include "tests/contents.hpp"

namespace sidestep::test {

// A node with emulated GPUs, which lets others reach its GPUs, host memory and a folder, and a machine of the same kind that
// calls it "n". Goes with its folder.
class Nodes : public testing::Test {
protected:
    Nodes();
    ~Nodes() override;

    // Listens again at the same port.
    void serve(const std::string& allow, ServeOptions options = {});
    // A client with a key of its own, or the node's.
    Result<Context> client(const std::string& key_file = {}) const;
    // Whether `memory`, or the whole file, holds these bytes and no others.
    bool holds(const Buffer& memory, std::string_view bytes);
    std::string path(const std::string& name) const { return (folder / name).string(); }
    std::string port() const;

    std::filesystem::path folder;
    std::string allow;
    Context machine;                   // of the node
    std::unique_ptr<Serving> serving;  // reset: the node is gone
    std::string address;
    std::unique_ptr<Context> here;

private:
    std::string held_;  // kept: memory that is new takes a thread sanitizer longer than the copy
};

// A connection that speaks no protocol, to the node's port.
class RawSocket {
public:
    explicit RawSocket(const std::string& port);
    ~RawSocket();
    RawSocket(const RawSocket&) = delete;
    RawSocket& operator=(const RawSocket&) = delete;

    bool send(const std::string& bytes) const;
    // What comes within that time, until the other end hangs up, or `most` bytes have come.
    std::string receive(std::size_t most, int within_ms) const;
    // The other end hangs up within that time.
    bool ended(int within_ms) const;

private:
    int fd_ = -1;
};

}  // namespace sidestep::test
