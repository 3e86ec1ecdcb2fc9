// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace sidestep::driver {

class Fd {
public:
    Fd() = default;
    explicit Fd(int number) : number_(number) {}
    Fd(Fd&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        Fd old(std::exchange(number_, std::exchange(other.number_, -1)));
        return *this;
    }
    // The result of close() is ignored: code that needs the bytes on the device calls fsync first.
    ~Fd() {
        if (number_ >= 0) ::close(number_);
    }

    int get() const { return number_; }
    // The caller closes it from now on.
    int release() { return std::exchange(number_, -1); }
    explicit operator bool() const { return number_ >= 0; }

private:
    int number_ = -1;
};

}  // namespace sidestep::driver
