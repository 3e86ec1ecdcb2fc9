// What comes from the other end: where it goes, and what is answered.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/bundle.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {

using backend::Frame;
using backend::Landing;

Result<std::shared_ptr<Region>> Session::find_target(const Frame& frame) const {
    const auto found = regions_.find(frame.target);
    if (found == regions_.end() || !found->second->beyond)
        return Error{ErrorCode::not_found, "what leads to another machine is there no longer", "session", {}};
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
    SIDESTEP_CHECK(region.check(frame.offset, frame.size));
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

bool Session::may_move(const Region& region, Pace::Direction direction, Bytes bytes) {
    if (!region.pace) return true;
    return region.pace->take(direction, bytes, this, [self = weak_from_this(), direction] {
        const auto session = self.lock();
        if (!session) return;
        direction == Pace::in ? session->link()->resume(backend::Link::Resume::all) : session->pump();
    });
}

Landing Session::in_slot(const Region& region, Bytes bytes) {
    auto slot = region.slots_in->take();
    if (!slot) {
        if (region.pace) region.pace->give_back(Pace::in, bytes);
        return Landing{Landing::Kind::later};
    }
    void* const address = slot->address();
    return Landing{Landing::Kind::here, address, std::move(slot)};
}

Result<Landing> Session::landing_of(const Frame& frame) {
    if (frame.kind == Frame::Kind::fault) {
        auto words = std::make_shared<std::string>(frame.size, '\0');
        return Landing{Landing::Kind::here, words->data(), words};
    }
    if (frame.kind != Frame::Kind::push) return landing_of_scatter(frame);
    if (frame.region == 0) return landing_of_answer(frame);
    auto region = region_of(frame, true);
    if (!region) return Landing{};
    if (!may_move(**region, Pace::in, frame.size)) return Landing{Landing::Kind::later};
    if (unsigned char* const address = (*region)->address)
        return Landing{Landing::Kind::here, address + frame.offset, std::move(*region)};
    if (line().is_direct(**region, frame.size))
        return Landing{Landing::Kind::here, (*region)->device_address + frame.offset, std::move(*region)};
    return in_slot(**region, frame.size);
}

Result<Landing> Session::landing_of_answer(const Frame& frame) {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(frame.request);
    if (found == requests_.end() || !found->second.pull || found->second.waiting) return not_asked_for();
    Request& request = found->second;
    Landing landing{Landing::Kind::here, request.parts->memory(frame.offset, frame.size), nullptr};
    const Bytes all = request.parts->size();
    const bool within = frame.offset <= all && frame.size <= all - frame.offset;
    if (!within || frame.size > request.left - request.landing) return not_asked_for();
    if (landing.address == nullptr && !line_.scatters) return not_asked_for();
    if (request.own) {
        if (landing.address != nullptr && line_.is_direct(*request.own, frame.size))
            landing.keeps = request.own;
        else
            landing = in_slot(*request.own, frame.size);
        if (landing.kind == Landing::Kind::later) return landing;
    } else if (landing.address == nullptr) {
        request.parts->cut({frame.offset, frame.offset + frame.size}, frame.size, [&](const Part& part) {
            backend::join(landing.parts, {part.memory, part.size});
        });
    }
    request.landing += frame.size;
    return landing;
}

// Of the list of places, and of what goes there.
Result<Landing> Session::landing_of_scatter(const Frame& frame) {
    std::lock_guard lock(mutex_);
    if (!line_.scatters) return not_asked_for();
    if (frame.kind == Frame::Kind::places) {
        auto bytes = std::make_shared<std::string>(frame.size, '\0');
        return Landing{Landing::Kind::here, bytes->data(), bytes};
    }
    // They are taken when the bytes are there.
    const auto told = places_.find({frame.request, frame.at});
    if (told == places_.end()) return not_asked_for();
    auto region = find_region({frame.kind, frame.request, frame.region}, true);
    if (!region) return Landing{};
    Landing landing{Landing::Kind::here};
    Bytes all = 0;
    for (const backend::RegionPart& place : told->second) {
        if (!(*region)->check(place.offset, place.size)) return Landing{};
        if ((*region)->address != nullptr)
            backend::join(landing.parts, {(*region)->address + place.offset, place.size});
        all += place.size;
    }
    if (all != frame.size) return not_asked_for();
    if (!may_move(**region, Pace::in, frame.size)) return Landing{Landing::Kind::later};
    if ((*region)->address != nullptr) {
        landing.keeps = std::move(*region);
        return landing;
    }
    return in_slot(**region, frame.size);
}

Result<std::vector<backend::RegionPart>> Session::take_places(const Frame& frame) {
    auto told = places_.extract({frame.request, frame.at});
    if (told.empty()) return not_asked_for();
    Bytes all = 0;
    for (const backend::RegionPart& place : told.mapped()) all += place.size;
    if (all != frame.size) return not_asked_for();
    return std::move(told.mapped());
}

Result<void> Session::told_places(const Frame& frame, const Landing& landing) {
    SIDESTEP_TRY(auto places, backend::parse_places(*std::static_pointer_cast<std::string>(landing.keeps)));
    std::lock_guard lock(mutex_);
    if (places_.size() >= most_lists) return not_asked_for();
    if (!places_.emplace(std::pair(frame.request, frame.at), std::move(places)).second)
        return not_asked_for();
    return {};
}

Result<void> Session::act_on(const Frame& frame, Landing landing) {
    switch (frame.kind) {
        case Frame::Kind::places:
            return told_places(frame, landing);
        case Frame::Kind::scatter:
        case Frame::Kind::push:
            received_.fetch_add(frame.size, std::memory_order_relaxed);
            if (frame.region != 0) return pushed(frame, landing);
            if (landing.keeps) return answered(frame, landing);
            [[fallthrough]];
        case Frame::Kind::confirm: {
            Lock lock(mutex_);
            return came(std::move(lock), requests_.find(frame.request), frame.kind != Frame::Kind::confirm,
                        frame.offset, frame.size);
        }
        case Frame::Kind::pull:
        case Frame::Kind::pass:
        case Frame::Kind::gather:
            return give(frame);
        case Frame::Kind::fault:
            return fault(frame, landing);
    }
    return {};
}

// What came into memory of a GPU, or into a slot of it.
Result<void> Session::answered(const Frame& frame, const Landing& landing) {
    std::shared_ptr<Region> own;
    std::vector<backend::RegionPart> places;
    unsigned epoch = 0;
    {
        std::lock_guard lock(mutex_);
        const auto found = requests_.find(frame.request);
        if (found == requests_.end() || !found->second.own) return not_asked_for();
        own = found->second.own;
        epoch = line_.epoch;
        const Range range{frame.offset, frame.offset + frame.size};
        found->second.parts->cut(range, frame.size, [&](const Part& part) {
            places.push_back({static_cast<Bytes>(part.memory - own->device_address), part.size});
        });
        if (landing.keeps != own) {
            ++moving_;
            ++found->second.moving;
        }
    }
    if (landing.keeps == own) return landed(frame, epoch, own->see_writes());
    const auto slot = std::static_pointer_cast<Slots::Slot>(landing.keeps);
    slot->move(slot, *own->in, Slots::Slot::Direction::in, std::move(places),
               [self = shared_from_this(), own, frame, epoch](const auto&, const Result<void>& moved) {
                   if (auto told = self->judged(self->landed(frame, epoch, moved)); !told)
                       self->link()->close(told.error());
                   self->moving(-1, frame.request);
               });
    return {};
}

// Over a link that has ended since it counts for nothing: it is asked for again. Under one lock, since what fails after the
// link was lost would be neither asked for again nor ended with it.
Result<void> Session::landed(const Frame& frame, unsigned epoch, const Result<void>& there) {
    Lock lock(mutex_);
    const auto found = requests_.find(frame.request);
    if (end_ || waits_for_link_ || epoch != line_.epoch || found == requests_.end()) return {};
    if (there) return came(std::move(lock), found, true, frame.offset, frame.size);
    found->second.landing -= frame.size;
    return failed(std::move(lock), found, frame.size, there.error());
}

Result<void> Session::pushed(const Frame& frame, const Landing& landing) {
    const bool landed = landing.kind == Landing::Kind::here;
    const bool scattered = frame.kind == Frame::Kind::scatter;
    std::vector<backend::RegionPart> places{{frame.offset, frame.size}};
    bool time_to_confirm = false;
    bool by_processor = false;
    Result<std::shared_ptr<Region>> region = std::shared_ptr<Region>();
    {
        std::lock_guard lock(mutex_);
        by_processor = line_.direct_above == backend::Link::never;  // no card of this link reaches devices
        region = find_region(scattered ? Frame{frame.kind, frame.request, frame.region} : frame, true);
        if (scattered) {
            SIDESTEP_TRY(places, take_places(frame));
            // They may be others than those it landed by.
            for (const auto& [offset, size] : places)
                if (auto within = region && landed ? (*region)->check(offset, size) : Result<void>(); !within)
                    region = within.error();
        }
        if (region && landed && (*region)->address != nullptr) time_to_confirm = confirm_soon(frame);
    }
    if (region && !landed)
        region = scattered
                     ? Error{ErrorCode::invalid_argument, "a part lies past the end", (*region)->name, {}}
                     : Error{ErrorCode::not_found, "it was granted too late", "session", {}};
    if (!region) {
        refuse(frame.request, frame.size, region.error());
        return {};
    }
    if ((*region)->traffic) (*region)->traffic->received.fetch_add(frame.size, std::memory_order_relaxed);
    if (time_to_confirm) send_confirms();
    if ((*region)->address != nullptr) return {};
    if (landing.keeps == *region) {
        const auto seen = (*region)->see_writes();
        seen ? confirm(frame) : refuse(frame.request, frame.size, seen.error());
        return {};
    }
    const auto slot = std::static_pointer_cast<Slots::Slot>(landing.keeps);
    const Way& way = *(*region)->in;
    const bool later = by_processor && way.to_gpu && frame.size >= later_from;
    moving(1);
    slot->move(slot, way, later ? Slots::Slot::Direction::in_later : Slots::Slot::Direction::in,
               std::move(places),
               [self = shared_from_this(), held = *region, frame](const auto&, const Result<void>& moved) {
                   if (moved)
                       self->confirm(frame);
                   else
                       self->refuse(frame.request, frame.size, moved.error());
                   self->moving(-1);
               });
    return {};
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
    for (const Frame& one : confirms) bundle.add({one});
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
    if (words.empty()) return not_asked_for();
    const int code = words.front();
    const bool known = code >= static_cast<int>(ErrorCode::invalid_argument) &&
                       code <= static_cast<int>(ErrorCode::internal);
    Lock lock(mutex_);
    return failed(std::move(lock), requests_.find(frame.request), frame.offset,
                  Error{known ? static_cast<ErrorCode>(code) : ErrorCode::io_error,
                        fmt::format("{} says: {}", peer_, words.substr(1)),
                        "session",
                        {}});
}

}  // namespace sidestep::wire
