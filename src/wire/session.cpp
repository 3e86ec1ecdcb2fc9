#include "wire/session.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/bundle.hpp"

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

Part part_of(std::uint64_t region, Bytes offset, Bytes size, const void* memory) {
    return {region, offset, size, const_cast<unsigned char*>(static_cast<const unsigned char*>(memory))};
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
    const Bytes size = request.parts->size();
    request.left = size;
    request.leaving = request.asks() || waits_for_link_ ? 0 : size;
    request.starting = !request.asks();
    request.small = size <= small_request;
    if (request.small) small_.fetch_add(1, std::memory_order_relaxed);
    if (request.asks()) {
        request.waiting = !has_room_for(request);
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
    Request over = std::move(found->second);
    requests_.erase(found);
    if (over.small) small_.fetch_sub(1, std::memory_order_relaxed);
    if (over.asks()) questions_ -= over.parts->count();
    return over;
}

void Session::send_push(const Line& line, std::uint64_t number, const Request& request, Range range) {
    Bundle bundle(line.link, [this, number, epoch = line.epoch](Bytes bytes) -> std::function<void()> {
        sent_.fetch_add(bytes, std::memory_order_relaxed);
        return [self = shared_from_this(), number, bytes, epoch] {
            if (const auto over = self->let_go(number, bytes, epoch)) over->end();
        };
    });
    request.parts->cut(range, backend::max_push, [&](const Part& part) {
        bundle.add({Frame::Kind::push, number, part.region, part.offset, part.size, 0, 0, part.at},
                   part.memory);
    });
}

void Session::send_question(const Line& line, std::uint64_t number, const Request& request, Range range) {
    Bundle bundle(line.link, {});
    const auto ask_for = [&](const Part& part) {
        Frame frame{Frame::Kind::pull, number, part.region, part.offset, part.size, 0, 0, part.at};
        if (request.pass) {
            frame.kind = Frame::Kind::pass;
            frame.target = request.target;
            frame.target_offset = request.target_offset + part.at;
        }
        bundle.add(frame, nullptr);
    };
    if (range.size() == 0) return ask_for(request.parts->first());
    request.parts->cut(range, range.size(), ask_for);
}

// The request is not over until this returns, so that the flight is not ended in here.
Result<backend::Progress> Session::push(const void* from, std::uint64_t region, Bytes offset, Bytes size,
                                        backend::Flight& flight) {
    Request request = request_of({part_of(region, offset, size, from)});
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

void Session::fetch(std::vector<Part> parts, Told told) {
    Request request = request_of(std::move(parts));
    if (request.parts->size() == 0) return told({});
    request.told = told;
    request.pull = true;
    if (auto begun = ask(request); !begun) told(begun.error());
}

void Session::bring(std::vector<Part> parts, Told told) {
    Request request = request_of(std::move(parts));
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

Result<void> Session::pull(std::uint64_t region, Bytes offset, Bytes size, void* to,
                           backend::Flight& flight) {
    Request request = request_of({part_of(region, offset, size, to)});
    request.flight = &flight;
    request.pull = true;
    return ask(request);
}

Result<void> Session::pass(std::uint64_t region, Bytes offset, Bytes size, std::uint64_t target,
                           Bytes target_offset, backend::Flight& flight) {
    Request request = request_of({part_of(region, offset, size, nullptr)});
    request.flight = &flight;
    request.pass = true;
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

Result<void> Session::came(std::uint64_t request, bool answer, Bytes at, Bytes bytes) {
    Request over;
    {
        std::lock_guard lock(mutex_);
        const auto found = requests_.find(request);
        if (found == requests_.end()) return not_asked_for(peer_);
        Request& one = found->second;
        // What was asked for is there when it has come, not when somebody says so.
        if (one.pull != answer || one.waiting) return not_asked_for(peer_);
        if (answer) one.landing -= bytes;
        const Bytes size = one.parts->size();
        const bool within = at <= size && bytes <= size - at;
        if (!within || bytes > one.left - one.landing || !one.done.add({at, at + bytes}))
            return not_asked_for(peer_);
        one.left -= bytes;
        if (!one.over()) return {};
        over = take(found);
    }
    over.end();
    if (over.asks()) ask_waiting();
    return {};
}

Result<void> Session::failed(std::uint64_t request, Bytes bytes, Error error) {
    Request over;
    {
        std::lock_guard lock(mutex_);
        const auto found = requests_.find(request);
        if (found == requests_.end() || found->second.waiting ||
            bytes > found->second.left - found->second.landing)
            return not_asked_for(peer_);
        Request& one = found->second;
        one.left -= bytes;
        if (!one.error) one.error = std::move(error);
        if (!one.over()) return {};
        over = take(found);
    }
    over.end();
    if (over.asks()) ask_waiting();
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

Result<std::shared_ptr<Region>> Session::find_region(const Frame& frame, bool write) const {
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
    if (found == requests_.end() || !found->second.pull || found->second.waiting) return not_asked_for(peer_);
    Request& request = found->second;
    unsigned char* const to = request.parts->memory(frame.offset, frame.size);
    if (to == nullptr || frame.size > request.left - request.landing) return not_asked_for(peer_);
    request.landing += frame.size;
    return Landing{Landing::Kind::here, to, nullptr};
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
    const bool landed = landing.kind == Landing::Kind::here;
    bool time_to_confirm = false;
    const auto region = [&] {
        std::lock_guard lock(mutex_);
        auto found = find_region(frame, true);
        if (found && landed && (*found)->address != nullptr) time_to_confirm = confirm_soon(frame);
        return found;
    }();
    if (!region) return refuse(frame.request, frame.size, region.error());
    if (!landed)
        return refuse(frame.request, frame.size,
                      Error{ErrorCode::not_found, "it was granted too late", "session", {}});
    if ((*region)->traffic) (*region)->traffic->received.fetch_add(frame.size, std::memory_order_relaxed);
    if (time_to_confirm) send_confirms();
    if ((*region)->address != nullptr) return;
    const auto slot = std::static_pointer_cast<Slots::Slot>(landing.keeps);
    const Way& way = *(*region)->in;
    moving(1);
    slot->move(slot, way, true, frame.offset, frame.size,
               [self = shared_from_this(), held = *region, frame](const auto&, const Result<void>& moved) {
                   if (moved)
                       self->confirm(frame);
                   else
                       self->refuse(frame.request, frame.size, moved.error());
                   self->moving(-1);
               });
}

void Session::confirm(const Frame& push) {
    link()->send({Frame::Kind::confirm, push.request, 0, push.at, push.size}, nullptr, {});
}

bool Session::confirm_soon(const Frame& push) {
    confirms_wait_.store(true, std::memory_order_relaxed);
    const auto before = std::find_if(confirms_.rbegin(), confirms_.rend(), [&](const Frame& one) {
        return one.request == push.request && one.offset + one.size == push.at;
    });
    if (before != confirms_.rend()) return (before->size += push.size) >= together;
    confirms_.push_back({Frame::Kind::confirm, push.request, 0, push.at, push.size});
    return push.size >= together || confirms_.size() >= most_confirms;
}

void Session::send_confirms() {
    std::vector<Frame> confirms;
    Line line;
    {
        std::lock_guard lock(mutex_);
        confirms_wait_.store(false, std::memory_order_relaxed);
        confirms.swap(confirms_);
        line = line_;
    }
    Bundle bundle(line.link, {});
    for (const Frame& one : confirms) bundle.add(one, nullptr);
}

void Session::caught_up() {
    if (confirms_wait_.load(std::memory_order_relaxed)) send_confirms();
    if (asked_.load(std::memory_order_relaxed) && asked_.exchange(false)) pump();
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
