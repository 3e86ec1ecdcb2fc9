// The ranges of ordinary host memory that a Context keeps page-locked.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include <sidestep/pinned.hpp>
#include "backend/registry.hpp"
#include "base/owner_process.hpp"

namespace sidestep::transfer {
struct BatchCopy;
}

namespace sidestep::context {

// Locking costs far more than copying, so a range that is locked is found in O(log n) and shared. What stays
// locked after its last holder:
//
//   memory of Context::allocate   until it is freed, or until the bound is reached (least recently used first)
//   any other memory              nothing: whoever unmaps it tells nobody, and a lock on pages that are no
//                                 longer behind an address would send copies to the wrong bytes
//
// Safe to use from several threads. Locks may outlive the backends, so Pins may too.
class Pins : public std::enable_shared_from_this<Pins> {
public:
    explicit Pins(Bytes max_idle) : max_idle_(max_idle) {}

    // See Context::pin. May block, and so may the end of the last holder of a range.
    Result<Pinned> pin(const backend::Registry& registry, const Buffer& buffer);

    // Memory of Context::allocate: when it is there, and before it is freed.
    void allocated(const Buffer& memory);
    void freeing(const Buffer& memory);
    // What these copies find locked of such memory stays so until the answer is gone, whatever the bound. Null: nothing does.
    std::shared_ptr<void> use(std::span<const transfer::BatchCopy> copies);
    // Makes the call, which moves all of such memory to other pages the first time. Locks that nobody needs go before,
    // and none comes meanwhile; unsupported, and no call, where a part is held, used, or locked by others.
    Result<backend::Exported> share(const backend::Registry& registry, const Buffer& memory,
                                    const std::function<Result<backend::Exported>()>& call);

    // Bytes that are locked, and the part of them that has no holder.
    Bytes locked() const;
    Bytes idle() const;

private:
    const base::OwnerProcess owner_;

    struct Range {
        std::uintptr_t end = 0;
        std::shared_ptr<void> lock;
        std::uint64_t number = 0;  // tells it from a later range at the same address
        int holders = 0;
        int users = 0;                                            // copies
        bool may_stay = false;                                    // lies in memory of Context::allocate
        std::optional<std::list<std::uintptr_t>::iterator> idle;  // in idle_, while nobody holds it
        bool is_needed() const { return holders > 0 || users > 0; }
    };
    using Ranges = std::map<std::uintptr_t, Range>;  // by first address; they do not overlap
    struct Own {
        std::uintptr_t end = 0;
        bool moved = false;  // by share()
    };
    struct Span {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
    };

    Result<Pinned> lock_pages(const backend::Registry& registry, const Buffer& buffer, Span span);
    void let_go(std::uintptr_t begin, std::uint64_t number) noexcept;
    void used(std::uintptr_t begin, std::uint64_t number) noexcept;

    // With the mutex held.
    Ranges::iterator first_touching(Span span);
    Pinned hold(Ranges::iterator range, const Buffer& buffer);
    void no_longer_idle(Ranges::iterator range);
    std::shared_ptr<void> remove(Ranges::iterator range);
    std::map<std::uintptr_t, Own>::iterator own_with(Span span);

    const Bytes max_idle_;
    std::mutex changing_;                   // held while the driver locks or unlocks; taken before mutex_
    std::atomic<std::size_t> may_stay_{0};  // ranges: a copy that meets none is not delayed
    mutable std::mutex mutex_;              // guards what follows
    Ranges ranges_;
    std::map<std::uintptr_t, Own> own_;  // memory of Context::allocate, by its first address
    std::list<std::uintptr_t> idle_;     // ranges that nobody holds, let go last: last
    Bytes idle_bytes_ = 0;
    std::uint64_t last_number_ = 0;
};

}  // namespace sidestep::context
