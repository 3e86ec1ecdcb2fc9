#include "wire/session.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/bundle.hpp"

namespace sidestep::wire {

using backend::Frame;

namespace {

Part part_of(std::uint64_t region, Bytes offset, Bytes size, const void* memory, std::uint8_t to_gpu) {
    return {.region = region,
            .offset = offset,
            .size = size,
            .memory = const_cast<unsigned char*>(static_cast<const unsigned char*>(memory)),
            .to_gpu = to_gpu};
}

}  // namespace

Result<void> Region::check(Bytes offset, Bytes bytes) const {
    if (bytes <= size && offset <= size - bytes) return {};  // `whole` is the largest number
    return Error{ErrorCode::invalid_argument,
                 fmt::format("bytes {} to {} were asked for of {}", offset, offset + bytes, size),
                 name,
                 {}};
}

Error Session::not_asked_for() const {
    return Error{ErrorCode::io_error, fmt::format("{} sent what nobody asked for", peer_), "session", {}};
}

void Session::use(std::shared_ptr<backend::Link> link) {
    std::lock_guard lock(mutex_);
    line_ = line_of(std::move(link), line_.epoch);
}

std::shared_ptr<backend::Link> Session::link() const {
    std::lock_guard lock(mutex_);
    return line_.link;
}

Result<std::pair<std::uint64_t, Session::Line>> Session::begin(Request request) {
    std::lock_guard lock(mutex_);
    if (end_) return *end_;
    const std::uint64_t number = next_request_++;
    const Bytes size = request.parts->size();
    request.left = size;
    request.leaving = request.asks() || waits_for_link_ ? 0 : size;
    request.starting = !request.asks();
    request.small = size <= small_request;
    if (request.small) small_.fetch_add(1, std::memory_order_relaxed);
    if (request.asks()) {
        // Not past those that wait already: a large one would never have room.
        request.waiting = !waiting_.empty() || !has_room_for(request);
        if (request.waiting)
            waiting_.push_back(number);
        else
            questions_ += request.parts->count();
    }
    const bool later = waits_for_link_ || request.waiting;
    requests_.emplace(number, std::move(request));
    return std::pair(number, later ? Line{nullptr, line_.epoch} : line_);
}

Session::Request Session::take(std::map<std::uint64_t, Request>::iterator found) {
    const std::uint64_t number = found->first;
    Request over = std::move(found->second);
    requests_.erase(found);
    if (over.small) small_.fetch_sub(1, std::memory_order_relaxed);
    if (over.waiting)
        std::erase(waiting_, number);
    else if (over.asks())
        questions_ -= over.parts->count();
    return over;
}

// A frame about several parts of one region, neighbours in the request, with the list of them before it.
void Session::add_places(Bundle& bundle, std::uint64_t request, const std::vector<Part>& parts,
                         Frame::Kind kind) {
    std::vector<backend::RegionPart> places;
    places.reserve(2 * parts.size());
    std::vector<backend::Memory> memory;
    Bytes bytes = 0;
    for (const Part& part : parts) {
        places.push_back({part.offset, part.size});
        bytes += part.size;
        if (kind == Frame::Kind::scatter) backend::join(memory, {part.memory, part.size});
    }
    const Part& first = parts.front();
    if (first.target != 0)
        for (const Part& part : parts) places.push_back({part.target_offset, 0});
    const auto list = std::make_shared<const std::string>(backend::to_bytes(places));
    Frame frame{Frame::Kind::places, request, first.region, 0, list->size(), 0, 0, first.at, first.to_gpu};
    bundle.make_room(2, kind == Frame::Kind::scatter ? bytes : 0);
    bundle.add({frame, list->data()}, list);
    frame.kind = kind;
    frame.size = bytes;
    frame.target = first.target;
    bundle.add(backend::Outgoing::of(frame, std::move(memory)));
}

// Small parts of one region go as one frame, where the link scatters; all others as they are.
class Session::Scattering {
public:
    // Of a request with so many parts.
    Scattering(Bundle& bundle, std::uint64_t request, std::size_t parts, bool scatters, bool may_wait)
        : bundle_(bundle), request_(request), scatters_(scatters), may_wait_(may_wait) {
        parts_.reserve(scatters ? std::min(parts, backend::most_places) : 0);
    }

