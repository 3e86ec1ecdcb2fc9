#include "shims/cufile/calls.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <new>

#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {
namespace {

using Shard = CountsPage::Shard;

// Shared pages, or null where there are none: a limit, or a sandbox.
CountsPage* shared_page() {
    const int memory = ::memfd_create(CountsPage::name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0) return nullptr;
    void* address = MAP_FAILED;
    if (::ftruncate(memory, sizeof(CountsPage)) == 0 &&
        ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        address = ::mmap(nullptr, sizeof(CountsPage), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (address != MAP_FAILED) return new (address) CountsPage;
    ::close(memory);
    return nullptr;
}

CountsPage* make_page() {
    CountsPage* page = shared_page();
    if (page == nullptr) {
        warn("no memory can be shared: sidestep cufile stats will not find this process");
        page = new CountsPage;
    }
    page->process.store(static_cast<std::uint64_t>(::getpid()), std::memory_order_relaxed);
    page->magic.store(CountsPage::right_magic, std::memory_order_release);
    return page;
}

// Never destroyed, and its descriptor never closed: both end with the process.
CountsPage& page() {
    static CountsPage& one = *make_page();
    return one;
}

Shard& mine() {
    static std::atomic<std::size_t> threads{0};
    thread_local const std::size_t number =
        threads.fetch_add(1, std::memory_order_relaxed) % CountsPage::shards;
    return page().counts[number];
}

// Adds to the word of a shard at which `member` lies in Totals.
class Adder {
public:
    explicit Adder(Shard& shard) : shard_(shard) {}
    void operator()(const std::uint64_t& member, std::uint64_t value) {
        if (value == 0) return;
        const auto at = static_cast<std::size_t>(&member - reinterpret_cast<const std::uint64_t*>(&layout()));
        shard_.words[at].fetch_add(value, std::memory_order_relaxed);
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
    add(at.misses, bytes.misses);
}

std::size_t class_of(Bytes bytes) {
    const auto width = static_cast<int>(std::bit_width(bytes >> 10));
    return std::min(static_cast<std::size_t>(std::max(width - 1, 0)), size_classes - 1);
}

}  // namespace

void note(const Call& call) noexcept {
    if (in_a_child()) return;
    Adder add(mine());
    const Totals& at = Adder::layout();
    const bool direct = call.storage.gpu_direct > call.storage.o_direct + call.storage.page_cache;
    const bool write = writes(call.kind);
    const Totals::OfKind& kind = at.kinds[static_cast<std::size_t>(call.kind)];
    add(call.ok ? kind.ok : kind.failed, 1);
    add(kind.bytes, call.bytes);
    add(kind.nanoseconds, call.nanoseconds);
    add(kind.direct, call.ok && direct ? 1 : 0);
    add_storage(add, kind.storage, call.storage);
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
    add(direct ? way.direct : way.posix, 1);
}

void note(Event event, bool ok, std::uint64_t count, std::uint64_t nanoseconds) noexcept {
    if (in_a_child()) return;
    Adder add(mine());
    const Totals::OfEvent& at = Adder::layout().of(event);
    add(ok ? at.ok : at.failed, count);
    add(at.nanoseconds, nanoseconds);
}

Totals totals() {
    return page().sums();
}

namespace {

template <typename Combine>
void combine(Totals& totals, const Totals& other, Combine combine) {
    std::array<std::uint64_t, sizeof(Totals) / sizeof(std::uint64_t)> to, from;
    std::memcpy(to.data(), &totals, sizeof totals);
    std::memcpy(from.data(), &other, sizeof other);
    std::transform(to.begin(), to.end(), from.begin(), to.begin(), combine);
    std::memcpy(static_cast<void*>(&totals), to.data(), sizeof totals);
}

}  // namespace

Totals& Totals::operator+=(const Totals& other) {
    combine(*this, other, std::plus());
    return *this;
}

Totals& Totals::operator-=(const Totals& other) {
    combine(*this, other, std::minus());
    return *this;
}

}  // namespace sidestep::cufile
