#include "backends/ncclnet/bulk.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {

using Clock = std::chrono::steady_clock;

Result<driver::NcclNetHandle> Bulk::listen() {
    driver::NcclNetHandle handle{};
    SIDESTEP_TRY(listening_, plugin_.net->listen(plugin_.device.number, handle));
    return handle;
}

void Bulk::join(const driver::NcclNetHandle& theirs) {
    theirs_ = theirs;
    joining_ = true;
    since_ = Clock::now();
}

void Bulk::give(Way& way, Piece piece) {
    if (over_ || closing_) return;
    if (!sending_.busy() && !receiving_.busy() && !joining_) since_ = Clock::now();
    way.waiting.push_back(std::move(piece));
}

Pump::Progress Bulk::turn() {
    const bool waits = joining_ || sending_.busy() || receiving_.busy();
    if (closing_ && (over_ || !waits || Clock::now() >= closes_)) {
        over_ = true;
        std::exchange(closing_, {})(close());
    }
    if (over_) return Pump::Progress::nothing;
    auto moved = go_on();
    if (moved) {
        if (auto lives = check_silence(*moved); !lives) moved = lives.error();
    }
    if (!moved) {
        over_ = true;
        if (const auto owner = owner_.lock()) owner->failed(moved.error());
        return Pump::Progress::moved;
    }
    if (*moved || closing_) return *moved ? Pump::Progress::moved : Pump::Progress::waits;
    return waits ? Pump::Progress::waits : Pump::Progress::nothing;
}

// Whether anything came about.
Result<bool> Bulk::go_on() {
    bool moved = false;
    if (joining_) {
        SIDESTEP_TRY(moved, connect());
    }
    for (Way* const way : {&receiving_, &sending_}) {
        SIDESTEP_TRY(const bool started, start(*way));
        SIDESTEP_TRY(const bool ended, look(*way));
        moved = moved || started || ended;
    }
    return moved;
}

// The plugin takes several calls for each end, and needs both ends to be called.
Result<bool> Bulk::connect() {
    const bool before = sending_.comm != nullptr || receiving_.comm != nullptr;
    if (sending_.comm == nullptr) {
        SIDESTEP_TRY(sending_.comm, plugin_.net->connect(plugin_.device.number, theirs_));
    }
    if (receiving_.comm == nullptr) {
        SIDESTEP_TRY(receiving_.comm, plugin_.net->accept(listening_));
    }
    if (sending_.comm == nullptr || receiving_.comm == nullptr)
        return !before && (sending_.comm != nullptr || receiving_.comm != nullptr);
    joining_ = false;
    SIDESTEP_CHECK(plugin_.net->close_listen(std::exchange(listening_, nullptr)));
    return true;
}

Result<driver::NcclNet::Region> Bulk::region(Way& way, const Range& range) {
    if (const auto found = way.regions.find(range.id); found != way.regions.end())
        return found->second.region;
    SIDESTEP_TRY(const auto made, plugin_.net->register_memory(way.comm, range.address, range.size,
                                                               driver::nccl_net::host_memory));
    way.regions.emplace(range.id, Registered{made, range.registrations});
    range.registrations->fetch_add(1);
    return made;
}

// Memory that was prepared may still be such that the plugin refuses it, or more than it can register: its bytes are copied.
Result<driver::NcclNet::Region> Bulk::region_of(Way& way, Piece& piece) {
    auto made = region(way, piece.instead ? *piece.instead->range : *piece.range);
    if (made || piece.instead || piece.range->bounce) return made;
    if (!piece.range->refused.exchange(true))
        base::log(base::LogLevel::warn, "bytes are copied: " + made.error().to_string());
    SIDESTEP_TRY(piece.instead, Bounce::make(piece.range->pump));
    if (&way == &sending_) std::memcpy(piece.instead->data.get(), piece.address, piece.size);
    return region(way, *piece.instead->range);
}

