#include "wire/remote_backend.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <sidestep/network.hpp>

#include "backend/nearness.hpp"
#include "base/try.hpp"
#include "wire/checked_link.hpp"
#include "wire/far.hpp"
#include "wire/key.hpp"
#include "wire/remote_end.hpp"

namespace sidestep::wire {
namespace {

using backend::Capability;
using backend::Reach;

// One socket moves 4.8 GB/s and eight 21.9 over loopback, with a round trip of 18 us (a virtual machine with 16 processors,
// 2026-11-24); what the network between two machines gives is not known here.
constexpr double gb_per_s_of_a_socket = 2.7;
constexpr double latency_us = 20;

constexpr std::size_t most_nodes = 65536;
// One node that did not reach another is asked again after it.
constexpr std::chrono::seconds tried_again{10};
constexpr std::array<PlaceKind, 4> place_kinds{PlaceKind::host, PlaceKind::gpu, PlaceKind::file,
                                               PlaceKind::shared};

constexpr backend::MemorySet host_kinds{MemoryKind::pageable, MemoryKind::pinned};
constexpr backend::MemorySet device_kinds{MemoryKind::device, MemoryKind::pool, MemoryKind::vmm};
constexpr backend::MemorySet all_kinds{MemoryKind::pageable, MemoryKind::pinned, MemoryKind::device,
                                       MemoryKind::pool,     MemoryKind::vmm,    MemoryKind::managed,
                                       MemoryKind::storage};

// A place of a node as the node itself calls it.
Buffer there(const Buffer& buffer) {
    return buffer.on({});
}

// Memory of this machine that no engine of it was said to move.
Error not_moved(const Buffer& buffer) {
    return {ErrorCode::unsupported, "nothing here moves it to other machines", buffer.to_string(), {}};
}

Result<void> check_ends(const RemoteEnd& from, const RemoteEnd& to) {
    if (!from.remote() && !to.remote())
        return Error{ErrorCode::unsupported, "neither end is on a node", to.buffer().to_string(), {}};
    // It was made ready for one direction.
    if (from.own() && !from.own()->out) return not_moved(from.buffer());
    if (to.own() && !to.own()->in) return not_moved(to.buffer());
    return {};
}

// How they carry bytes, for people. Sockets take memory of the host alone.
std::string engine_words(const Engines& engines, bool of_gpus) {
    std::vector<std::string> words;
    if (engines.find("verbs") != nullptr) words.emplace_back("RDMA writes");
    if (engines.find("ncclnet") != nullptr) words.emplace_back("a network plugin");
    if (!of_gpus && engines.find("tcp") != nullptr)
        words.emplace_back(engines.encrypted() ? "encrypted sockets" : "sockets");
    return fmt::format("{}", fmt::join(words, " or "));
}

// There, and back by the node that has them.
void add_both_ways(std::vector<Capability>& all, Capability one) {
    all.push_back(one);
    std::swap(one.from, one.to);
    std::swap(one.from_memory, one.to_memory);
    one.reason += " by the node that has it";
    all.push_back(std::move(one));
}

}  // namespace

RemoteBackend::RemoteBackend(std::unique_ptr<Engines> engines, RemoteOptions options)
    : options_(std::move(options)),
      memory_(std::make_shared<RemoteMemory>()),
      etcd_(options_.etcd ? std::make_unique<Etcd>(*options_.etcd) : nullptr),
      peers_(
          std::move(engines), options_.node,
          [file = options_.key_file]() -> Result<std::string> {
              SIDESTEP_TRY(const std::string path, key_path(file));
              return read_key(path);
          },
          most_nodes),
      name_(fmt::format("{}", fmt::join(peers_.engines().names(), " or "))) {
    for (const NodeAddress& node : options_.nodes) named_.emplace(node.name, node);
}

backend::Support RemoteBackend::probe(const Topology& topology) {
    topology_ = &topology;
    return backend::Support::yes(fmt::format("up to {} sockets to a node", useful_sockets()));
}

std::unique_ptr<OwnMemory> RemoteBackend::own_memory(const backend::Registry& registry,
                                                     transfer::Engine& engine) {
    auto made = std::make_unique<OwnMemory>(*topology_, registry, engine, peers_.engines(),
                                            [this] { peers_.go_on_with_slots(); });
    own_ = made.get();
    return made;
}

std::size_t RemoteBackend::useful_sockets() const {
    const auto* const tcp = peers_.engines().find("tcp");
    return tcp != nullptr ? tcp->useful_sockets() : 1;
}

std::vector<Capability> RemoteBackend::capabilities() const {
    std::vector<Capability> all;
    const bool tcp = name_ == "tcp";
    const std::string engine = engine_words(peers_.engines(), false);
    for (const PlaceKind kind : place_kinds) {
        Capability push;
        push.from = PlaceKind::host;
        push.to = kind;
        push.from_memory = host_kinds;
        push.to_memory = all_kinds;
        push.reach = Reach::network;
        push.engine = engine;
        push.max_gb_per_s = gb_per_s_of_a_socket * static_cast<double>(useful_sockets());
        push.latency_us = latency_us;
        push.reason = tcp ? "pushed over TCP" : "pushed over the network";
        for (const PlaceKind other : place_kinds) {
            Capability pass = push;
            pass.reach = Reach::nodes;
            pass.from = other;
            pass.from_memory = all_kinds;
            pass.latency_us = 2 * latency_us;
            pass.reason = "pushed by the node that has it to the other";
            all.push_back(pass);
        }
        add_both_ways(all, push);
        if (tcp) continue;
        push.from = PlaceKind::gpu;
        push.from_memory = device_kinds;
        push.engine = engine_words(peers_.engines(), true);
        push.reason = "memory of the GPU as it is, " + push.reason;
        add_both_ways(all, push);
    }
    return all;
}

Result<NodeAddress> RemoteBackend::address_of(const std::string& node) {
    {
        std::lock_guard lock(mutex_);
        if (const auto found = named_.find(node); found != named_.end()) return found->second;
    }
    if (!etcd_) return NodeAddress{node, {{node, default_port}}};
    // One that moved was lost first.
    if (const auto there = peers_.find(node)) return there->address();
    return etcd_->find(node);
}

Result<std::shared_ptr<Peer>> RemoteBackend::peer(const std::string& node) {
    SIDESTEP_TRY(const NodeAddress address, address_of(node));
    return peers_.get(address);
}

Result<std::string> RemoteBackend::ask_node(const std::string& node,
                                            const std::function<Result<std::string>(Peer&)>& question) {
    SIDESTEP_TRY(const auto first, peer(node));
    auto answer = question(*first);
    // What it did for a connection that has ended went with it, so that it may be asked once more.
    if (answer || !first->end()) return answer;
    SIDESTEP_TRY(const auto second, peer(node));
    return second == first ? answer : question(*second);
}

Result<std::string> RemoteBackend::connect(const NodeAddress& address) {
    {
        std::lock_guard lock(mutex_);
        named_[address.name] = address;
    }
    SIDESTEP_TRY(const auto connected, peer(address.name));
    return connected->hello().node;
}

Result<std::vector<std::string>> RemoteBackend::names_in(const std::string& node, const std::string& folder) {
    return ask_for_names(folder, [&](const std::string& body) {
        return ask_node(node, [&](Peer& peer) { return peer.ask(Word::list, body, Peers::in_time()); });
    });
}

// Not once more where the node was started again: what it had been told went with it.
Result<void> RemoteBackend::notify(const std::string& node, std::string_view text) {
    if (text.size() > longest_notification)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a notification has {} bytes at most, and this one has {}",
                                 longest_notification, text.size()),
                     node,
                     {}};
    SIDESTEP_TRY(const auto there, peer(node));
    SIDESTEP_CHECK(there->ask(Word::notify, to_text_body(text), Peers::in_time()));
    return {};
}

