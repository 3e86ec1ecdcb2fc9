// Calls of the operating system that fail, end short or hang, in a program that is linked with calls.cpp.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace sidestep::failure {

enum class How {
    fails,       // with an error number that the call may have
    ends_short,  // moves fewer bytes than it was asked to, without an error
    hangs,       // until release(), and is made then
    kills,       // SIGKILL, before it is made
};
const char* to_string(How how);

// Calls of one name; those of CUDA's driver also from one place in the program, since how often some are made
// is a matter of time.
struct Call {
    std::string name;
    std::size_t site = 0;
    auto operator<=>(const Call&) const = default;
};

// Which one: the `number`-th, from 1 on.
struct Fault {
    Call call;
    unsigned number = 0;
    How how = How::fails;
};
std::string to_string(const Fault& fault);

// Whether a call can go like this at all: what moves no bytes ends short nowhere, and what asks neither a file system
// nor another process does not hang.
bool can(const std::string& call, How how);

// Of a call that the program counts and makes itself: how it goes wrong, or nothing where it does not.
std::optional<How> goes_wrong(const char* call, std::size_t site = 0);
// It hangs until release(), which ends it by `end`.
void hangs_until(std::function<void()> end);
// Of bytes to move, as many as a call that ends short moves: storage moves whole blocks, or what is left.
std::size_t fewer(std::size_t bytes);

// What this thread calls meanwhile is not the library's: calls of the driver's own, as of the stand-in for it.
class Unwatched {
public:
    Unwatched();
    ~Unwatched();
    Unwatched(const Unwatched&) = delete;
    Unwatched& operator=(const Unwatched&) = delete;
};

// From its construction to its end, calls of all threads are counted, and one of them goes wrong. One at a time.
class Watch {
public:
    explicit Watch(Fault fault = {});
    ~Watch();  // releases
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // How often each call has been made.
    std::map<Call, unsigned> made() const;
    // Whether the fault has come about, and whether its call still hangs.
    bool struck() const;
    bool hangs() const;
    // What hangs goes on; waits until it has come back.
    void release();

    struct State;

private:
    std::shared_ptr<State> state_;
};

}  // namespace sidestep::failure
