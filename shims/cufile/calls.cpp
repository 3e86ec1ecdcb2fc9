#include "shims/cufile/calls.hpp"

#include <algorithm>
#include <atomic>
#include <bit>

namespace sidestep::cufile {
namespace {

using Word = std::atomic<std::uint64_t>;
// Totals is nothing but words: each shard is one, in words that threads add to.
constexpr std::size_t words = sizeof(Totals) / sizeof(std::uint64_t);
static_assert(sizeof(Totals) % sizeof(std::uint64_t) == 0);

constexpr std::size_t shard_count = 16;
struct alignas(64) Shard {
    std::array<Word, words> values{};
};

std::array<Shard, shard_count>& shards() {
    static auto& all = *new std::array<Shard, shard_count>;
    return all;
}

Shard& mine() {
    static std::atomic<std::size_t> threads{0};
    thread_local const std::size_t number = threads.fetch_add(1, std::memory_order_relaxed) % shard_count;
    return shards()[number];
}

// Adds to the word of a shard at which `member` lies in Totals.
class Adder {
public:
    explicit Adder(Shard& shard) : shard_(shard) {}
    void operator()(const std::uint64_t& member, std::uint64_t value) {
        if (value == 0) return;
        const auto at = static_cast<std::size_t>(&member - reinterpret_cast<const std::uint64_t*>(&layout()));
        shard_.values[at].fetch_add(value, std::memory_order_relaxed);
    }
    static const Totals& layout() {
        static const Totals zero;
        return zero;
    }

private:
    Shard& shard_;
};

void add_storage(Adder& add, const StorageBytes& at, const StorageBytes& bytes) {
    add(at.gpu_direct, bytes.gpu_direct);
    add(at.o_direct, bytes.o_direct);
    add(at.page_cache, bytes.page_cache);
}

std::size_t class_of(Bytes bytes) {
    const auto width = static_cast<int>(std::bit_width(bytes >> 10));
    return std::min(static_cast<std::size_t>(std::max(width - 1, 0)), size_classes - 1);
}

}  // namespace

void note(const Call& call) noexcept {
    Adder add(mine());
    const Totals& at = Adder::layout();
    const bool write = writes(call.kind);
    const Totals::OfKind& kind = at.kinds[static_cast<std::size_t>(call.kind)];
    add(call.ok ? kind.ok : kind.failed, 1);
    add(kind.bytes, call.bytes);
    add(kind.nanoseconds, call.nanoseconds);
    add_storage(add, write ? at.write_storage : at.read_storage, call.storage);
    if (call.ok) add(at.sizes[write ? 1 : 0][class_of(call.bytes)], 1);
    if (call.gpu < 0 || call.gpu >= static_cast<int>(most_gpus)) return;
    const Totals::OfGpu& gpu = at.gpus[static_cast<std::size_t>(call.gpu)];
    const Totals::OfGpu::Direction& way = write ? gpu.write : gpu.read;
    add(way.calls, 1);
    add(way.failed, call.ok ? 0 : 1);
    add(way.bytes, call.bytes);
    add(way.nanoseconds, call.nanoseconds);
    add(way.unaligned, call.unaligned ? 1 : 0);
    if (!call.ok) return;
    const bool direct = call.storage.gpu_direct > call.storage.o_direct + call.storage.page_cache;
    add(direct ? way.direct : way.posix, 1);
}

void note(Event event, bool ok) noexcept {
    Adder add(mine());
    const Totals::OfEvent& at = Adder::layout().events[static_cast<std::size_t>(event)];
    add(ok ? at.ok : at.failed, 1);
}

Totals totals() {
    Totals sum;
    auto* into = reinterpret_cast<std::uint64_t*>(&sum);
    for (const Shard& shard : shards())
        for (std::size_t i = 0; i < words; ++i) into[i] += shard.values[i].load(std::memory_order_relaxed);
    return sum;
}

void reset_totals() {
    for (Shard& shard : shards())
        for (Word& word : shard.values) word.store(0, std::memory_order_relaxed);
}

}  // namespace sidestep::cufile
