// Memory that the card may read and write: what was prepared, and buffers for all else.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "backend/bounces.hpp"
#include "driver/verbs.hpp"

namespace sidestep::backends::verbs {

// What a card may do with memory. Relaxed ordering lets writes overtake each other on the way through PCIe; that all
// are there is told by a completion, never by the bytes themselves.
unsigned access_flags();

// A part of memory with its keys.
struct Prepared {
    Prepared(std::uint64_t begins, Bytes bytes, int how_far, driver::VerbsRegion made)
        : begin(begins), size(bytes), distance(how_far), region(std::move(made)) {}
    bool holds(std::uint64_t address, Bytes bytes) const {
        return address >= begin && bytes <= size && address - begin <= size - bytes;
    }
    const std::uint64_t begin;  // what the card calls its first byte: its address, for host memory
    const Bytes size;
    const int distance;  // of the card from it, as Nearness has it; 0 for memory whose place nobody told
    const driver::VerbsRegion region;
};

// The prepared memory of a card. Any thread. Lives in a shared_ptr.
class PreparedMemory : public std::enable_shared_from_this<PreparedMemory> {
public:
    PreparedMemory(driver::SharedVerbsContext context, Bytes most)
        : context_(std::move(context)), most_(most) {}

    // Kept as long as the answer lives, and as long as something is on its way from or to there.
    Result<std::shared_ptr<const void>> add(void* address, Bytes size, int distance = 0);
    // The same for memory of a device, which is no memory of the machine: by a dma-buf, whose byte `offset` is called `iova`
    // from then on; by its address, which another driver of the kernel has to know (nvidia-peermem).
    Result<std::shared_ptr<const void>> add_dma_buf(int fd, std::uint64_t offset, Bytes size,
                                                    std::uint64_t iova, int distance);
    Result<std::shared_ptr<const void>> add_device(void* address, Bytes size, int distance);
    // Null where no part that was prepared holds all of it.
    std::shared_ptr<const Prepared> find(const void* address, Bytes size) const;

private:
    // Room for so many more bytes, which is given back when it goes.
    Result<std::shared_ptr<void>> reserve(Bytes size);
    std::shared_ptr<const void> keep(std::shared_ptr<const Prepared> part, std::shared_ptr<void> room);

    const driver::SharedVerbsContext context_;
    const Bytes most_;
    std::atomic<Bytes> pinned_{0};
    mutable std::mutex mutex_;                                           // guards what follows
    std::multimap<std::uint64_t, std::shared_ptr<const Prepared>> all_;  // by their first byte
    std::multimap<Bytes, std::uint64_t> sizes_;                          // how far back find() has to look
};

// A buffer of backend::max_push bytes.
struct Bounce {
    using Memory = std::unique_ptr<unsigned char, void (*)(void*)>;
    Bounce(Memory from, driver::VerbsRegion made) : memory(std::move(from)), region(std::move(made)) {}
    static Result<std::unique_ptr<Bounce>> make(const driver::SharedVerbsContext& context);
    unsigned char* data() const { return memory.get(); }
    const Memory memory;
    const driver::VerbsRegion region;  // goes first
};
using Bounces = backend::Bounces<Bounce>;

}  // namespace sidestep::backends::verbs
