// What the other end asks for, and is sent, or a third machine.
#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/bundle.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {

using backend::Frame;

// Answers a pull, a pass, or a gather, which is many of either. All of a gather are added under one lock: a confirmation that
// comes meanwhile does not send some of them ahead.
Result<void> Session::give(const Frame& frame) {
    const bool leads_on = frame.kind == Frame::Kind::pass || frame.target != 0;
    Result<void> refused;
    bool wait = true;
    {
        std::lock_guard lock(mutex_);
        std::vector<backend::RegionPart> places{{frame.offset, frame.size}};
        if (leads_on) places.push_back({frame.target_offset, 0});
        if (frame.kind == Frame::Kind::gather) {
            SIDESTEP_TRY(places, take_places(frame));
        }
        const std::size_t count = leads_on ? places.size() / 2 : places.size();
        const std::span from(places.data(), count), to(places.data() + places.size() - count, count);
        const auto region = find_region({frame.kind, frame.request, frame.region}, false);
        const auto target = leads_on ? find_target(frame) : std::shared_ptr<Region>();
        if (!region || !target) refused = region ? target.error() : region.error();
        Bytes all = 0;
        for (std::size_t i = 0; i < count; all += from[i++].size) {
            if (refused) refused = (*region)->check(from[i].offset, from[i].size);
            if (refused && *target) refused = (*target)->check(to[i].offset, from[i].size);
        }
        if (all != frame.size) return not_asked_for();
        if (refused && count > 0) {
            Fetch fetch{*region, frame.request, frame.at, *target};
            fetch.to_gpu = frame.to_gpu;
            for (std::size_t i = 0; leads_on && i < count; ++i) fetch.to_offsets.push_back(to[i].offset);
            places.resize(count);
            fetch.places = std::move(places);
            fetch.size = all;
            SIDESTEP_TRY(wait, add_fetch(std::move(fetch)));
        }
    }
    if (!refused)
        refuse(frame.request, frame.size, refused.error());
    else
        pump_soon(wait);
    return {};
}

Result<bool> Session::add_fetch(Fetch fetch) {
    const std::size_t before = fetch_places_;
    fetch_places_ += fetch.places.size();
    if (fetch_places_ > most_fetches)
        return Error{
            ErrorCode::io_error, fmt::format("{} asks for too much at a time", peer_), "session", {}};
    const auto is_small = [](const backend::RegionPart& place) { return place.size <= small_request; };
    const bool small = std::ranges::all_of(fetch.places, is_small);
    fetches_.push_back(std::move(fetch));
    return small && before / most_confirms == fetch_places_ / most_confirms;
}

void Session::pump_soon(bool wait) {
    if (wait)
        asked_.store(true);  // more of them may be coming
    else
        pump();
}

void Session::cut_fetch(Fetch& part) {
    Fetch& first = fetches_.front();
    backend::RegionPart& place = first.places[first.next];
    const Bytes size = std::min(place.size, backend::max_push);
    part.places.push_back({place.offset, size});
    if (part.leads_on()) part.to_offsets.push_back(first.to_offsets[first.next]);
    part.size += size;
    first.at += size;
    first.size -= size;
    if (size < place.size) {
        place.offset += size;
        place.size -= size;
        if (part.leads_on()) first.to_offsets[first.next] += size;
        return;
    }
    --fetch_places_;
    if (++first.next == first.places.size()) fetches_.pop_front();
}

bool Session::goes_with(const Fetch& part) {
    if (fetches_.empty() || part.places.size() == backend::most_places) return false;
    const Fetch& next = fetches_.front();
    const Bytes more = std::min(next.places[next.next].size, backend::max_push);
    return next.request == part.request && next.region == part.region && next.at == part.at + part.size &&
           next.to == part.to && next.into == part.into && part.size + more <= backend::max_push &&
           may_move(*part.region, Pace::out, more);
}

