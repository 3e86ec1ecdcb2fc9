#include "wire/served.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include <fmt/format.h>
#include <sidestep/version.hpp>

#include "base/try.hpp"
#include "driver/files.hpp"
#include "transfer/ends.hpp"
#include "wire/checked_link.hpp"
#include "wire/peer.hpp"
#include "wire/region_ways.hpp"

namespace sidestep::wire {
namespace {

// Less than whoever ends waits for those who are at it.
constexpr std::chrono::milliseconds settle_limit{500};

Error not_there(const char* what) {
    return Error{ErrorCode::not_found, fmt::format("there is no such {}", what), "node", {}};
}

std::uint64_t number_of(const Buffer& buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer.address());
}

}  // namespace

Result<void> Accounts::take(const Allowances& allowed, const Place& place, Bytes bytes) {
    std::lock_guard lock(mutex_);
    Bytes& held = held_[allowed.account(place)];
    SIDESTEP_CHECK(allowed.memory(place, bytes, held));
    held += bytes;
    return {};
}

void Accounts::give_back(const Allowances& allowed, const Place& place, Bytes bytes) {
    std::lock_guard lock(mutex_);
    held_[allowed.account(place)] -= bytes;
}

std::optional<std::string> Served::answer(const Envelope& question, std::size_t sockets,
                                          std::chrono::steady_clock::time_point came) {
    std::optional<std::string> answer;
    if (!is_new(question, answer)) return answer;
    auto done = act(question, sockets);
    node_->counters->answered(question.word, done, std::chrono::steady_clock::now() - came);
    if (question.number == 0) return std::nullopt;
    answer = to_message(Envelope{Word::answer, question.number, to_answer(done)});
    keep_answer(question, *answer);
    return answer;
}

bool Served::is_new(const Envelope& question, std::optional<std::string>& known) {
    if (question.number == 0 || question.word == Word::hello) return true;
    std::lock_guard lock(mutex_);
    const auto [found, added] = answers_.try_emplace(question.number);
    known = found->second;
    return added;
}

void Served::keep_answer(const Envelope& question, const std::string& answer) {
    std::lock_guard lock(mutex_);
    const auto found = answers_.find(question.number);
    if (found == answers_.end()) return;
    found->second = answer;
    answered_.push_back(question.number);
    if (answered_.size() <= most_answers) return;
    answers_.erase(answered_.front());
    answered_.pop_front();
}

void Served::use_engine(backend::NetworkEngine& engine, bool checked, bool encrypted) {
    encrypted_.store(encrypted);
    if (session_->link()->sockets() == 0) session_->use(make_link(engine, session_, checked));
}

void Served::talk_over(std::shared_ptr<Channel> channel) {
    std::lock_guard lock(mutex_);
    channel_ = std::move(channel);
}

void Served::send(std::string_view message) const {
    std::shared_ptr<Channel> channel;
    {
        std::lock_guard lock(mutex_);
        channel = channel_;
    }
    if (channel) channel->send(message);
}

std::function<void()> Served::come_again(std::shared_ptr<Channel> channel,
                                         std::shared_ptr<backend::Link> link, const Envelope& greeting,
                                         std::size_t sockets) {
    const auto self = shared_from_this();
    const std::uint64_t turn = ++newest_;
    ++coming_again_;
    // Goes with the task, whether that is carried out or not.
    const std::shared_ptr<void> through(nullptr, [self](void*) { --self->coming_again_; });
    return [self, through, channel = std::move(channel), link = std::move(link), greeting, sockets, turn,
            came = std::chrono::steady_clock::now()] {
        std::lock_guard lock(self->replacing_);
        if (turn != self->newest_.load()) return;  // its channel was closed for another
        const auto done = self->replace_link(link);
        if (done) self->talk_over(channel);
        const auto answer = done ? self->act(greeting, sockets) : Result<std::string>(done.error());
        self->node_->counters->answered(greeting.word, answer, std::chrono::steady_clock::now() - came);
        channel->send(to_message(Envelope{Word::answer, greeting.number, to_answer(answer)}));
    };
}

// Nothing of the old link may come after what comes over the new one.
Result<void> Served::replace_link(std::shared_ptr<backend::Link> link) {
    session_->link()->end(Error{ErrorCode::io_error, "its client connects anew", "node", {}});
    if (!session_->settle(std::chrono::steady_clock::now() + settle_limit))
        return Error{ErrorCode::timed_out, "what came before is still on its way", "node", {}};
    SIDESTEP_CHECK(session_->renew(std::move(link)));
    return session_->replay();
}

