#include "transfer/ends.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/object_store.hpp"
#include "base/try.hpp"
#include "topology/numbers.hpp"
#include "transfer/shared_memory.hpp"

namespace sidestep::transfer {
namespace {

using backend::Description;

Error wrong(std::string message, std::string where, std::string hint = {}) {
    return Error{ErrorCode::invalid_argument, std::move(message), std::move(where), std::move(hint)};
}

// Why a machine that is looked at shows no GPU, and which one has some.
std::string without_gpus(const Topology& topology) {
    std::string hint;
    for (const std::string& note : topology.notes())
        if (note.find("NVIDIA driver") != std::string::npos) hint = note;
    if (hint.empty()) hint = "`sidestep doctor` says why";
    return fmt::format("this machine has no GPUs ({}); --machine dgx-h100 emulates eight", hint);
}

Error no_such_device(const Topology& topology, const char* what, const char* form, const Place& place,
                     DeviceKind kind) {
    const std::vector<int> all = topology::numbers_of(topology, kind);
    std::string hint = fmt::format("this machine has no {}s", what);
    if (place.is_gpu() && all.empty() && !topology.emulated()) hint = without_gpus(topology);
    if (all.size() == 1) hint = fmt::format("this machine has one {}, {}:{}", what, form, all[0]);
    if (all.size() > 1)
        hint = fmt::format("this machine has {} {}s, {}:{}", all.size(), what, form,
                           fmt::join(all, fmt::format(", {}:", form)));
    if (all.size() > 2 && all.back() - all.front() + 1 == static_cast<int>(all.size()))
        hint = fmt::format("this machine has {} {}s, {}:{} to {}:{}", all.size(), what, form, all.front(),
                           form, all.back());
    return Error{ErrorCode::not_found, fmt::format("{} does not exist", place.to_string()), "topology",
                 std::move(hint)};
}

// A GPU with coherent memory shows it as a NUMA node. That node is no separate place.
Error no_such_node(const Topology& topology, const Place& place) {
    for (const Device& device : topology.devices()) {
        const auto node = device.properties.find("memory_node");
        if (node == device.properties.end() || node->second != std::to_string(place.index())) continue;
        return Error{
            ErrorCode::not_found,
            fmt::format("NUMA node {} is the memory of {}, not of the host", place.index(), device.name),
            place.to_string(), "use " + device.name};
    }
    return no_such_device(topology, "NUMA node", "host", place, DeviceKind::cpu);
}

// Host memory is described only where its kind matters: a copy with a GPU at the other end, since asking costs as
// much as a small copy.
Result<Description> describe_end(const backend::Registry& registry, const Buffer& buffer, bool other_is_gpu) {
    if (buffer.place().is_host() && buffer.place().node().empty() && !other_is_gpu)
        return Description{Place::host(), MemoryKind::pageable, buffer.size(), 0};
    return describe(registry, buffer);
}

Result<void> check_overlap(const Ends& ends, const Description& from, const Description& to) {
    bool overlaps = false;
    // The two ends of one node are that node's matter.
    if (touches_node(ends)) return {};
    if (ends.from.place().is_file() && ends.to.place().is_file()) {
        const bool same = from.identity != 0 && from.identity == to.identity;
        overlaps = same && (ends.to.whole_file() ||
                            overlap(ends.from.offset(), ends.bytes, ends.to.offset(), ends.bytes));
    } else if (!ends.from.place().is_file() && !ends.to.place().is_file()) {
        overlaps = overlap(ends.from, ends.to, ends.bytes);
    }
    if (!overlaps) return {};
    return wrong("source and target overlap",
                 fmt::format("{} and {}", ends.from.to_string(), ends.to.to_string()),
                 "copy to a place of its own");
}

// What may have been named as a whole gets the size that it turned out to have.
void set_size(Buffer& buffer, Bytes bytes) {
    const Place& place = buffer.place();
    if (place.is_file())
        buffer = Buffer::file(place.path(), buffer.offset(), bytes).on(place.node());
    else if (place.is_shared())
        buffer = Buffer::shared(place.path(), buffer.offset(), bytes).on(place.node());
}

// Makes of published memory memory of this process, which the lease keeps mapped. Any other buffer stays as it is.
Result<void> import_shared(const Topology& topology, SharedMemory* shared, std::chrono::milliseconds limit,
                           Buffer& buffer, std::shared_ptr<const void>& lease) {
    SIDESTEP_CHECK(check_place(topology, buffer.place()));
    if (!buffer.place().is_shared() || !buffer.place().node().empty()) return {};
    if (shared == nullptr)
        return Error{ErrorCode::unsupported, "published memory cannot be reached from here",
                     buffer.to_string()};
    SIDESTEP_TRY(Import mapped, shared->import(buffer, limit));
    buffer = std::move(mapped.buffer);
    lease = std::move(mapped.lease);
    return check_place(topology, buffer.place());
}

}  // namespace

std::string why_out_of_reach(const backend::Registry& registry, const Place& place) {
    for (const backend::Offer& offer : registry.offers()) {
        const bool would =
            std::ranges::any_of(offer.capabilities, [&](const backend::Capability& capability) {
                return capability.from == place.kind() || capability.to == place.kind();
            });
        if (would && !offer.support.usable) return fmt::format("{}: {}", offer.name, offer.support.reason);
    }
    return {};
}

Result<Description> describe(const backend::Registry& registry, const Buffer& buffer) {
    SIDESTEP_TRY(const auto found, registry.describe(buffer));
    if (found) return *found;
    if (!buffer.place().node().empty())
        return Error{ErrorCode::unsupported, "no backend here reaches other machines",
                     buffer.place().to_string()};
    if (buffer.place().is_host()) return Description{buffer.place(), MemoryKind::pageable, buffer.size(), 0};
    if (buffer.place().is_file())
        return Error{ErrorCode::unsupported, "no backend reads files here", buffer.place().to_string()};
    return Error{ErrorCode::path_unavailable,
                 fmt::format("no backend reaches the memory of {}", buffer.place().to_string()), "describe",
                 why_out_of_reach(registry, buffer.place())};
}

Result<void> check_place(const Topology& topology, const Place& place) {
    if (place.node().empty()) return check_here(topology, place);
    if (place.is_p2pmem())
        return Error{ErrorCode::unsupported, "peer-to-peer memory is reached on its own machine alone",
                     place.to_string()};
    return {};
}

Result<void> check_here(const Topology& topology, const Place& place) {
    if (!place.node().empty())
        return Error{ErrorCode::unsupported, "this is done with places of this machine alone",
                     place.to_string()};
    if (place.is_gpu() && !topology.find(place))
        return no_such_device(topology, "GPU", "gpu", place, DeviceKind::gpu);
    if (place.is_p2pmem() && topology.emulated())
        return Error{ErrorCode::not_found, fmt::format("{} does not exist", place.to_string()), "topology",
                     "an emulated machine has no peer-to-peer memory"};
    if (place.is_host() && place.index() >= 0 && !topology.find(place)) return no_such_node(topology, place);
    return {};
}

Result<void> check_buffer(const Buffer& buffer, bool target) {
    if (target && buffer.read_only())
        return wrong("the target is read-only", buffer.to_string(), "give it as non-const memory");
    if (buffer.place().is_file()) {
        if (buffer.size() == Buffer::whole && buffer.offset() != 0)
            return wrong("a file range needs a size", buffer.to_string(), "give offset and size, or neither");
        if (buffer.size() != Buffer::whole && buffer.offset() > Buffer::whole - buffer.size())
            return wrong("the range ends past the largest file offset", buffer.to_string());
        return {};
    }
    if (buffer.place().is_shared()) return {};  // of a node, which knows its size
    if (buffer.size() == Buffer::whole) return wrong("memory needs a size", buffer.to_string());
    if (buffer.address() == nullptr && buffer.size() > 0)
        return wrong("the address is null", buffer.to_string());
    return {};
}

Result<Ends> resolve_ends(const Topology& topology, const backend::Registry& registry,
                          const Buffer& given_from, const Buffer& given_to, SharedMemory* shared,
                          std::chrono::milliseconds limit) {
    Result<Ends> found{Ends{given_from, given_to}};
    Ends& ends = *found;
    Buffer& from = ends.from;
    Buffer& to = ends.to;
    SIDESTEP_CHECK(import_shared(topology, shared, limit, from, ends.from_lease));
    SIDESTEP_CHECK(import_shared(topology, shared, limit, to, ends.to_lease));
    SIDESTEP_CHECK(check_buffer(from, false));
    SIDESTEP_CHECK(check_buffer(to, true));
    if (base::is_object(to.place()))
        return Error{ErrorCode::unsupported, "objects of a store are read, not written", to.to_string(),
                     "copy to a file here, and send it with the store's own tools"};
    SIDESTEP_TRY(const Description source, describe_end(registry, from, to.place().is_gpu()));
    SIDESTEP_TRY(const Description target, describe_end(registry, to, from.place().is_gpu()));

    if (from.whole_file() && source.identity == 0 && source.size == 0)
        return Error{ErrorCode::not_found, fmt::format("there is no file {}", from.place().path()),
                     from.to_string(), "check the path"};

    ends.bytes = from.size() == Buffer::whole ? source.size : from.size();
    const Bytes room = to.place().is_shared() && to.size() == Buffer::whole ? target.size : to.size();
    if (room != Buffer::whole && room != ends.bytes)
        return wrong(fmt::format("the source has {} bytes and the target {}", ends.bytes, room),
                     fmt::format("{} and {}", from.to_string(), to.to_string()),
                     "sizes must agree; name a range of the larger one");
    ends.from_version = from.whole_file() ? source.version : 0;  // its size may be that of another version
    set_size(from, ends.bytes);
    if (to.place().is_shared()) set_size(to, ends.bytes);
    ends.from_memory = source.memory;
    ends.to_memory = target.memory;
    ends.from_identity = source.identity;
    ends.to_identity = target.identity;
    SIDESTEP_CHECK(check_overlap(ends, source, target));
    return found;
}

}  // namespace sidestep::transfer