// The next part of what is asked for, where it has a slot, or needs none. A slot takes as many small ones as belong together.
std::optional<Session::Fetch> Session::next_fetch(std::shared_ptr<Slots::Slot>& slot, Line& line) {
    std::lock_guard lock(mutex_);
    line = line_;
    if (fetches_.empty()) return std::nullopt;
    const Fetch& first = fetches_.front();
    const Bytes most = std::min(first.places[first.next].size, backend::max_push);
    const bool by_slot = first.by_slot(line, most);
    if (!by_slot && on_the_way_ >= most_on_the_way) return std::nullopt;
    const Region& region = *first.region;
    if (!may_move(region, Pace::out, most)) return std::nullopt;
    if (by_slot) slot = region.slots_out->take();
    if (by_slot && !slot) {
        if (region.pace) region.pace->give_back(Pace::out, most);
        return std::nullopt;
    }
    Fetch part{first.region, first.request, first.at, first.to, first.into};
    part.to_gpu = first.to_gpu;
    // What a card reads out of a GPU goes as it lies: no processor can put places of it together.
    const bool straight = !by_slot && first.region->address == nullptr;
    const bool alone = part.leads_on() ? part.into != 0 && !by_slot : straight || !line.scatters;
    do cut_fetch(part);
    while (!alone && goes_with(part));
    if (by_slot || part.to) ++moving_;
    if (by_slot && part.into != 0) ++requests_.at(part.request).moving;
    if (!by_slot) on_the_way_ += part.size;
    if (part.region->traffic) part.region->traffic->sent.fetch_add(part.size, std::memory_order_relaxed);
    return part;
}

// One thread at a time: what is sent at once calls back here, and each part would lie deeper in the stack than the last.
void Session::pump() {
    if (pumps_.fetch_add(1) > 0) return;
    unsigned seen = 1;
    do {
        send_fetches();
        seen = pumps_.fetch_sub(seen) - seen;
    } while (seen > 0);
}

// Answers from memory that go together, over one link; small ones that are neighbours in what was asked for as one frame,
// where it scatters. Their regions keep the memory until it has been sent.
class Session::Answers {
public:
    explicit Answers(Session& session) : session_(session) {}
    ~Answers() { flush(); }
    Answers(const Answers&) = delete;
    Answers& operator=(const Answers&) = delete;

    void add(const Fetch& part, const Line& line) {
        if (!bundle_ || line.epoch != line_.epoch) begin(line);
        const Region& from = *part.region;
        const bool straight = from.address == nullptr;
        if (straight || !goes_on(part)) flush();
        if (places_ == 0)
            frame_ = {
                .kind = Frame::Kind::push, .request = part.request, .offset = part.at, .to_gpu = part.to_gpu};
        frame_.size += part.size;
        places_ += part.places.size();
        unsigned char* const begin = straight ? from.device_address : from.address;
        for (const auto& [offset, size] : part.places) backend::join(memory_, {begin + offset, size});
        if (kept_.empty() || kept_.back() != part.region) kept_.push_back(part.region);
        if (straight) flush();
    }

private:
    bool goes_on(const Fetch& part) const {
        return line_.scatters && places_ + part.places.size() <= backend::most_places &&
               frame_.request == part.request && frame_.offset + frame_.size == part.at &&
               frame_.size + part.size <= together;
    }
    void flush() {
        if (std::exchange(places_, 0) == 0) return;
        auto kept = std::make_shared<const std::vector<std::shared_ptr<Region>>>(std::exchange(kept_, {}));
        bundle_->add(backend::Outgoing::of(frame_, std::exchange(memory_, {})), std::move(kept));
    }
    void begin(const Line& line) {
        flush();
        line_ = line;
        bundle_ = std::make_unique<Bundle>(
            line.link, [this, epoch = line.epoch](Bytes bytes) -> std::function<void()> {
                session_.sent_.fetch_add(bytes, std::memory_order_relaxed);
                return
                    [self = session_.shared_from_this(), bytes, epoch] { self->memory_sent(bytes, epoch); };
            });
    }

    Session& session_;
    Line line_;
    std::unique_ptr<Bundle> bundle_;
    Frame frame_;  // that is next, and what it brings
    std::size_t places_ = 0;
    std::vector<backend::Memory> memory_;
    std::vector<std::shared_ptr<Region>> kept_;
};