Result<std::string> Served::act(const Envelope& question, std::size_t sockets) {
    switch (question.word) {
        case Word::hello:
            return greet(question.body, sockets);
        case Word::describe:
            return describe(question.body);
        case Word::allocate:
            return allocate(question.body);
        case Word::free:
            return free(question.body);
        case Word::attach:
            return attach(question.body);
        case Word::commit:
            return commit(question.body);
        case Word::report:
            return report(question.body);
        case Word::detach:
            return detach(question.body);
        case Word::lend:
            return lend(question.body);
        case Word::take:
            return take(question.body);
        case Word::reach:
            return reach(question.body);
        case Word::trial:
            return trial();
        case Word::tell:
            return tell(question.body);
        case Word::list:
            return list(question.body);
        case Word::notify:
            return notify(question.body);
        case Word::answer:
        case Word::leave:
            break;
    }
    return Error{ErrorCode::io_error, "nobody asked for an answer", "node", {}};
}

Result<std::string> Served::greet(std::string_view body, std::size_t sockets) const {
    SIDESTEP_TRY(const Hello theirs, parse_hello(body));
    Hello ours;
    ours.software = fmt::format("sidestep {}", version());
    ours.node = node_->name;
    ours.session = number_;
    ours.key = key_;
    ours.engines = node_->engines();
    const auto tools = node_->tools.lock();
    ours.encrypted = encrypted() || (tools && tools->encrypted());  // also where there is no common engine
    ours.sockets = static_cast<std::uint8_t>(std::min<std::size_t>(sockets, 255));
    return to_body(ours);
}

Result<std::string> Served::allocate(std::string_view body) {
    SIDESTEP_TRY(const AllocateRequest request, parse_allocate(body));
    if (!request.place.is_host() && !request.place.is_gpu())
        return Error{ErrorCode::invalid_argument,
                     "memory is allocated at a host or gpu place",
                     request.place.to_string(),
                     {}};
    const Machine& machine = node_->machine;
    // Whoever is not allowed a place does not learn whether it is there.
    SIDESTEP_CHECK(node_->accounts.take(node_->allowed, request.place, request.bytes));
    auto give_back = [node = node_, place = request.place, bytes = request.bytes] {
        node->accounts.give_back(node->allowed, place, bytes);
    };
    Result<void> there = transfer::check_here(machine.topology, request.place);
    if (there && request.bytes == 0)
        there =
            Error{ErrorCode::invalid_argument, "an allocation needs a size", request.place.to_string(), {}};
    auto made = there ? transfer::allocate(machine.registry, request.place, request.bytes, request.kind)
                      : Result<Allocation>(there.error());
    if (!made) {
        give_back();
        return made.error();
    }
    const Buffer buffer = made->buffer();
    const MemoryKind kind = made->kind();
    auto inner = std::make_shared<Allocation>(std::move(*made));
    auto ready = buffer.place().is_host() ? node_->prepare(buffer.address(), buffer.size())
                                          : std::vector<std::shared_ptr<const void>>();
    const auto counted = std::make_shared<const Allocation>(
        buffer, kind,
        [inner, give_back, ready, registrations = machine.engine.machine().registrations]() mutable {
            registrations->forget(inner->buffer());
            ready.clear();
            inner.reset();
            give_back();
        });
    std::lock_guard lock(mutex_);
    if (ended_) return not_there("client");
    if (memory_.size() >= most_allocations)
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} allocations are the most for one client", most_allocations),
                     "node",
                     {}};
    memory_[number_of(buffer)] = counted;
    return to_body(Allocated{buffer.place(), number_of(buffer), kind});
}

Result<std::string> Served::free(std::string_view body) {
    SIDESTEP_TRY(const std::uint64_t address, parse_number(body));
    std::shared_ptr<const Allocation> freed;
    std::lock_guard lock(mutex_);
    const auto found = memory_.find(address);
    if (found == memory_.end()) return not_there("memory");
    freed = std::move(found->second);
    memory_.erase(found);
    return std::string();
}

// Memory that this client allocated here: a part of it, or all.
Result<Served::Found> Served::find_memory(const Buffer& buffer) {
    const std::uint64_t address = number_of(buffer);
    std::lock_guard lock(mutex_);
    auto after = memory_.upper_bound(address);
    if (after == memory_.begin()) return not_there("memory");
    const auto& [begin, allocation] = *--after;
    if (address - begin > allocation->size() || buffer.size() > allocation->size() - (address - begin) ||
        buffer.place().kind() != allocation->place().kind() ||
        buffer.place().index() != allocation->place().index())
        return not_there("memory");
    return Found{allocation->buffer().slice(address - begin, buffer.size()),
                 {allocation->place(), allocation->kind(), buffer.size()},
                 allocation};
}

