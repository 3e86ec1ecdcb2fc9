// What was done, for statistics: counted always, on every thread beside the others.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
    batch_destroyed,
    entries_submitted,
    entries_collected
};
inline constexpr std::size_t event_kinds = 10;

inline constexpr std::size_t most_gpus = 16;
inline constexpr std::size_t size_classes = 32;  // by the powers of two of KiB: below 2, below 4, ...

// Sums since the process began. Nothing but words of 64 bits.
struct Totals {
    struct OfKind {
        std::uint64_t ok = 0, failed = 0, bytes = 0, nanoseconds = 0;
        std::uint64_t direct = 0;  // calls, by the way of most of their bytes
        StorageBytes storage;
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
        std::uint64_t ok = 0, failed = 0, nanoseconds = 0;
    };
    std::array<OfKind, call_kinds> kinds{};
    std::array<OfGpu, most_gpus> gpus{};
    std::array<std::array<std::uint64_t, size_classes>, 2> sizes{};  // of reads, of writes
    std::array<OfEvent, event_kinds> events{};

    const OfKind& of(CallKind kind) const { return kinds[static_cast<std::size_t>(kind)]; }
    const OfEvent& of(Event event) const { return events[static_cast<std::size_t>(event)]; }
    Totals& operator+=(const Totals& other);
    Totals& operator-=(const Totals& other);
};

// Nothing is counted in a child of fork(), which shares the memory.
void note(const Call& call) noexcept;
void note(Event event, bool ok, std::uint64_t count = 1, std::uint64_t nanoseconds = 0) noexcept;

// What other threads note meanwhile is in it or not.
Totals totals();

// The memory in which all is counted. `sidestep cufile stats` finds it as a descriptor of the process, of a file that nobody can
// make shorter, and reads it meanwhile.
struct CountsPage {
    static constexpr std::uint64_t right_magic =
        0x3130464353ull;  // "SCF01"; another one whenever Totals changes
    static constexpr const char* name = "sidestep-cufile";
    static constexpr std::size_t shards = 16;  // threads that count at the same time seldom meet in one
    using Word = std::atomic<std::uint64_t>;
    static_assert(Word::is_always_lock_free && sizeof(Totals) % sizeof(Word) == 0);
    struct alignas(64) Shard {
        std::array<Word, sizeof(Totals) / sizeof(Word)> words;
    };

    Word magic;    // written last
    Word process;  // by its number in its own namespace: a child has the descriptor too
    std::array<Shard, shards> counts;

    Totals sums() const {
        std::array<std::uint64_t, sizeof(Totals) / sizeof(Word)> sum{};
        for (const Shard& shard : counts)
            for (std::size_t i = 0; i < sum.size(); ++i)
                sum[i] += shard.words[i].load(std::memory_order_relaxed);
        Totals all;
        std::memcpy(static_cast<void*>(&all), sum.data(), sizeof all);
        return all;
    }
};

}  // namespace sidestep::cufile
