// What was done, for statistics: counted always, on every thread beside the others.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <sidestep/receipt.hpp>
#include <sidestep/units.hpp>

namespace sidestep::cufile {

enum class CallKind { read, write, readv, writev, batch_read, batch_write, stream_read, stream_write };
inline constexpr std::size_t call_kinds = 8;
constexpr bool writes(CallKind kind) {
    return static_cast<int>(kind) % 2 == 1;
}

// One call, or one entry of a batch, that has ended.
struct Call {
    CallKind kind = CallKind::read;
    bool ok = true;
    int gpu = -1;  // whose memory it was; -1: the host's
    Bytes bytes = 0;
    bool unaligned = false;  // offset, size or address are no multiples of 4 KiB
    StorageBytes storage;    // by the way they took
    std::uint64_t nanoseconds = 0;
};

// Of calls that move no bytes: how many succeeded and failed.
enum class Event {
    file_added,
    file_removed,
    memory_added,
    memory_removed,
    batch_made,
    batch_submitted,
    batch_cancelled,
    batch_destroyed
};
inline constexpr std::size_t event_kinds = 8;

inline constexpr std::size_t most_gpus = 16;
inline constexpr std::size_t size_classes = 32;  // by the powers of two of KiB: below 2, below 4, ...

// Sums since the last reset.
struct Totals {
    struct OfKind {
        std::uint64_t ok = 0, failed = 0, bytes = 0, nanoseconds = 0;
    };
    struct OfGpu {
        struct Direction {
            std::uint64_t calls = 0, failed = 0, bytes = 0, nanoseconds = 0;
            std::uint64_t direct = 0, posix = 0;  // calls by the way of most of their bytes
            std::uint64_t unaligned = 0;
        };
        Direction read, write;
    };
    struct OfEvent {
        std::uint64_t ok = 0, failed = 0;
    };
    std::array<OfKind, call_kinds> kinds{};
    std::array<OfGpu, most_gpus> gpus{};
    std::array<std::array<std::uint64_t, size_classes>, 2> sizes{};  // of reads, of writes
    std::array<OfEvent, event_kinds> events{};
    StorageBytes read_storage, write_storage;
};

void note(const Call& call) noexcept;
void note(Event event, bool ok) noexcept;

// What other threads note meanwhile is in it or not.
Totals totals();
// What comes later counts from nothing. A call that ends at the same moment may be lost.
void reset_totals();

}  // namespace sidestep::cufile