Result<Served::Found> Served::find(const Buffer& buffer, Permission permission) {
    const Place& place = buffer.place();
    if (place.is_host() || place.is_gpu()) return find_memory(buffer);
    Found found;
    if (place.is_shared()) {
        SIDESTEP_CHECK(node_->allowed.shared(place.path()));
        SIDESTEP_TRY(transfer::Import import, node_->machine.shared.import(buffer));
        found.buffer = import.buffer;
        found.keeps = std::move(import.lease);
    } else if (place.is_file()) {
        SIDESTEP_TRY(const std::string path, node_->allowed.file(place.path(), permission));
        found.buffer = Buffer::file(path, buffer.offset(), buffer.size());
    } else {
        return Error{
            ErrorCode::permission_denied, "this node lets others reach no such place", place.to_string(), {}};
    }
    SIDESTEP_TRY(found.description, transfer::describe(node_->machine.registry, found.buffer));
    return found;
}

// The path stays the one that the client knows.
Result<std::string> Served::describe(std::string_view body) {
    SIDESTEP_TRY(const Buffer buffer, parse_buffer(body));
    // One that may be written to need not be there yet.
    auto found = find(buffer, Permission::write);
    if (!found && found.error().code == ErrorCode::permission_denied) found = find(buffer, Permission::read);
    if (!found && found.error().code == ErrorCode::not_found && buffer.place().is_file())
        return to_body(backend::Description{buffer.place(), MemoryKind::storage, 0});
    if (!found) return found.error();
    backend::Description description = found->description;
    if (buffer.place().is_file()) description.place = buffer.place();
    if (buffer.place().is_shared()) {
        description.size = found->buffer.size();
        description.identity = 0;  // it may be withdrawn at any time: nobody keeps what was granted of it
    }
    return to_body(description);
}

Result<std::string> Served::attach(std::string_view body) {
    SIDESTEP_TRY(const AttachRequest request, parse_attach(body));
    const bool writes = request.options.access == backend::Access::write;
    SIDESTEP_TRY(Found found, find(request.buffer, writes ? Permission::write : Permission::read));
    Attached attached;
    SIDESTEP_TRY(Held held,
                 make_ready(std::make_shared<const Found>(std::move(found)), request, attached.way, nullptr));
    return grant(std::move(held), std::move(attached));
}

Result<std::string> Served::grant(Held held, Attached attached) {
    std::lock_guard lock(mutex_);
    if (ended_) return not_there("client");
    if (held_.size() >= most_regions)
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} regions are the most for one client", most_regions),
                     "node",
                     {}};
    const auto is_trial = [](const Held& one) { return !one.found && !one.beyond; };
    const auto trials = [&] { return std::ranges::count_if(held_ | std::views::values, is_trial); };
    if (is_trial(held) && trials() >= most_trials)
        return Error{ErrorCode::out_of_memory, "memory of earlier trials was not given back", "node", {}};
    attached.region = session_->grant(held.region);
    held_[attached.region] = std::move(held);
    return to_body(attached);
}

Result<Served::Held> Served::make_ready(std::shared_ptr<const Found> what, const AttachRequest& request,
                                        std::string& way,
                                        std::shared_ptr<backend::Registration> registration) {
    const Found& found = *what;
    const bool writes = request.options.access == backend::Access::write;
    Held held{std::make_shared<Region>(), std::move(registration), what, request};
    Region& region = *held.region;
    region.size = found.buffer.whole_file() ? request.options.expected_size : found.buffer.size();
    region.writable = writes;
    region.readable = true;  // what was written is read again where it is verified
    region.keeps = found.keeps;
    region.name = found.buffer.place().to_string();
    region.traffic =
        std::shared_ptr<Traffic>(node_->counters, &node_->counters->traffic(request.buffer.place().kind()));
    region.pace = node_->pace;
    if (found.buffer.place().is_host()) {
        region.address = static_cast<unsigned char*>(found.buffer.address());
        return held;
    }
    SIDESTEP_TRY(const SlotWay by, slot_way(node_->machine.topology, node_->machine.registry,
                                            {found.buffer.place(), found.description.memory}, writes));
    if (!held.registration) {
        SIDESTEP_TRY(held.registration, by.backend->attach(found.buffer, request.options));
    }
    way = by.words;
    if (found.buffer.place().is_gpu()) reach_device(region, found.buffer, *by.backend, way);
    if (writes) {
        SIDESTEP_TRY(auto ring, slots(by.slot.place, by.slot.memory, true));
        SIDESTEP_CHECK(add_slots(region, by, held.registration, true, std::move(ring)));
    }
    region.readable = by.out.possible() && by.out.hop.backend == by.backend->name();
    if (region.readable) {
        SIDESTEP_TRY(auto ring, slots(by.slot.place, by.slot.memory, false));
        SIDESTEP_CHECK(add_slots(region, by, held.registration, false, std::move(ring)));
    }
    return held;
}

