#include "wire/session.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::wire {

using backend::Frame;
using backend::Landing;

namespace {

Error not_asked_for(const std::string& peer) {
    return Error{ErrorCode::io_error, fmt::format("{} sent what nobody asked for", peer), "session", {}};
}

Result<void> check_range(const Region& region, Bytes offset, Bytes size) {
    if (region.size == Buffer::whole || (offset <= region.size && size <= region.size - offset)) return {};
    return Error{ErrorCode::invalid_argument,
                 fmt::format("bytes {} to {} were asked for of {}", offset, offset + size, region.size),
                 region.name,
                 {}};
}

}  // namespace

void Session::use(std::shared_ptr<backend::Link> link) {
    std::lock_guard lock(mutex_);
    line_.link = std::move(link);
}

std::shared_ptr<backend::Link> Session::link() const {
    std::lock_guard lock(mutex_);
    return line_.link;
}

Result<std::pair<std::uint64_t, Session::Line>> Session::begin(Request request) {
    std::lock_guard lock(mutex_);
    if (end_) return *end_;
    const std::uint64_t number = next_request_++;
    request.left = request.size;
    request.leaving = request.asks() || waits_for_link_ ? 0 : request.size;
    request.starting = !request.asks();
    request.small = request.size <= small_request;
    if (request.small) small_.fetch_add(1, std::memory_order_relaxed);
    requests_.emplace(number, std::move(request));
    return std::pair(number, waits_for_link_ ? Line{nullptr, line_.epoch} : line_);
}

Session::Request Session::take(std::map<std::uint64_t, Request>::iterator found) {
    Request over = std::move(found->second);
    requests_.erase(found);
    if (over.small) small_.fetch_sub(1, std::memory_order_relaxed);
    return over;
}

void Session::send_push(const Line& line, std::uint64_t number, const Request& request, Range range) {
    for (Bytes at = range.begin; at < range.end;) {
        const Bytes part = std::min(backend::max_push, range.end - at);
        line.link->send({Frame::Kind::push, number, request.region, request.offset + at, part},
                        request.memory + at, [self = shared_from_this(), number, part, epoch = line.epoch] {
                            if (const auto over = self->let_go(number, part, epoch)) over->end();
                        });
        at += part;
        sent_.fetch_add(part, std::memory_order_relaxed);
    }
}

void Session::send_question(const Line& line, std::uint64_t number, const Request& request, Range range) {
    Frame frame{Frame::Kind::pull, number, request.region, request.offset + range.begin, range.size()};
    if (request.pass) {
        frame.kind = Frame::Kind::pass;
        frame.target = request.target;
        frame.target_offset = request.target_offset + range.begin;
    }
    line.link->send(frame, nullptr, {});
}

// The request is not over until this returns, so that the flight is not ended in here.
Result<backend::Progress> Session::push(const void* from, std::uint64_t region, Bytes offset, Bytes size,
                                        backend::Flight& flight) {
    Request request;
    request.flight = &flight;
    request.memory = const_cast<unsigned char*>(static_cast<const unsigned char*>(from));
    request.region = region;
    request.offset = offset;
    request.size = size;
    SIDESTEP_TRY(const auto begun, begin(request));
    const auto& [number, line] = begun;
    if (line.link) send_push(line, number, request, {0, size});
    const auto over = started(number);
    if (!over) return backend::Progress::pending;
    if (over->error) return *over->error;
    return backend::Progress::done;
}

void Session::fetch(std::uint64_t region, Bytes offset, Bytes size, void* to, const Told& told) {
    Request request;
    request.told = told;
    request.pull = true;
    request.memory = static_cast<unsigned char*>(to);
    request.region = region;
    request.offset = offset;
    request.size = size;
    if (auto begun = ask(request); !begun) told(begun.error());
}

void Session::bring(const void* from, std::uint64_t region, Bytes offset, Bytes size, Told told) {
    Request request;
    request.told = told;
    request.memory = const_cast<unsigned char*>(static_cast<const unsigned char*>(from));
    request.region = region;
    request.offset = offset;
    request.size = size;
    const auto begun = begin(request);
    if (!begun) return told(begun.error());
    const auto& [number, line] = *begun;
    if (line.link) send_push(line, number, request, {0, size});
    if (const auto over = started(number)) over->end();
}

