// What a client holds on nodes: regions, and memory that it allocated there.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "backend/backend.hpp"
#include "base/workers.hpp"
#include "wire/bridge.hpp"
#include "wire/messages.hpp"
#include "wire/peer.hpp"

namespace sidestep::wire {

// A region of a node. Given back by the last who uses it.
struct Far {
    Far(std::shared_ptr<Peer> node, std::shared_ptr<Session> over, Attached region, Bytes bytes)
        : peer(std::move(node)), session(std::move(over)), attached(std::move(region)), size(bytes) {}
    ~Far() { peer->tell(Word::detach, to_body(attached.region)); }

    // How another node reaches it.
    std::shared_ptr<Bridge> bridge_from(const Far& from, base::Workers& workers,
                                        const std::shared_ptr<std::atomic<unsigned>>& failures) const;

    const std::shared_ptr<Peer> peer;
    const std::shared_ptr<Session> session;
    const Attached attached;
    const Bytes size;          // Buffer::whole: nobody knows
    mutable std::mutex mutex;  // guards what follows
    mutable std::map<const Session*, std::shared_ptr<Bridge>> bridges;
};

// What was allocated on nodes, by machine and address, so that nobody need be asked what it is. Outlives the backend where
// the memory does.
class RemoteMemory {
public:
    void add(const Buffer& all, MemoryKind kind) {
        std::lock_guard lock(mutex_);
        backend::Description what{all.place(), kind, all.size()};
        what.identity = next_++;
        known_[{all.place().node(), address_of(all)}] = {all, std::move(what), {}};
    }
    void forget(const Buffer& all) {
        Entry last;  // tells the node: not with the mutex held
        std::lock_guard lock(mutex_);
        const auto found = known_.find({all.place().node(), address_of(all)});
        if (found == known_.end()) return;
        last = std::move(found->second);
        known_.erase(found);
    }
    std::optional<backend::Description> find(const Buffer& buffer) {
        std::lock_guard lock(mutex_);
        const Entry* const entry = around(buffer);
        if (entry == nullptr) return std::nullopt;
        backend::Description part = entry->what;
        part.size = buffer.size();
        return part;
    }
    // The whole allocation that the buffer is a part of.
    std::optional<Buffer> whole(const Buffer& buffer) {
        std::lock_guard lock(mutex_);
        const Entry* const entry = around(buffer);
        return entry != nullptr ? std::optional(entry->all) : std::nullopt;
    }
    // It is reached by that region, for an access, until it is freed; null: not yet, or the node is gone.
    std::shared_ptr<const Far> far(const Buffer& buffer, backend::Access access) {
        std::lock_guard lock(mutex_);
        Entry* const entry = around(buffer);
        if (entry == nullptr) return nullptr;
        const auto& far = entry->far[access == backend::Access::write];
        return far && !far->session->end() ? far : nullptr;
    }
    void keep(const Buffer& buffer, backend::Access access, std::shared_ptr<const Far> far) {
        std::lock_guard lock(mutex_);
        if (Entry* const entry = around(buffer)) std::swap(entry->far[access == backend::Access::write], far);
    }

private:
    struct Entry {
        Buffer all;
        backend::Description what;
        std::array<std::shared_ptr<const Far>, 2> far;  // for reading, and for writing
    };
    static std::uintptr_t address_of(const Buffer& buffer) {
        return reinterpret_cast<std::uintptr_t>(buffer.address());
    }
    // With the mutex held.
    Entry* around(const Buffer& buffer) {
        auto after = known_.upper_bound({buffer.place().node(), address_of(buffer)});
        if (after == known_.begin()) return nullptr;
        auto& [key, entry] = *--after;
        const Bytes offset = address_of(buffer) - key.second;
        const bool within = offset <= entry.all.size() && buffer.size() <= entry.all.size() - offset;
        return key.first == buffer.place().node() && within && entry.what.place == buffer.place() ? &entry
                                                                                                  : nullptr;
    }

    std::mutex mutex_;
    std::map<std::pair<std::string, std::uintptr_t>, Entry> known_;
    std::uint64_t next_ = 1;
};

}  // namespace sidestep::wire
