#include "backends/ncclnet/bulk.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {

using Clock = std::chrono::steady_clock;

namespace {

Error closed() {
    return {ErrorCode::io_error, "the connection by the network plugin has ended", "ncclnet", {}};
}

}  // namespace

Result<driver::NcclNetHandle> Bulk::listen() {
    driver::NcclNetHandle handle{};
    SIDESTEP_TRY(listening_, net_->listen(device_, handle));
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
    const bool waits = joining_ || sending_.busy() || receiving_.busy() || !trials_.empty();
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
        refuse_trials(moved.error());
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
    if (joined()) run_trials();
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
        SIDESTEP_TRY(sending_.comm, net_->connect(device_, theirs_));
    }
    if (receiving_.comm == nullptr) {
        SIDESTEP_TRY(receiving_.comm, net_->accept(listening_));
    }
    if (!joined()) return !before && (sending_.comm != nullptr || receiving_.comm != nullptr);
    joining_ = false;
    SIDESTEP_CHECK(net_->close_listen(std::exchange(listening_, nullptr)));
    return true;
}

Result<driver::NcclNet::Region> Bulk::region(Way& way, const Range& range) {
    if (const auto found = way.regions.find(range.id); found != way.regions.end())
        return found->second.region;
    const int kind =
        range.kind == Range::Kind::device ? driver::nccl_net::cuda_memory : driver::nccl_net::host_memory;
    const auto& [descriptor, offset, keeps] = range.dma_buf;
    SIDESTEP_TRY(const auto made,
                 descriptor >= 0
                     ? net_->register_dma_buf(way.comm, range.address, range.size, kind, offset, descriptor)
                     : net_->register_memory(way.comm, range.address, range.size, kind));
    way.regions.emplace(range.id, Registered{made, range.registrations});
    range.registrations->fetch_add(1);
    return made;
}

// Memory that was prepared may still be such that the plugin refuses it, or more than it can register: its bytes are copied.
Result<driver::NcclNet::Region> Bulk::region_of(Way& way, Piece& piece) {
    auto made = region(way, piece.instead ? *piece.instead->range : *piece.range);
    if (made || piece.instead || piece.range->kind != Range::Kind::prepared) return made;
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
        SIDESTEP_TRY(const auto request, receives ? net_->receive(way.comm, at, piece.size, of)
                                                  : net_->send(way.comm, at, piece.size, of));
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
        SIDESTEP_TRY(const auto size, net_->test(way.in_flight[i].request));
        if (!size) {
            ++i;
            continue;
        }
        if (const Bytes wanted = way.in_flight[i].piece.size; !way.in_flight[i].flushes && *size != wanted)
            return Error{
                ErrorCode::io_error,
                fmt::format("the network plugin {} brought {} bytes of {}", net_->name(), *size, wanted),
                "ncclnet",
                {}};
        moved = true;
        SIDESTEP_TRY(const bool flushes, flush(way, way.in_flight[i]));
        if (flushes) continue;
        const Piece piece = std::move(way.in_flight[i].piece);
        way.in_flight.erase(way.in_flight.begin() + static_cast<std::ptrdiff_t>(i));
        const auto owner = owner_.lock();
        if (!owner) continue;
        const bool received = &way == &receiving_;
        if (received && piece.instead) std::memcpy(piece.address, piece.instead->data.get(), piece.size);
        received ? owner->came(piece.number) : owner->gone(piece.number);
    }
    return moved;
}

// Whether that is under way now. What a card has written to a GPU may be told before the GPU sees it; the plugin knows how to
// wait for that.
Result<bool> Bulk::flush(Way& way, InFlight& landed) {
    const Piece& piece = landed.piece;
    if (&way != &receiving_ || landed.flushes || piece.range->kind != Range::Kind::device) return false;
    SIDESTEP_TRY(const auto with, region(way, *piece.range));
    SIDESTEP_TRY(const auto request, net_->flush(way.comm, piece.address, piece.size, with));
    landed.request = request;
    landed.flushes = request != nullptr;
    return landed.flushes;
}

void Bulk::try_range(std::shared_ptr<const Range> range, std::function<void(Result<void>)> told) {
    trials_.push_back({std::move(range), std::move(told)});
    if (over_ || closing_) refuse_trials(closed());
}

void Bulk::run_trials() {
    for (const Trial& trial : std::exchange(trials_, {})) {
        Result<void> outcome;
        for (Way* const way : {&receiving_, &sending_})
            if (outcome)
                if (auto made = region(*way, *trial.range); !made) outcome = made.error();
        forget(trial.range->id);
        trial.told(std::move(outcome));
    }
}

void Bulk::refuse_trials(const Error& why) {
    for (const Trial& trial : std::exchange(trials_, {})) trial.told(why);
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
                 fmt::format("the network plugin {} {}, for {} s", net_->name(), what,
                             std::chrono::duration<double>(limit).count()),
                 net_->library(), "see whether the network that it uses leads to the other machine"};
}

void Bulk::forget(std::uint64_t range) {
    for (Way* const way : {&receiving_, &sending_}) {
        const auto node = way->regions.extract(range);
        if (node.empty()) continue;
        if (auto done = net_->deregister(way->comm, node.mapped().region); !done)
            base::log(base::LogLevel::warn, done.error().to_string());
        node.mapped().counted->fetch_sub(1);
    }
}

void Bulk::deregister(Way& way, Result<void>& first) {
    for (const auto& [range, one] : std::exchange(way.regions, {})) {
        if (auto done = net_->deregister(way.comm, one.region); !done && first) first = done;
        one.counted->fetch_sub(1);
    }
}

void Bulk::close(std::chrono::milliseconds patience, std::function<void(Result<void>)> told) {
    owner_.reset();
    joining_ = false;
    sending_.waiting.clear();
    receiving_.waiting.clear();
    refuse_trials(closed());
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
    if (sending_.comm != nullptr) note(net_->close_send(std::exchange(sending_.comm, nullptr)));
    if (receiving_.comm != nullptr) note(net_->close_receive(std::exchange(receiving_.comm, nullptr)));
    if (listening_ != nullptr) note(net_->close_listen(std::exchange(listening_, nullptr)));
    if (!first) return first;
    receiving_.in_flight.clear();
    sending_.in_flight.clear();
    return {};
}

}  // namespace sidestep::backends::ncclnet
