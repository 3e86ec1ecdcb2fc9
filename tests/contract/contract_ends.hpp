// Buffers for the contract's tests: filled, read back and removed, wherever they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "backend_contract.hpp"

namespace sidestep::contract {

using Content = std::vector<unsigned char>;

// Bytes that differ from place to place and from seed to seed.
Content pattern(Bytes size, std::uint64_t seed);

// A folder that goes with everything in it. Below $TMPDIR, or /tmp.
class TemporaryFolder {
public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    std::string file(const std::string& name) const { return (path_ / name).string(); }

private:
    std::filesystem::path path_;
};

// `size` bytes at an end.
class TestBuffer {
public:
    // Memory of the backend where it allocates that kind, else the test's own.
    TestBuffer(const BackendUnderTest& under_test, backend::Backend& backend, const End& end, Bytes size);

    const Buffer& buffer() const { return buffer_; }
    void write(const Content& content);
    Content read() const;

private:
    const BackendUnderTest& under_test_;
    std::optional<TemporaryFolder> folder_;
    Allocation allocation_;
    Content own_;
    Buffer buffer_;
};

// Whether the capability is made for these two ends.
bool fits(const backend::Capability& capability, const End& from, const End& to, const Topology& topology);

// "copy engine gpu:0 -> gpu:1", for messages.
std::string words(const backend::Capability& capability, const End& from, const End& to);

}  // namespace sidestep::contract