    void add(const Part& part) {
        const bool large = !scatters_ || part.size > small_request;
        const bool full = parts_.size() == backend::most_places || bytes_ + part.size > together;
        if (large || full || (!parts_.empty() && parts_.front().region != part.region)) flush();
        if (large) return add_alone(part);
        parts_.push_back(part);
        bytes_ += part.size;
    }
    void flush() {
        if (parts_.size() == 1) add_alone(parts_.front());
        if (parts_.size() > 1) add_places(bundle_, request_, parts_, Frame::Kind::scatter);
        parts_.clear();
        bytes_ = 0;
    }

private:
    void add_alone(const Part& part) {
        bundle_.add({.frame = {Frame::Kind::push, request_, part.region, part.offset, part.size, 0, 0,
                               part.at, part.to_gpu},
                     .payload = part.memory,
                     .may_wait = may_wait_});
    }
    Bundle& bundle_;
    const std::uint64_t request_;
    const bool scatters_;
    const bool may_wait_;
    std::vector<Part> parts_;
    Bytes bytes_ = 0;
};

// As below, with less to set up: single small copies spend their time on such things.
void Session::send_small(const Line& line, std::uint64_t number, const Request& request, Range range) {
    const Part& part = request.parts->first();
    const backend::Outgoing one{.frame = {Frame::Kind::push, number, part.region, part.offset + range.begin,
                                          range.size(), 0, 0, range.begin, part.to_gpu},
                                .payload = part.memory + range.begin,
                                .may_wait = others_are_on_their_way()};
    sent_.fetch_add(range.size(), std::memory_order_relaxed);
    line.link->send_all({&one, 1},
                        [self = shared_from_this(), number, bytes = range.size(), epoch = line.epoch] {
                            if (const auto over = self->let_go(number, bytes, epoch)) over->end();
                        });
}

void Session::send_push(const Line& line, std::uint64_t number, const Request& request, Range range) {
    if (request.own) return queue_own(line, number, request, range);
    if (request.parts->count() == 1 && range.size() > 0 && range.size() <= small_request)
        return send_small(line, number, request, range);
    Bundle bundle(line.link, [this, number, epoch = line.epoch](Bytes bytes) -> std::function<void()> {
        sent_.fetch_add(bytes, std::memory_order_relaxed);
        return [self = shared_from_this(), number, bytes, epoch] {
            if (const auto over = self->let_go(number, bytes, epoch)) over->end();
        };
    });
    Scattering scattering(bundle, number, request.parts->count(), line.scatters, others_are_on_their_way());
    request.parts->cut(range, backend::max_push, [&](const Part& part) { scattering.add(part); });
    scattering.flush();
}

// What has lost its link by now is sent by replay().
void Session::queue_own(const Line& line, std::uint64_t number, const Request& request, Range range) {
    {
        std::lock_guard lock(mutex_);
        if (end_ || waits_for_link_ || line.epoch != line_.epoch) return;
        Fetch fetch;
        const auto add = [&] {
            if (fetch.places.empty()) return;
            fetch_places_ += fetch.places.size();
            fetches_.push_back(std::move(fetch));
        };
        request.parts->cut(range, range.size(), [&](const Part& part) {
            if (part.region != fetch.into) {
                add();
                fetch = {request.own, number, part.at, nullptr, part.region};
                fetch.to_gpu = part.to_gpu;
            }
            fetch.places.push_back(
                {static_cast<Bytes>(part.memory - request.own->device_address), part.size});
            fetch.to_offsets.push_back(part.offset);
            fetch.size += part.size;
        });
        add();
    }
    pump();
}

// A push of this end's request: out of the slot, or, without one, out of memory of the GPU.
void Session::send_own(const Line& line, const Fetch& part, const std::shared_ptr<Slots::Slot>& slot) {
    Bundle bundle(line.link, [&, epoch = line.epoch](Bytes bytes) -> std::function<void()> {
        sent_.fetch_add(bytes, std::memory_order_relaxed);
        return [self = shared_from_this(), number = part.request, bytes, epoch, slot] {
            if (const auto over = self->let_go(number, bytes, epoch)) over->end();
            if (!slot) self->memory_sent(bytes, epoch);
        };
    });
    Scattering scattering(bundle, part.request, part.places.size(), line.scatters, others_are_on_their_way());
    auto* from = slot ? static_cast<unsigned char*>(slot->address())
                      : part.region->device_address + part.places[0].offset;
    Bytes at = part.at;
    for (std::size_t i = 0; i < part.places.size(); ++i) {
        const Bytes size = part.places[i].size;
        scattering.add({.region = part.into,
                        .offset = part.to_offsets[i],
                        .size = size,
                        .memory = from,
                        .at = at,
                        .to_gpu = part.to_gpu});
        from += size;
        at += size;
    }
    scattering.flush();
}

void Session::send_question(const Line& line, std::uint64_t number, const Request& request,
                            Range range) const {
    Bundle bundle(line.link, {});
    const bool may_wait = others_are_on_their_way();
    const auto ask_for = [&](const Part& part) {
        Frame frame{Frame::Kind::pull, number,     part.region, part.offset, part.size, 0, 0,
                    part.at,           part.to_gpu};
        if (request.pass) {
            frame.kind = Frame::Kind::pass;
            frame.target = part.target;
            frame.target_offset = part.target_offset;
        }
        bundle.add({.frame = frame, .may_wait = may_wait});
    };
    if (range.size() == 0) return ask_for(request.parts->first());
    std::vector<Part> small;
    // A pass has two places for each.
    const std::size_t most = request.pass ? backend::most_places / 2 : backend::most_places;
    const auto flush = [&] {
        if (small.size() == 1) ask_for(small.front());
        if (small.size() > 1) add_places(bundle, number, small, Frame::Kind::gather);
        small.clear();
    };
    request.parts->cut(range, range.size(), [&](const Part& part) {
        const bool alone = !line.scatters || part.size > small_request;
        const bool with_them =
            small.empty() || (small.front().region == part.region && small.front().target == part.target);
        if (alone || small.size() == most || !with_them) flush();
        alone ? ask_for(part) : small.push_back(part);
    });
    flush();
}

// The request is not over until this returns, so that the flight is not ended in here.
Result<backend::Progress> Session::push(const void* from, std::uint64_t region, Bytes offset, Bytes size,
                                        backend::Flight& flight, std::shared_ptr<Region> own,
                                        std::uint8_t to_gpu) {
    Request request = request_of({part_of(region, offset, size, from, to_gpu)}, std::move(own));
    request.flight = &flight;
    SIDESTEP_TRY(const auto over, begin_push(request));
    if (!over) return backend::Progress::pending;
    if (over->error) return *over->error;
    return backend::Progress::done;
}

// Answers the request where it is over already.
Result<std::optional<Session::Request>> Session::begin_push(const Request& request) {
    SIDESTEP_TRY(const auto begun, begin(request));
    const auto& [number, line] = begun;
    if (line.link) send_push(line, number, request, {0, request.parts->size()});
    return started(number);
}

void Session::fetch(std::vector<Part> parts, Told told, std::shared_ptr<Region> own) {
    Request request = request_of(std::move(parts), std::move(own));
    if (request.parts->size() == 0) return told({});
    request.told = told;
    request.pull = true;
    if (auto begun = ask(request); !begun) told(begun.error());
}

void Session::bring(std::vector<Part> parts, Told told, std::shared_ptr<Region> own) {
    Request request = request_of(std::move(parts), std::move(own));
    request.told = told;
    auto over = begin_push(request);
    if (!over) return told(over.error());
    if (*over) (*over)->end();
}

Result<void> Session::ask(const Request& request) {
    SIDESTEP_TRY(const auto begun, begin(request));
    const auto& [number, line] = begun;
    if (line.link) send_question(line, number, request, {0, request.parts->size()});
    return {};
}

void Session::ask_waiting() {
    for (;;) {
        std::uint64_t number = 0;
        Request request;
        Line line;
        {
            std::lock_guard lock(mutex_);
            if (waiting_.empty() || waits_for_link_) return;
            number = waiting_.front();
            Request& first = requests_.at(number);
            if (!has_room_for(first)) return;
            waiting_.pop_front();
            first.waiting = false;
            questions_ += first.parts->count();
            request = first;
            line = line_;
        }
        send_question(line, number, request, {0, request.parts->size()});
    }
}

Result<void> Session::pull(std::uint64_t region, Bytes offset, Bytes size, void* to, backend::Flight& flight,
                           std::shared_ptr<Region> own, std::uint8_t to_gpu) {
    Request request = request_of({part_of(region, offset, size, to, to_gpu)}, std::move(own));
    request.flight = &flight;
    request.pull = true;
    return ask(request);
}

Result<void> Session::pass(std::vector<Part> parts, Told told) {
    Request request = request_of(std::move(parts));
    request.told = std::move(told);
    request.pass = true;
    return ask(request);
}

std::uint64_t Session::grant(std::shared_ptr<Region> region) {
    const auto self = weak_from_this();
    if (region->slots_in)
        region->slots_in->tell([self] {
            if (const auto session = self.lock()) session->link()->resume(session->whom_to_resume());
        });
    if (region->slots_out)
        region->slots_out->tell([self] {
            if (const auto session = self.lock()) session->pump();
        });
    std::lock_guard lock(mutex_);
    if (region->slots_in) rings_in_.insert(region->slots_in.get());
    several_rings_.store(rings_in_.size() > 1, std::memory_order_relaxed);
    const std::uint64_t number = next_region_++;
    regions_.emplace(number, std::move(region));
    return number;
}

void Session::go_on_with_slots() {
    link()->resume(backend::Link::Resume::all);
    pump();
}

void Session::withdraw(std::uint64_t number) {
    std::shared_ptr<Region> last;  // may free memory: not with the mutex held
    std::lock_guard lock(mutex_);
    const auto found = regions_.find(number);
    if (found == regions_.end()) return;
    last = std::move(found->second);
    regions_.erase(found);
}

std::optional<Error> Session::end() const {
    std::lock_guard lock(mutex_);
    return end_;
}

Result<void> Session::came(Lock lock, Found found, bool answer, Bytes at, Bytes bytes) {
    // What was asked for is there when it has come, not when somebody says so.
    if (found == requests_.end() || found->second.pull != answer || found->second.waiting)
        return not_asked_for();
    Request& one = found->second;
    if (answer) one.landing -= std::min(bytes, one.landing);  // out of a slot when the link was lost: of none
    const Bytes size = one.parts->size();
    const bool within = at <= size && bytes <= size - at;
    if (!within || bytes > one.left - one.landing || !one.done.add({at, at + bytes})) return not_asked_for();
    one.left -= bytes;
    end_if_over(std::move(lock), found);
    return {};
}

Result<void> Session::failed(Lock lock, Found found, Bytes bytes, const Error& error) {
    if (found == requests_.end() || found->second.waiting ||
        bytes > found->second.left - found->second.landing)
        return not_asked_for();
    found->second.left -= bytes;
    if (!found->second.error) found->second.error = error;
    end_if_over(std::move(lock), found);
    return {};
}

void Session::end_if_over(Lock lock, Found found) {
    if (!found->second.over()) return;
    const Request over = take(found);
    lock.unlock();
    over.end();
    if (over.asks()) ask_waiting();
}

// Whoever says early that all has come gets nothing but what was pushed: its memory is in use until it has been sent.
std::optional<Session::Request> Session::let_go(std::uint64_t request, Bytes bytes, unsigned epoch) {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end() || end_ || epoch != line_.epoch || waits_for_link_) return std::nullopt;
    Request& one = found->second;
    one.leaving -= bytes;
    if (!one.over()) return std::nullopt;
    return take(found);
}

std::optional<Session::Request> Session::started(std::uint64_t request) {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end()) return std::nullopt;
    found->second.starting = false;
    if (!found->second.over()) return std::nullopt;
    return take(found);
}

}  // namespace sidestep::wire