void Session::send_fetches() {
    Answers answers(*this);
    std::shared_ptr<Slots::Slot> slot;
    Line line;
    while (auto part = next_fetch(slot, line)) {
        if (!slot) {
            if (part->into != 0)
                send_own(line, *part, nullptr);
            else if (!part->to)
                answers.add(*part, line);
            else
                pass_on(*part, nullptr,
                        [self = shared_from_this(), region = part->region, size = part->size,
                         epoch = line.epoch] { self->memory_sent(size, epoch); });
            continue;
        }
        Slots::Slot& one = *slot;
        const Way& way = *part->region->out;
        auto places = part->places;
        one.move(std::move(slot), way, Slots::Slot::Direction::out, std::move(places),
                 [self = shared_from_this(), part = std::move(*part)](const auto& filled,
                                                                      const Result<void>& moved) {
                     if (moved)
                         self->send_slot(part, filled);
                     else
                         self->fail_fetch(part, moved.error());
                     self->moving(-1, part.into != 0 ? part.request : 0);
                 });
        slot.reset();
    }
}

// What has not been begun of it fails too.
void Session::fail_fetch(const Fetch& part, const Error& why) {
    Bytes rest = 0;
    {
        std::lock_guard lock(mutex_);
        std::erase_if(fetches_, [&](const Fetch& one) {
            if (!one.is_with(part)) return false;
            rest += one.size;
            fetch_places_ -= one.places.size() - one.next;
            return true;
        });
    }
    if (part.into != 0)
        fail_own(part.request, part.size + rest, why);
    else
        refuse(part.request, part.size + rest, why);
}

// It is over when its last slot is: see moving().
void Session::fail_own(std::uint64_t request, Bytes bytes, const Error& why) {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end()) return;
    Request& one = found->second;
    if (!one.error) one.error = why;
    if (end_ || waits_for_link_) {
        one.left = 0;
        return;
    }
    one.left -= std::min(bytes, one.left);
    one.leaving -= bytes;
}

void Session::memory_sent(Bytes bytes, unsigned epoch) {
    {
        std::lock_guard lock(mutex_);
        if (epoch != line_.epoch || waits_for_link_) return;
        on_the_way_ -= bytes;
        if (fetches_.empty()) return;
    }
    pump();
}

void Session::send_slot(const Fetch& part, const std::shared_ptr<Slots::Slot>& slot) {
    if (part.into != 0) return send_own(line(), part, slot);
    auto sent = [slot] { static_cast<void>(slot); };
    if (part.to) return pass_on(part, static_cast<unsigned char*>(slot->address()), std::move(sent));
    sent_.fetch_add(part.size, std::memory_order_relaxed);
    link()->send({.kind = Frame::Kind::push,
                  .request = part.request,
                  .offset = part.at,
                  .size = part.size,
                  .to_gpu = part.to_gpu},
                 slot->address(), std::move(sent));
}

// Until the third machine has it nothing of it may be sent over this session's next link: it might come there last. What
// leaves no slot was counted as it was taken off.
void Session::pass_on(const Fetch& part, unsigned char* slot, std::function<void()> sent) {
    if (slot != nullptr) moving(1);
    std::vector<Part> parts;
    parts.reserve(part.places.size());
    for (std::size_t i = 0; i < part.places.size(); ++i) {
        const auto& [offset, size] = part.places[i];
        parts.push_back({.region = part.to->target,
                         .offset = part.to_offsets[i],
                         .size = size,
                         .memory = slot != nullptr ? slot : part.region->address + offset,
                         .to_gpu = part.to_gpu});
        if (slot != nullptr) slot += size;
    }
    Fetch one{part.region, part.request, part.at, part.to};
    one.size = part.size;
    part.to->beyond->bring(std::move(parts), [self = shared_from_this(), one = std::move(one),
                                              sent = std::move(sent)](const Result<void>& there) {
        if (there)
            self->confirm({Frame::Kind::push, one.request, 0, 0, one.size, 0, 0, one.at});
        else
            self->fail_fetch(one, there.error());
        sent();
        self->moving(-1);
    });
}

}  // namespace sidestep::wire
