// Memory that a plugin may be given: what was prepared, and buffers for all else.
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
#include "backend/device_memory.hpp"
#include "backends/ncclnet/pump.hpp"

namespace sidestep::backends::ncclnet {

// A part of memory. Each connection registers it for itself, when it first has something to do with it.
struct Range {
    // A buffer of this engine's is a bounce; no processor reads or writes memory of a device.
    enum class Kind { prepared, bounce, device };
    Range(std::shared_ptr<Pump> by, void* from, Bytes bytes, Kind what, backend::DmaBuf exported = {},
          std::vector<int> far = {});
    // Nothing of it is registered any more afterwards, unless the plugin hangs.
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
    bool holds(const void* at, Bytes bytes) const {
        const auto offset = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(address);
        return bytes <= size && offset <= size - bytes;
    }

    const std::shared_ptr<Pump> pump;
    void* const address;
    const Bytes size;
    const Kind kind;
    const backend::DmaBuf dma_buf;     // of a device; without a descriptor it is registered by its address
    const std::vector<int> distances;  // how far each device of the plugin is from it; none: all are as near
    const std::uint64_t id;            // never given twice, as an address may be
    const std::shared_ptr<std::atomic<int>> registrations = std::make_shared<std::atomic<int>>(0);
    mutable std::atomic<bool> refused{false};  // the plugin does not take it
};

// The prepared memory of an engine. Any thread. Lives in a shared_ptr.
class PreparedMemory : public std::enable_shared_from_this<PreparedMemory> {
public:
    PreparedMemory(std::shared_ptr<Pump> pump, Bytes most) : pump_(std::move(pump)), most_(most) {}

    // Found as long as the answer lives; registered no longer than that, but for what is in flight.
    Result<std::shared_ptr<const void>> add(void* address, Bytes size);
    // The same for memory of a device, which is no memory of the machine and does not count.
    std::shared_ptr<const void> add(std::shared_ptr<const Range> device);
    // Null where no part that was prepared holds all of it, or the plugin does not take that part.
    std::shared_ptr<const Range> find(const void* address, Bytes size) const;

private:
    Result<void> reserve(Bytes size);
    void drop(const std::shared_ptr<const Range>& range);

    const std::shared_ptr<Pump> pump_;
    const Bytes most_;
    std::atomic<Bytes> pinned_{0};
    mutable std::mutex mutex_;                                         // guards what follows
    std::multimap<std::uintptr_t, std::shared_ptr<const Range>> all_;  // by where they begin
    std::map<Bytes, std::size_t>
        sizes_;  // how many there are of each; find() looks back as far as the largest reaches
};

// A buffer of backend::max_push bytes.
struct Bounce {
    using Data = std::unique_ptr<unsigned char, void (*)(void*)>;
    Bounce(const std::shared_ptr<Pump>& pump, Data from);
    static Result<std::unique_ptr<Bounce>> make(const std::shared_ptr<Pump>& pump);
    const Data data;
    const std::shared_ptr<const Range> range;  // goes first
};
using Bounces = backend::Bounces<Bounce>;

}  // namespace sidestep::backends::ncclnet
