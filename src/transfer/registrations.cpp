#include "transfer/registrations.hpp"

#include <utility>

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
    order_.push_front({key, identity, registration});
    if (const auto [at, added] = by_key_.try_emplace(key, order_.begin()); !added)
        order_.erase(std::exchange(at->second, order_.begin()));
    if (order_.size() > max_kept) {
        by_key_.erase(order_.back().key);
        order_.pop_back();
    }
    return registration;
}

void Registrations::forget(const Buffer& freed) {
    const auto begin = reinterpret_cast<std::uintptr_t>(freed.address());
    std::lock_guard lock(mutex_);
    std::erase_if(order_, [&](const Kept& kept) {
        const bool lies_in_it =
            kept.key.address - begin < freed.size() && kept.key.place.node() == freed.place().node();
        return lies_in_it && by_key_.erase(kept.key) > 0;
    });
}

}  // namespace sidestep::transfer