std::string RemoteBackend::link_words(const std::string& node, Bytes bytes) {
    const auto there = peer(node);
    if (!there || !(*there)->session(bytes, Peers::in_time())) return {};
    return (*there)->tells_engine() ? (*there)->engine_words() : std::string();
}

Result<std::optional<backend::Description>> RemoteBackend::describe(const Buffer& buffer) {
    const std::string& node = buffer.place().node();
    if (node.empty()) return std::optional<backend::Description>();
    if (auto known = memory_->find(buffer)) return known;
    SIDESTEP_TRY(const std::string answer, ask_node(node, [&](Peer& peer) {
                     return peer.ask(Word::describe, to_body(there(buffer)), Peers::in_time());
                 }));
    SIDESTEP_TRY(backend::Description description, parse_description(answer));
    description.place = description.place.on(node);
    return std::optional(std::move(description));
}

Result<std::unique_ptr<backend::Registration>> RemoteBackend::attach(const Buffer& buffer,
                                                                     const backend::AttachOptions& options) {
    const std::string& node = buffer.place().node();
    if (node.empty()) {
        SIDESTEP_CHECK(backend::check_memory(buffer, options.access));
        if (buffer.place().is_gpu()) return attach_own(buffer, options);
        return std::unique_ptr<backend::Registration>(
            new RemoteEnd(buffer, peers_.engines().prepare(buffer.address(), buffer.size())));
    }
    const Bytes bytes = buffer.size() == Buffer::whole ? options.expected_size : buffer.size();
    const auto all = memory_->whole(buffer);
    if (!all) {
        SIDESTEP_TRY(auto far, reach_far(buffer, options, bytes));
        return std::unique_ptr<backend::Registration>(new RemoteEnd(buffer, std::move(far), 0));
    }
    // All of an allocation at once: its parts need no question then.
    auto far = memory_->far(buffer, options.access);
    if (far) {
        SIDESTEP_CHECK(far->peer->session(bytes, Peers::in_time()));
    } else {
        SIDESTEP_TRY(far, reach_far(*all, options, bytes));
        memory_->keep(*all, options.access, far);
    }
    const auto base = static_cast<Bytes>(static_cast<const char*>(buffer.address()) -
                                         static_cast<const char*>(all->address()));
    return std::unique_ptr<backend::Registration>(new RemoteEnd(buffer, std::move(far), base));
}