Result<void> Session::ask(const Request& request) {
    SIDESTEP_TRY(const auto begun, begin(request));
    const auto& [number, line] = begun;
    if (line.link) send_question(line, number, request, {0, request.size});
    return {};
}

Result<void> Session::pull(std::uint64_t region, Bytes offset, Bytes size, void* to,
                           backend::Flight& flight) {
    Request request;
    request.flight = &flight;
    request.pull = true;
    request.memory = static_cast<unsigned char*>(to);
    request.region = region;
    request.offset = offset;
    request.size = size;
    return ask(request);
}

Result<void> Session::pass(std::uint64_t region, Bytes offset, Bytes size, std::uint64_t target,
                           Bytes target_offset, backend::Flight& flight) {
    Request request;
    request.flight = &flight;
    request.pass = true;
    request.region = region;
    request.offset = offset;
    request.size = size;
    request.target = target;
    request.target_offset = target_offset;
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

Result<void> Session::came(std::uint64_t request, bool answer, Bytes offset, Bytes bytes) {
    Request over;
    {
        std::lock_guard lock(mutex_);
        const auto found = requests_.find(request);
        if (found == requests_.end()) return not_asked_for(peer_);
        Request& one = found->second;
        // What was asked for is there when it has come, not when somebody says so.
        if (one.pull != answer) return not_asked_for(peer_);
        if (answer) one.landing -= bytes;
        const Bytes at = offset - one.offset;
        const bool within = offset >= one.offset && at <= one.size && bytes <= one.size - at;
        if (!within || bytes > one.left - one.landing || !one.done.add({at, at + bytes}))
            return not_asked_for(peer_);
        one.left -= bytes;
        if (!one.over()) return {};
        over = take(found);
    }
    over.end();
    return {};
}

Result<void> Session::failed(std::uint64_t request, Bytes bytes, Error error) {
    Request over;
    {
        std::lock_guard lock(mutex_);
        const auto found = requests_.find(request);
        if (found == requests_.end() || bytes > found->second.left - found->second.landing)
            return not_asked_for(peer_);
        Request& one = found->second;
        one.left -= bytes;
        if (!one.error) one.error = std::move(error);
        if (!one.over()) return {};
        over = take(found);
    }
    over.end();
    return {};
}

// Whoever says early that all has come gets nothing but what was pushed: its memory is in use until it has been sent.
std::optional<Session::Request> Session::let_go(std::uint64_t request, Bytes bytes, unsigned epoch) {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end() || epoch != line_.epoch || waits_for_link_) return std::nullopt;
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

Result<std::shared_ptr<Region>> Session::target_of(const Frame& frame) const {
    std::lock_guard lock(mutex_);
    const auto found = regions_.find(frame.target);
    if (found == regions_.end() || !found->second->beyond)
        return Error{ErrorCode::not_found, "what leads to another machine is there no longer", "session", {}};
    SIDESTEP_CHECK(check_range(*found->second, frame.target_offset, frame.size));
    return found->second;
}

Result<std::shared_ptr<Region>> Session::region_of(const Frame& frame, bool write) const {
    std::lock_guard lock(mutex_);
    const auto found = regions_.find(frame.region);
    if (found == regions_.end())
        return Error{ErrorCode::not_found, "what was granted is there no longer", "session",
                     "attach it again"};
    const Region& region = *found->second;
    if (write ? !region.writable : !region.readable)
        return Error{ErrorCode::permission_denied,
                     fmt::format("it was not granted for {}", write ? "writing" : "reading"),
                     region.name,
                     {}};
    SIDESTEP_CHECK(check_range(region, frame.offset, frame.size));
    return found->second;
}

template <typename Answer>
Answer Session::judged(Answer answer) {
    if (!answer) {
        std::lock_guard lock(mutex_);
        outlives_links_ = false;
    }
    return answer;
}

Result<Landing> Session::landing(const Frame& frame) {
    return judged(landing_of(frame));
}

Result<void> Session::arrived(const Frame& frame, Landing landing) {
    return judged(act_on(frame, std::move(landing)));
}

Result<Landing> Session::landing_of(const Frame& frame) {
    if (frame.kind == Frame::Kind::fault) {
        auto words = std::make_shared<std::string>(frame.size, '\0');
        return Landing{Landing::Kind::here, words->data(), words};
    }
    if (frame.region == 0) return landing_of_answer(frame);
    auto region = region_of(frame, true);
    if (!region) return Landing{};
    if (unsigned char* const address = (*region)->address)
        return Landing{Landing::Kind::here, address + frame.offset, std::move(*region)};
    auto slot = (*region)->slots_in->take();
    if (!slot) return Landing{Landing::Kind::later};
    void* const address = slot->address();
    return Landing{Landing::Kind::here, address, std::move(slot)};
}

Result<Landing> Session::landing_of_answer(const Frame& frame) {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(frame.request);
    if (found == requests_.end() || !found->second.pull) return not_asked_for(peer_);
    Request& request = found->second;
    const Bytes at = frame.offset - request.offset;
    const bool within =
        frame.offset >= request.offset && at <= request.size && frame.size <= request.size - at;
    if (!within || frame.size > request.left - request.landing) return not_asked_for(peer_);
    request.landing += frame.size;
    return Landing{Landing::Kind::here, request.memory + at, nullptr};
}

Result<void> Session::act_on(const Frame& frame, Landing landing) {
    switch (frame.kind) {
        case Frame::Kind::push:
            received_.fetch_add(frame.size, std::memory_order_relaxed);
            if (frame.region == 0) return came(frame.request, true, frame.offset, frame.size);
            pushed(frame, landing);
            return {};
        case Frame::Kind::confirm:
            return came(frame.request, false, frame.offset, frame.size);
        case Frame::Kind::pull:
        case Frame::Kind::pass:
            return give(frame);
        case Frame::Kind::fault:
            return fault(frame, landing);
    }
    return {};
}

void Session::pushed(const Frame& frame, const Landing& landing) {
    auto region = region_of(frame, true);
    if (!region) return refuse(frame.request, frame.size, region.error());
    if (landing.kind != Landing::Kind::here)
        return refuse(frame.request, frame.size,
                      Error{ErrorCode::not_found, "it was granted too late", "session", {}});
    if ((*region)->traffic) (*region)->traffic->received.fetch_add(frame.size, std::memory_order_relaxed);
    if ((*region)->address != nullptr) return confirm(frame);
    const auto slot = std::static_pointer_cast<Slots::Slot>(landing.keeps);
    const Way& way = *(*region)->in;
    moving(1);
    slot->move(slot, way, true, frame.offset, frame.size,
               [self = shared_from_this(), held = std::move(*region), frame](const auto&,
                                                                             const Result<void>& moved) {
                   if (moved)
                       self->confirm(frame);
                   else
                       self->refuse(frame.request, frame.size, moved.error());
                   self->moving(-1);
               });
}

void Session::confirm(const Frame& push) {
    link()->send({Frame::Kind::confirm, push.request, 0, push.offset, push.size}, nullptr, {});
}

// The offset of a fault is how many bytes it stands for; its first byte is the error's code.
void Session::refuse(std::uint64_t request, Bytes bytes, const Error& error) {
    std::string words(1, static_cast<char>(error.code));
    words += error.to_string().substr(0, backend::max_fault - 1);
    const auto kept = std::make_shared<const std::string>(std::move(words));
    link()->send({Frame::Kind::fault, request, 0, bytes, kept->size()}, kept->data(),
                 [kept] { static_cast<void>(kept); });
}

Result<void> Session::fault(const Frame& frame, const Landing& landing) {
    const auto& words = *std::static_pointer_cast<std::string>(landing.keeps);
    if (words.empty()) return not_asked_for(peer_);
    const int code = words.front();
    const bool known = code >= static_cast<int>(ErrorCode::invalid_argument) &&
                       code <= static_cast<int>(ErrorCode::internal);
    return failed(frame.request, frame.offset,
                  Error{known ? static_cast<ErrorCode>(code) : ErrorCode::io_error,
                        fmt::format("{} says: {}", peer_, words.substr(1)),
                        "session",
                        {}});
}

}  // namespace sidestep::wire
