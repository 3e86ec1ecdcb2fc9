#include "wire/probe.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/thread.hpp"
#include "base/try.hpp"
#include "wire/probes.hpp"

namespace sidestep::wire {
namespace {

// Well before the node closes them.
constexpr std::chrono::milliseconds keeps{Probes::Limits{}.idle / 2};
constexpr std::chrono::milliseconds answer_limit{10'000};

Result<void> ask(const driver::PlainSocket& socket, char what, std::uint64_t count) {
    std::array<char, probe::head_bytes> head{};
    head[0] = what;
    std::memcpy(head.data() + 1, &count, sizeof(count));
    return socket.send(head.data(), head.size());
}

Result<void> move(const driver::PlainSocket& socket, ProbeLoop& loop, char what, Bytes bytes) {
    SIDESTEP_CHECK(ask(socket, what, bytes));
    if (what == probe::give) return loop.receive(socket, bytes, ProbeLoop::Clock::time_point::max());
    SIDESTEP_CHECK(loop.send(socket, bytes, ProbeLoop::Clock::time_point::max()));
    char done = 0;
    return socket.receive(&done, 1);
}

Result<void> check(std::uint64_t count, std::uint64_t most) {
    if (count > 0 && count <= most) return {};
    return Error{
        ErrorCode::invalid_argument, fmt::format("a probe takes 1 to {}, not {}", most, count), "probe", {}};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<std::unique_ptr<Probe>> Probe::open(std::shared_ptr<Peer> peer, std::size_t sockets) {
    if (sockets > Probes::most_of_probe)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a probe has {} sockets at most, not {}", Probes::most_of_probe, sockets),
                     "probe",
                     {}};
    const std::size_t count =
        sockets > 0 ? sockets : std::min(peer->most_useful_sockets(), Probes::most_of_probe);
    std::unique_ptr<Probe> probe(new Probe(std::move(peer), count));
    SIDESTEP_CHECK(probe->make_ready());
    // A node that has too many hangs up on a socket that it has let in.
    SIDESTEP_CHECK(probe->send(count));
    return probe;
}

Result<void> Probe::make_ready() {
    if (!lines_.empty() && Clock::now() - used_ < keeps) return {};
    lines_.clear();
    const auto until = Clock::now() + answer_limit;
    for (std::size_t i = 0; i < count_; ++i) {
        SIDESTEP_TRY(driver::TcpSocket socket, peer_->probe_socket(until));
        SIDESTEP_TRY(auto plain, driver::PlainSocket::make(std::move(socket), Probes::Limits{}.idle));
        lines_.push_back({std::move(plain), {}});
    }
    used_ = Clock::now();
    return {};
}

Result<double> Probe::all(char what, Bytes bytes) {
    SIDESTEP_CHECK(check(bytes, probe::most_bytes));
    SIDESTEP_CHECK(make_ready());
    std::vector<std::optional<Error>> errors(lines_.size());
    const auto part = [&](std::size_t i) { return bytes / count_ + (i < bytes % count_ ? 1 : 0); };
    const auto one = [&](std::size_t i) {
        const Result<void> moved =
            part(i) > 0 ? move(lines_[i].socket, lines_[i].loop, what, part(i)) : Result<void>();
        if (!moved) errors[i] = moved.error();
    };
    // The threads and their memory are there before the time begins.
    for (std::size_t i = 0; i < lines_.size(); ++i) lines_[i].loop.prepare(part(i));
    std::latch begin(1);
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < lines_.size() && part(i) > 0; ++i) {
        auto thread = base::start_thread(
            [&, i] {
                begin.wait();
                one(i);
            },
            "probe");
        if (!thread) errors[i] = thread.error();
        if (thread) threads.push_back(std::move(*thread));
    }
    const auto start = Clock::now();
    begin.count_down();
    one(0);
    for (std::thread& thread : threads) thread.join();
    const double seconds = seconds_since(start);
    used_ = Clock::now();
    for (const auto& error : errors) {
        if (!error) continue;
        lines_.clear();  // somewhere in the middle of something
        return *error;
    }
    return seconds;
}

Result<double> Probe::send(Bytes bytes) {
    return all(probe::drain, bytes);
}

Result<double> Probe::receive(Bytes bytes) {
    return all(probe::give, bytes);
}

Result<double> Probe::echo(std::uint64_t count) {
    SIDESTEP_CHECK(check(count, probe::most_echoes));
    SIDESTEP_CHECK(make_ready());
    const driver::PlainSocket& socket = lines_.front().socket;
    const auto loop = [&]() -> Result<double> {
        SIDESTEP_CHECK(ask(socket, probe::echo, count));
        std::array<char, probe::message> message{};
        const auto start = Clock::now();
        for (std::uint64_t i = 0; i < count; ++i) {
            SIDESTEP_CHECK(socket.send(message.data(), message.size()));
            SIDESTEP_CHECK(socket.receive(message.data(), message.size()));
        }
        return seconds_since(start);
    };
    auto seconds = loop();
    used_ = Clock::now();
    if (!seconds) lines_.clear();
    return seconds;
}

}  // namespace sidestep::wire