Result<std::unique_ptr<backend::Registration>> RemoteBackend::attach_own(
    const Buffer& buffer, const backend::AttachOptions& options) {
    if (!own_) return not_moved(buffer);
    std::string way;
    SIDESTEP_TRY(auto region, own_->region(buffer, options, way));
    return std::unique_ptr<backend::Registration>(new RemoteEnd(buffer, std::move(region), std::move(way)));
}

// For copies of so many bytes.
Result<std::shared_ptr<const Far>> RemoteBackend::reach_far(const Buffer& buffer,
                                                            const backend::AttachOptions& options,
                                                            Bytes bytes) {
    std::shared_ptr<Peer> asked;
    std::shared_ptr<Session> session;
    SIDESTEP_TRY(
        const std::string answer, ask_node(buffer.place().node(), [&](Peer& peer) -> Result<std::string> {
            asked = peer.shared_from_this();
            SIDESTEP_TRY(session, peer.session(bytes, Peers::in_time()));
            return peer.ask(Word::attach, to_body(AttachRequest{there(buffer), options}), Peers::in_time());
        }));
    SIDESTEP_TRY(Attached attached, parse_attached(answer));
    return std::make_shared<const Far>(std::move(asked), std::move(session), std::move(attached),
                                       buffer.size());
}

namespace {

// Requests that are one flight.
struct Together {
    Together(backend::Flight& one, std::size_t requests) : flight(one), left(requests) {}
    // True for the last of them; the first error is there then.
    bool over(const Result<void>& result) {
        if (!result) {
            std::lock_guard lock(mutex);
            if (!error) error = result.error();
        }
        return left.fetch_sub(1) == 1;
    }
    Result<void> result() const { return error ? Result<void>(*error) : Result<void>(); }

    backend::Flight& flight;
    std::atomic<std::size_t> left;
    std::mutex mutex;
    std::optional<Error> error;
};

// Both ends of a piece.
struct Ends {
    explicit Ends(const backend::Piece& piece)
        : from(static_cast<const RemoteEnd&>(*piece.from)), to(static_cast<const RemoteEnd&>(*piece.to)) {}

