// A page over HTTP that has what a node has counted. Nobody has to show who he is: it listens where only those
// reach it who may know.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "driver/event_loop.hpp"
#include "driver/tcp_socket.hpp"
#include "wire/address.hpp"

namespace sidestep::wire {

class MetricsPage {
public:
    static constexpr std::size_t most_visitors = 16;
    static constexpr std::size_t longest_request = std::size_t{8} << 10;
    // From the connection to the last byte of the answer.
    static constexpr std::chrono::milliseconds patience{5000};

    // `text` makes the page, on a thread of this object's, until the destructor has ended. Fails where the address
    // cannot be had.
    static Result<std::unique_ptr<MetricsPage>> start(const HostPort& at, std::function<std::string()> text);
    ~MetricsPage();
    MetricsPage(const MetricsPage&) = delete;
    MetricsPage& operator=(const MetricsPage&) = delete;

    const std::vector<HostPort>& addresses() const { return addresses_; }

private:
    using Clock = std::chrono::steady_clock;
    struct Visitor {
        driver::TcpSocket socket;
        Clock::time_point since;
        driver::EventLoop::Id watch = 0;
        std::string came{};
        std::string answer{};
        std::size_t gone = 0;  // bytes of the answer
    };

    explicit MetricsPage(std::function<std::string()> text) : text_(std::move(text)) {}
    Result<void> listen(const HostPort& at);
    void accept(const driver::TcpListener& listener);
    void look_at(std::uint64_t number);
    // Whether there is more to do for the visitor.
    bool take(Visitor& visitor);
    bool give(Visitor& visitor);
    void drop(std::uint64_t number);
    void tick();

    const std::function<std::string()> text_;
    std::vector<HostPort> addresses_;
    std::vector<driver::TcpListener> listeners_;
    std::vector<driver::EventLoop::Id> watches_;  // of the listeners
    std::uint64_t next_ = 1;                      // the loop's thread alone, as the next ones
    std::map<std::uint64_t, Visitor> visitors_;
    bool full_ = false;                        // no descriptor is left: they wait
    std::unique_ptr<driver::EventLoop> loop_;  // last: its thread uses all else
};

}  // namespace sidestep::wire