void Served::reach_device(Region& region, const Buffer& memory, backend::Backend& backend, std::string& way) {
    const auto tools = node_->tools.lock();
    const auto link = session_->link();
    if (const auto why = why_never_direct(*link); !why.empty()) way += fmt::format(", since {}", why);
    if (tools && link->direct_above() != backend::Link::never)
        wire::reach_device(region, *tools, link->engine(), memory, backend, way);
}

Result<std::shared_ptr<Slots>> Served::slots(const Place& place, MemoryKind kind, bool in) {
    std::lock_guard lock(mutex_);
    auto& known = slots_[{place, in}];
    if (known) return known;
    SIDESTEP_TRY(known, Slots::create(node_->machine.engine.machine().pool, node_->pieces, place, kind));
    known->keep(node_->prepare(known->ring().address(), known->ring().size()));
    std::lock_guard listed(node_->mutex);
    node_->slots.push_back(known);
    return known;
}

Result<Served::Held> Served::held(std::string_view body) {
    SIDESTEP_TRY(const std::uint64_t region, parse_number(body));
    std::lock_guard lock(mutex_);
    const auto found = held_.find(region);
    if (found == held_.end()) return not_there("region");
    return found->second;
}

Result<std::string> Served::commit(std::string_view body) {
    SIDESTEP_TRY(const Held one, held(body));
    if (one.registration) SIDESTEP_CHECK(one.registration->commit());
    return std::string();
}

Result<std::string> Served::report(std::string_view body) {
    SIDESTEP_TRY(const Held one, held(body));
    if (one.beyond) return to_body(Report{{one.beyond->engine_words()}, {}});
    if (!one.registration) return to_body(Report{});
    return to_body(Report{one.registration->notes(), one.registration->storage_bytes()});
}

Result<std::string> Served::detach(std::string_view body) {
    SIDESTEP_TRY(const std::uint64_t region, parse_number(body));
    Held gone;
    {
        std::lock_guard lock(mutex_);
        const auto found = held_.find(region);
        if (found == held_.end()) return std::string();
        gone = std::move(found->second);
        held_.erase(found);
    }
    node_->lent.drop(*this, region);
    session_->withdraw(region);
    return std::string();
}

Result<std::string> Served::tell(std::string_view body) {
    std::lock_guard lock(telling_mutex_);
    std::shared_ptr<Channel> channel;
    {
        std::lock_guard inner(mutex_);
        channel = channel_;
    }
    return telling_.answer(node_->teller, body, channel ? channel->socket() : -1);
}

Result<std::string> Served::list(std::string_view body) const {
    SIDESTEP_TRY(const ListRequest request, parse_list(body));
    SIDESTEP_TRY(const std::string folder, node_->allowed.folder(request.folder));
    Names names;
    SIDESTEP_TRY(names.names, driver::names_in(folder));
    const auto known = std::upper_bound(names.names.begin(), names.names.end(), request.after);
    names.names.erase(names.names.begin(), known);
    return to_body(names);
}

Result<std::string> Served::notify(std::string_view body) const {
    SIDESTEP_TRY(std::string text, parse_text(body));
    SIDESTEP_CHECK(node_->notices->put({from_, std::move(text)}));
    return std::string();
}

void Served::end() {
    decltype(held_) held;
    decltype(memory_) memory;
    decltype(slots_) slots;
    {
        std::lock_guard lock(mutex_);
        ended_ = true;
        held.swap(held_);
        memory.swap(memory_);
        slots.swap(slots_);
    }
    node_->lent.drop(*this, 0);
    for (const auto& [region, one] : held) session_->withdraw(region);
}

}  // namespace sidestep::wire
