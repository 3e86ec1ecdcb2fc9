// Memory that programs registered, and what lies behind any pointer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>

#include <sidestep/buffer.hpp>
#include <sidestep/context.hpp>
#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {

// Safe to use from several threads.
class Buffers {
public:
    static Buffers& get();

    Refusal add(const Context& context, const void* base, Bytes size, int flags);
    Refusal remove(const void* base);
    void clear();

    // The `size` bytes that lie `offset` bytes behind `base`, which may be registered or not, of a GPU or of the host. Refused
    // where they reach past what was registered, or past their allocation.
    Refusal find(const Context& context, const void* base, Bytes offset, Bytes size, Buffer& found) const;

    // Of GPUs, in bytes.
    Bytes registered() const;

private:
    mutable std::shared_mutex mutex_;
    std::map<std::uintptr_t, Buffer> registered_;  // by base
    Bytes on_gpus_ = 0;
};

}  // namespace sidestep::cufile
