// Memory that was made ready for a backend, remembered.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "backend/backend.hpp"
#include "base/try.hpp"

namespace sidestep::transfer {

// Finds what was attached before by the same backend, for the same access, with the same address and size,
// in O(1). Safe to use from several threads; a Registration may be used by several copies at once.
class Registrations {
public:
    // Beyond this number the least recently used one goes. Users of a registration keep it alive.
    static constexpr std::size_t max_kept = 1024;

    // The options' identity is what the backend's describe() said of the buffer just now: memory that was
    // freed, and whose address was given out again, is attached anew. With 0 (the backend cannot tell), and
    // for files, every call attaches. Fails as Backend::attach does.
    Result<std::shared_ptr<backend::Registration>> get(backend::Backend& backend, const Buffer& buffer,
                                                       const backend::AttachOptions& options) {
        const std::uint64_t identity = options.identity;
        const Key key{reinterpret_cast<std::uintptr_t>(buffer.address()),
                      buffer.size(),
                      &backend,
                      options.access,
                      buffer.read_only(),
                      buffer.place()};
        const bool kept = identity != 0 && !buffer.place().is_file();
        if (kept) {
            std::lock_guard lock(mutex_);
            const auto found = by_key_.find(key);
            if (found != by_key_.end() && found->second->identity == identity) {
                order_.splice(order_.begin(), order_, found->second);
                return found->second->registration;
            }
        }
        SIDESTEP_TRY(auto attached, backend.attach(buffer, options));
        std::shared_ptr<backend::Registration> registration = std::move(attached);
        if (!kept) return registration;
        std::lock_guard lock(mutex_);
        order_.push_front({key, identity, registration});
        if (const auto [at, added] = by_key_.try_emplace(key, order_.begin()); !added)
            order_.erase(std::exchange(at->second, order_.begin()));
        if (order_.size() > max_kept) {
            by_key_.erase(order_.back().key);
            order_.pop_back();
        }
        return registration;
    }

    // Memory that is about to be freed: drops what lies in it.
    void forget(const Buffer& freed) {
        const auto begin = reinterpret_cast<std::uintptr_t>(freed.address());
        std::lock_guard lock(mutex_);
        std::erase_if(order_, [&](const Kept& kept) {
            const bool lies_in_it =
                kept.key.address - begin < freed.size() && kept.key.place.node() == freed.place().node();
            return lies_in_it && by_key_.erase(kept.key) > 0;
        });
    }
    // Before the backends go.
    void clear() {
        std::lock_guard lock(mutex_);
        by_key_.clear();
        order_.clear();
    }

private:
    struct Key {
        std::uintptr_t address;
        Bytes size;
        const backend::Backend* backend;
        backend::Access access;
        bool read_only;  // it was given as const
        Place place;
        bool operator==(const Key&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const {
            return (key.address ^ key.size << 20 ^ static_cast<std::size_t>(key.access)) * 0x9E3779B97F4A7C15;
        }
    };
    struct Kept {
        Key key;
        std::uint64_t identity = 0;
        std::shared_ptr<backend::Registration> registration;
    };
    using Order = std::list<Kept>;

    mutable std::mutex mutex_;
    Order order_;  // asked for last: first
    std::unordered_map<Key, Order::iterator, Hash> by_key_;
};

}  // namespace sidestep::transfer
