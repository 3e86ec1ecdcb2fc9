// A process that listens under a name and says what a test wants, true or not.
#pragma once

#include <string>
#include <vector>

#include "tests/multiprocess/process.hpp"

namespace sidestep::multiprocess {

// The message and descriptor by which a real publisher answers the first question, for the name that is the socket's;
// the descriptor is the caller's. Empty where it sends none.
struct RealOffer {
    std::string message;
    int descriptor = -1;
};
RealOffer hear_offer(const std::string& socket);
// What importers ask.
std::string question(const std::string& name);

// Listens in this process, from its own thread-free backlog: the answer is sent by answer(), which the test
// calls while its copy waits, or ahead of it by accepting in a thread of its own.
class FakePublisher {
public:
    explicit FakePublisher(const std::string& socket);
    ~FakePublisher();
    FakePublisher(const FakePublisher&) = delete;
    FakePublisher& operator=(const FakePublisher&) = delete;

    // Takes the next one in, welcomes it, and answers its question by `message` with the descriptors, then keeps the
    // connection. False after 20 s.
    bool answer(const std::string& message, const std::vector<int>& descriptors);
    // The same in place of the welcome.
    bool begin(const std::string& message, const std::vector<int>& descriptors);
    // Takes the next one in and hangs up.
    bool hang_up();
    // Hangs up on all that were answered.
    void close_connections();

private:
    int accept();
    std::string welcome() const;
    const std::string socket_;
    int listener_ = -1;
    std::vector<int> connections_;
};

}  // namespace sidestep::multiprocess
