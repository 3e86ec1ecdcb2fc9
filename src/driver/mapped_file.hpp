// A file that several processes map to read and write each other's words.
#pragma once

#include <string>
#include <utility>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

class MappedFile {
public:
    // A new file of `bytes` zero bytes with all its blocks taken, so that touching it never ends in a signal.
    // What lay at the path is removed first. For this user alone.
    static Result<MappedFile> create(const std::string& path, Bytes bytes);

    // Maps what another process created. Fails where the descriptor is a file of another size.
    static Result<MappedFile> adopt(Fd fd, Bytes bytes);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept
        : fd_(std::move(other.fd_)),
          address_(std::exchange(other.address_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(address_, other.address_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~MappedFile();

    void* address() const { return address_; }
    int descriptor() const { return fd_.get(); }
    // Removes `path` if it still is this very file.
    void remove(const std::string& path) const;

private:
    MappedFile(Fd fd, void* address, Bytes bytes) : fd_(std::move(fd)), address_(address), bytes_(bytes) {}
    Fd fd_;
    void* address_ = nullptr;
    Bytes bytes_ = 0;
};

}  // namespace sidestep::driver