Result<bool> Bulk::start(Way& way) {
    bool moved = false;
    const bool receives = &way == &receiving_;
    while (way.comm != nullptr && !way.waiting.empty() && way.in_flight.size() < most_in_flight) {
        Piece& piece = way.waiting.front();
        SIDESTEP_TRY(const auto of, region_of(way, piece));
        void* const at = piece.instead ? piece.instead->data.get() : piece.address;
        SIDESTEP_TRY(const auto request, receives ? plugin_.net->receive(way.comm, at, piece.size, of)
                                                  : plugin_.net->send(way.comm, at, piece.size, of));
        if (request == nullptr) break;
        const std::uint16_t number = piece.number;
        way.in_flight.push_back({std::move(way.waiting.front()), request});
        way.waiting.pop_front();
        moved = true;
        if (const auto owner = receives ? owner_.lock() : nullptr) owner->waits_for(number);
        if (over_) break;
    }
    return moved;
}

Result<bool> Bulk::look(Way& way) {
    bool moved = false;
    for (std::size_t i = 0; i < way.in_flight.size() && !over_;) {
        SIDESTEP_TRY(const auto size, plugin_.net->test(way.in_flight[i].request));
        if (!size) {
            ++i;
            continue;
        }
        const Piece piece = std::move(way.in_flight[i].piece);
        way.in_flight.erase(way.in_flight.begin() + static_cast<std::ptrdiff_t>(i));
        if (*size != piece.size)
            return Error{ErrorCode::io_error,
                         fmt::format("the network plugin {} brought {} bytes of {}", plugin_.net->name(),
                                     *size, piece.size),
                         "ncclnet",
                         {}};
        moved = true;
        const auto owner = owner_.lock();
        if (!owner) continue;
        const bool received = &way == &receiving_;
        if (received && piece.instead) std::memcpy(piece.address, piece.instead->data.get(), piece.size);
        received ? owner->came(piece.number) : owner->gone(piece.number);
    }
    return moved;
}

Result<void> Bulk::check_silence(bool moved) {
    const auto now = Clock::now();
    if (moved || (!joining_ && !sending_.busy() && !receiving_.busy())) {
        since_ = now;
        return {};
    }
    const auto limit = joining_ ? patience_.join : patience_.silence;
    if (now - since_ < limit) return {};
    const std::string what =
        joining_ ? "has not connected the two machines" : "does not end what it was given";
    return Error{ErrorCode::timed_out,
                 fmt::format("the network plugin {} {}, for {} s", plugin_.net->name(), what,
                             std::chrono::duration<double>(limit).count()),
                 plugin_.net->library(), "see whether the network that it uses leads to the other machine"};
}

void Bulk::forget(std::uint64_t range) {
    for (Way* const way : {&receiving_, &sending_}) {
        const auto node = way->regions.extract(range);
        if (node.empty()) continue;
        if (auto done = plugin_.net->deregister(way->comm, node.mapped().region); !done)
            base::log(base::LogLevel::warn, done.error().to_string());
        node.mapped().counted->fetch_sub(1);
    }
}

void Bulk::deregister(Way& way, Result<void>& first) {
    for (const auto& [range, one] : std::exchange(way.regions, {})) {
        if (auto done = plugin_.net->deregister(way.comm, one.region); !done && first) first = done;
        one.counted->fetch_sub(1);
    }
}

void Bulk::close(std::chrono::milliseconds patience, std::function<void(Result<void>)> told) {
    owner_.reset();
    joining_ = false;
    sending_.waiting.clear();
    receiving_.waiting.clear();
    closing_ = std::move(told);
    closes_ = Clock::now() + patience;
    if (patience == patience.zero()) turn();
}

// NCCL ends a communicator that was aborted in this order too, with requests open.
Result<void> Bulk::close() {
    Result<void> first;
    const auto note = [&](Result<void> done) {
        if (!done && first) first = std::move(done);
    };
    deregister(sending_, first);
    deregister(receiving_, first);
    if (sending_.comm != nullptr) note(plugin_.net->close_send(std::exchange(sending_.comm, nullptr)));
    if (receiving_.comm != nullptr) note(plugin_.net->close_receive(std::exchange(receiving_.comm, nullptr)));
    if (listening_ != nullptr) note(plugin_.net->close_listen(std::exchange(listening_, nullptr)));
    if (!first) return first;
    receiving_.in_flight.clear();
    sending_.in_flight.clear();
    return {};
}

}  // namespace sidestep::backends::ncclnet