    // What the pieces of one request share: the session, the way, and memory of GPUs here or the region of a third machine.
    auto request() const {
        const Far* const passed_to = from.remote() && to.remote() ? &to.far() : nullptr;
        return std::tuple(asked().session.get(), from.remote(), passed_to, from.own().get(), to.own().get());
    }
    // The node that sends, or that this machine sends to.
    const Far& asked() const { return (from.remote() ? from : to).far(); }
    Part part_of(const backend::Piece& piece) const {
        const Bytes first = from.base() + piece.from_offset, target = to.base() + piece.to_offset;
        const std::uint8_t to_gpu = backend::told_gpu(to.buffer().place());
        if (!from.remote())
            return {.region = to.far().attached.region,
                    .offset = target,
                    .size = piece.size,
                    .memory = bytes(from) + piece.from_offset,
                    .to_gpu = to_gpu};
        Part part{
            .region = from.far().attached.region, .offset = first, .size = piece.size, .to_gpu = to_gpu};
        if (to.remote())
            part.target_offset = target;
        else
            part.memory = bytes(to) + piece.to_offset;
        return part;
    }

    const RemoteEnd& from;
    const RemoteEnd& to;

private:
    static unsigned char* bytes(const RemoteEnd& here) {
        return reinterpret_cast<unsigned char*>(here.address());
    }
};

}  // namespace

Result<backend::Progress> RemoteBackend::start(const backend::Piece& piece, backend::Flight& flight) {
    SIDESTEP_CHECK(backend::check_within(piece));
    const Ends ends(piece);
    SIDESTEP_CHECK(check_ends(ends.from, ends.to));
    const Far& asked = ends.asked();
    asked.peer->use_better_engine();
    const Part part = ends.part_of(piece);
    if (!ends.from.remote())
        return asked.session->push(part.memory, part.region, part.offset, part.size, flight, ends.from.own(),
                                   part.to_gpu);
    if (ends.to.remote()) {
        const auto bridge = ends.to.far().bridge_from(asked, peers_.workers(), failures_);
        ends.to.use(bridge);
        SIDESTEP_CHECK(bridge->pass({part}, [&flight](const Result<void>& result) { flight.end(result); }));
    } else {
        SIDESTEP_CHECK(asked.session->pull(part.region, part.offset, part.size, part.memory, flight,
                                           ends.to.own(), part.to_gpu));
    }
    return backend::Progress::pending;
}

Result<backend::Progress> RemoteBackend::start_batch(std::span<const backend::Piece> pieces,
                                                     backend::Flight& flight) {
    std::vector<std::pair<Ends, std::vector<Part>>> requests;
    std::map<decltype(std::declval<Ends>().request()), std::size_t> known;  // where in them
    std::size_t where = 0;
    const backend::Piece* before = nullptr;
    for (const backend::Piece& piece : pieces) {
        const Ends ends(piece);
        SIDESTEP_CHECK(backend::check_within(piece));
        // Neighbours nearly always have the same ends.
        if (before == nullptr || piece.from != before->from || piece.to != before->to) {
            SIDESTEP_CHECK(check_ends(ends.from, ends.to));
            const auto [found, is_new] = known.try_emplace(ends.request(), requests.size());
            if (is_new) requests.push_back({ends, {}});
            where = found->second;
            if (requests.size() == 1) requests.front().second.reserve(pieces.size());
        }
        before = &piece;
        requests[where].second.push_back(ends.part_of(piece));
    }
    // One more than requests, so that it is not over before this returns.
    const auto all = std::make_shared<Together>(flight, requests.size() + 1);
    const Session::Told told = [all](const Result<void>& result) {
        if (all->over(result)) all->flight.end(all->result());
    };
    for (auto& [ends, parts] : requests) {
        const Far& asked = ends.asked();
        asked.peer->use_better_engine();
        if (!ends.from.remote()) {
            asked.session->bring(std::move(parts), told, ends.from.own());
        } else if (!ends.to.remote()) {
            asked.session->fetch(std::move(parts), told, ends.to.own());
        } else {
            const auto bridge = ends.to.far().bridge_from(asked, peers_.workers(), failures_);
            ends.to.use(bridge);
            if (auto begun = bridge->pass(std::move(parts), told); !begun) told(begun);
        }
    }
    if (!all->over({})) return backend::Progress::pending;
    SIDESTEP_CHECK(all->result());
    return backend::Progress::done;
}

