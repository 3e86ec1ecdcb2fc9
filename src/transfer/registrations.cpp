#include "transfer/registrations.hpp"

#include "base/try.hpp"

namespace sidestep::transfer {

Result<std::shared_ptr<backend::Registration>> Registrations::get(backend::Backend& backend,
                                                                  const Buffer& buffer,
                                                                  const backend::AttachOptions& options) {
    const std::uint64_t identity = options.identity;
    if (identity == 0 || buffer.place().is_file()) {
        SIDESTEP_TRY(auto attached, backend.attach(buffer, options));
        return std::shared_ptr<backend::Registration>(std::move(attached));
    }
    const Key key{reinterpret_cast<std::uintptr_t>(buffer.address()),
                  buffer.size(),
                  &backend,
                  options.access,
                  buffer.read_only(),
                  buffer.place()};
    {
        std::lock_guard lock(mutex_);
        const auto found = by_key_.find(key);
        if (found != by_key_.end() && found->second->identity == identity) {
            order_.splice(order_.begin(), order_, found->second);
            return found->second->registration;
        }
    }
    SIDESTEP_TRY(auto attached, backend.attach(buffer, options));
    std::shared_ptr<backend::Registration> registration = std::move(attached);
    std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
        order_.erase(found->second);
        by_key_.erase(found);
    }
    order_.push_front({key, identity, registration});
    by_key_[key] = order_.begin();
    if (order_.size() > max_kept) {
        by_key_.erase(order_.back().key);
        order_.pop_back();
    }
    return registration;
}

void Registrations::forget(const Buffer& freed) {
    const auto begin = reinterpret_cast<std::uintptr_t>(freed.address());
    std::lock_guard lock(mutex_);
    // Keys are ordered by address first; no key is less than this one at its address.
    auto next = by_key_.lower_bound(Key{begin, 0, nullptr, backend::Access::read, false, {}});
    while (next != by_key_.end() && std::get<0>(next->first) - begin < freed.size()) {
        if (std::get<Place>(next->first).node() != freed.place().node()) {
            ++next;
            continue;
        }
        order_.erase(next->second);
        next = by_key_.erase(next);
    }
}

void Registrations::clear() {
    std::lock_guard lock(mutex_);
    by_key_.clear();
    order_.clear();
}

std::size_t Registrations::size() const {
    std::lock_guard lock(mutex_);
    return order_.size();
}

}  // namespace sidestep::transfer
