#include "wire/probe_loop.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace sidestep::wire {
namespace {

Result<void> in_time(ProbeLoop::Clock::time_point until) {
    if (ProbeLoop::Clock::now() < until) return {};
    return Error{ErrorCode::timed_out, "a probe took too long", "probe", {}};
}

}  // namespace

void ProbeLoop::prepare(Bytes bytes) {
    const auto size = static_cast<std::size_t>(std::min(bytes, most));
    if (memory_.size() < size) memory_.resize(size, 'p');
}

Result<void> ProbeLoop::send(const driver::PlainSocket& socket, Bytes bytes, Clock::time_point until) const {
    for (Bytes at = 0; bytes > 0; at = at < memory_.size() ? at : 0) {
        SIDESTEP_CHECK(in_time(until));
        const Bytes part = std::min({bytes, block, memory_.size() - at});
        SIDESTEP_CHECK(socket.send(memory_.data() + at, part));
        at += part;
        bytes -= part;
    }
    return {};
}

Result<void> ProbeLoop::receive(const driver::PlainSocket& socket, Bytes bytes, Clock::time_point until) {
    for (Bytes at = 0; bytes > 0; at = at < memory_.size() ? at : 0) {
        SIDESTEP_CHECK(in_time(until));
        const Bytes part = std::min({bytes, block, memory_.size() - at});
        SIDESTEP_TRY(const Bytes got, socket.receive_some(memory_.data() + at, part));
        at += got;
        bytes -= got;
    }
    return {};
}

}  // namespace sidestep::wire