// The link's threads tell of ends; a look by whoever waits is quicker.
bool RemoteBackend::look() {
    peers_.look();
    return false;
}

// Errors of either node are told by attach().
backend::Support RemoteBackend::reaches(const Buffer& from, const Buffer& to) {
    // Those of a topology are priced, and need not live.
    if (topology_ != nullptr && topology_->find(from.place()) && topology_->find(to.place()))
        return backend::Support::yes({});
    const std::string& sender = from.place().node();
    const std::string& receiver = to.place().node();
    if (sender.empty()) return reaches_own(from.place(), receiver);
    if (receiver.empty()) return reaches_own(to.place(), sender);
    const auto first = peer(sender);
    const auto second = peer(receiver);
    if (!first || !second) return backend::Support::yes({});
    const auto now = std::chrono::steady_clock::now();
    const unsigned failures = failures_->load();
    {
        std::lock_guard lock(mutex_);
        if (const auto found = tried_.find({sender, receiver}); found != tried_.end()) {
            const Tried& before = found->second;
            const bool same = before.from.lock() == *first && before.to.lock() == *second;
            const bool good = before.answer.usable && before.failures == failures;
            if (same && (good || (!before.answer.usable && now - before.at < tried_again)))
                return before.answer;
        }
    }
    const auto way = Bridge::try_out(**first, **second);
    const auto answer =
        way ? backend::Support::yes(*way)
            : backend::Support::no(
                  fmt::format("{} does not reach {}: {}", sender, receiver, way.error().message),
                  fmt::format("serve both with one key, and name {} by an address that {} reaches too",
                              receiver, sender));
    std::lock_guard lock(mutex_);
    tried_[{sender, receiver}] = {*first, *second, answer, now, failures};
    return answer;
}

// What carries the node's session says whether it takes memory of GPUs; then it is tried.
backend::Support RemoteBackend::reaches_own(const Place& gpu, const std::string& node) {
    if (name_ == "tcp" || !own_) return backend::Support::yes({});
    const auto there = peer(node);
    const auto session =
        there ? (*there)->session(0, Peers::in_time()) : Result<std::shared_ptr<Session>>(there.error());
    if (!session) return backend::Support::yes({});
    const auto link = (*session)->link();
    if (link->direct_above() != backend::Link::never) return own_->reaches(gpu, link->engine());
    if (const auto why = why_never_direct(*link); !why.empty())
        return backend::Support::no(std::string(why), {});
    return backend::Support::no(
        fmt::format("{} is reached by {}, which takes memory of the host alone", node, link->engine()), {});
}

Result<Allocation> RemoteBackend::allocate(const Place& place, Bytes bytes, MemoryKind kind) {
    std::shared_ptr<Peer> there_is;
    SIDESTEP_TRY(const std::string answer, ask_node(place.node(), [&](Peer& peer) {
                     there_is = peer.shared_from_this();
                     return peer.ask(Word::allocate, to_body(AllocateRequest{place.on({}), bytes, kind}),
                                     Peers::in_time());
                 }));
    SIDESTEP_TRY(const Allocated allocated, parse_allocated(answer));
    const auto number = static_cast<std::uintptr_t>(allocated.address);
    const Place here = allocated.place.on(place.node());
    const Buffer all = Buffer::memory(here, reinterpret_cast<void*>(number), bytes);
    memory_->add(all, allocated.kind);
    auto free = [memory = memory_, there_is, all, number] {
        memory->forget(all);
        there_is->tell(Word::free, to_body(std::uint64_t{number}));
    };
    return Allocation(all, allocated.kind, std::move(free));
}

}  // namespace sidestep::wire
