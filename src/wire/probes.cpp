#include "wire/probes.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "wire/probe_loop.hpp"

namespace sidestep::wire {
namespace {

using Clock = std::chrono::steady_clock;

Result<void> echo(const driver::PlainSocket& socket, std::uint64_t count, Clock::time_point until) {
    std::array<char, probe::message> message{};
    for (; count > 0; --count) {
        if (Clock::now() >= until) return Error{ErrorCode::timed_out, "a probe took too long", "probe", {}};
        SIDESTEP_CHECK(socket.receive(message.data(), message.size()));
        SIDESTEP_CHECK(socket.send(message.data(), message.size()));
    }
    return {};
}

// One thing that the client wants.
Result<void> answer(const driver::PlainSocket& socket, ProbeLoop& loop, std::chrono::milliseconds longest) {
    std::array<char, probe::head_bytes> head{};
    SIDESTEP_CHECK(socket.receive(head.data(), head.size()));
    std::uint64_t count = 0;
    std::memcpy(&count, head.data() + 1, sizeof(count));
    const Clock::time_point until = Clock::now() + longest;
    if (head[0] == probe::drain && count <= probe::most_bytes) {
        loop.prepare(count);
        SIDESTEP_CHECK(loop.receive(socket, count, until));
        return socket.send(&probe::drain, 1);
    }
    if (head[0] == probe::give && count <= probe::most_bytes) {
        loop.prepare(count);
        return loop.send(socket, count, until);
    }
    if (head[0] == probe::echo && count <= probe::most_echoes) return echo(socket, count, until);
    return Error{ErrorCode::invalid_argument, "a probe asks for what there is not", "probe", {}};
}

}  // namespace

// A thread that has told its end may still be counted.
Probes::Probes(Limits limits) : limits_(limits), workers_({2 * most, 0, most, false}, "probes of clients") {}

Probes::~Probes() {
    end();
}

Result<void> Probes::add(std::uint64_t client, driver::TcpSocket socket) {
    SIDESTEP_TRY(auto plain, driver::PlainSocket::make(std::move(socket), limits_.idle));
    const auto shared = std::make_shared<const driver::PlainSocket>(std::move(plain));
    std::lock_guard lock(mutex_);
    const auto of_client = static_cast<std::size_t>(std::count_if(
        running_.begin(), running_.end(), [&](const auto& one) { return one.second.client == client; }));
    if (ending_ || running_.size() >= most || of_client >= most_of_client)
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} probes are here, {} of them its own", running_.size(), of_client),
                     "probe",
                     {}};
    const std::uint64_t number = next_++;
    SIDESTEP_CHECK(workers_.add([this, number, shared] { run(number, *shared); }));
    running_.emplace(number, One{client, shared});
    return {};
}

void Probes::run(std::uint64_t number, const driver::PlainSocket& socket) {
    ProbeLoop loop;
    Result<void> done;
    while (done) done = answer(socket, loop, limits_.longest);
    if (done.error().code != ErrorCode::end_of_file)
        base::log(base::LogLevel::info, fmt::format("a probe has ended: {}", done.error().message));
    // The other end sees it now, not only when the last holder of the socket lets go.
    socket.shut_down();
    std::lock_guard lock(mutex_);
    running_.erase(number);
}

void Probes::drop(std::uint64_t client) {
    std::lock_guard lock(mutex_);
    for (const auto& [number, one] : running_)
        if (one.client == client) one.socket->shut_down();
}

void Probes::end() {
    std::lock_guard lock(mutex_);
    ending_ = true;
    for (const auto& [number, one] : running_) one.socket->shut_down();
}

std::size_t Probes::count() const {
    std::lock_guard lock(mutex_);
    return running_.size();
}

}  // namespace sidestep::wire
