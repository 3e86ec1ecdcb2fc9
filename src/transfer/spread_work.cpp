#include "transfer/spread_work.hpp"

#include <bit>
#include <tuple>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/cpus.hpp"
#include "driver/files.hpp"
#include "route/hops.hpp"
#include "transfer/direct_storage.hpp"
#include "transfer/ends.hpp"
#include "transfer/spread_cursor.hpp"

namespace sidestep::transfer {
namespace {

using backend::Access;

// What one thread reads at a time is fastest with 2 MiB (docs/lab-book.md, 4 x H200). Chunks of two and
// four of them cost the thread that drives a half and a quarter, which counts where many processors read: 10
// us for each copy that it starts.
constexpr Bytes usual_chunk = Bytes{2} << 20;
constexpr Bytes chunk_of_many = Bytes{4} << 20;
constexpr Bytes chunk_of_several_places = Bytes{8} << 20;
constexpr Bytes processors_for_chunks_of_many = 4;
constexpr Bytes processors_for_several_places = 12;
// Slots for each processor: enough to keep those that read or write busy beside the copies out of the slots. More
// would only spoil the caches (docs/lab-book.md, "What constants stand on").
constexpr Bytes slots_a_reader = 2;
constexpr Bytes slots_a_writer = 1;
constexpr Bytes min_ring = Bytes{16} << 20;
constexpr Bytes max_ring = Bytes{128} << 20;
// A save around the page cache, whose requests wait for a device: as much as it has to have outstanding, and
// no more (docs/lab-book.md, "What constants stand on").
constexpr Bytes ring_around_cache = Bytes{32} << 20;
// Cells that are looked at to learn how the bytes are divided, where their number is known.
constexpr std::size_t sampled_cells = 64;

Bytes best_chunk(Bytes processors, std::size_t places) {
    if (processors < processors_for_chunks_of_many) return usual_chunk;
    if (places == 1) return chunk_of_many;
    return processors < processors_for_several_places ? usual_chunk : chunk_of_several_places;
}

bool writes_around_cache(const Spread& spread, const CopyOptions& options) {
    const bool asked = options.page_cache == PageCache::bypass ||
                       (options.page_cache == PageCache::automatic && options.sync_file);
    return asked && !driver::would_live_in_memory(spread.files.front().path);
}

// Enough staging memory to keep every mover of bytes busy.
Bytes usual_ring(const Spread& spread, const CopyOptions& options, Bytes chunk) {
    const bool loads = spread.direction == SpreadDirection::to_memory;
    if (!loads && writes_around_cache(spread, options)) return ring_around_cache;
    return std::clamp(usable_processors() * (loads ? slots_a_reader : slots_a_writer) * chunk, min_ring,
                      max_ring);
}

// Cells there are, at most.
std::size_t cells_of(const Spread& spread, Bytes chunk) {
    std::size_t cells = 0;
    for (const SpreadFile& file : spread.files)
        if (!file.ranges.empty())
            cells += (file.ranges.back().end - 1) / chunk - file.ranges.front().begin / chunk + 1;
    return cells;
}

}  // namespace

unsigned usable_processors() {
    static const auto count = static_cast<unsigned>(driver::usable_cpu_count());
    return count;
}

Result<void> SpreadWork::prepare() {
    SIDESTEP_CHECK(look_at_memories());
    SIDESTEP_CHECK(check_targets());
    measure();
    shares_.resize(lanes());
    arrived.resize(lanes());
    if (bytes.files == 0) return {};
    SIDESTEP_CHECK(plan());
    SIDESTEP_CHECK(make_ring());
    SIDESTEP_CHECK(attach_all());
    // Lanes of other copies through these GPUs make way.
    for (const route::End& end : ends)
        if (end.place.is_gpu() && end.place.node().empty())
            traffic_.push_back(
                machine_.traffic.use(end.place.index(), loads() ? Direction::to_gpu : Direction::from_gpu));
    return {};
}

// Asks the placement for the runs; of a spread that says how many bytes there are, for some chunks only.
void SpreadWork::measure() {
    for (const SpreadFile& file : spread.files) bytes.files += file.bytes();
    bytes.memories = spread.bytes;
    bytes.own.assign(lanes(), 0);
    const std::size_t count = lane_of_.size();
    if (bytes.files == 0 || count == 0) return;

    const std::size_t cells = cells_of(spread, usual_chunk);
    const std::size_t every = spread.bytes == 0 ? 1 : std::max<std::size_t>(cells / sampled_cells, 1);
    SpreadCursor cursor(spread.files, usual_chunk);
    std::vector<Run> runs;
    double seen = 0;
    Bytes arriving = 0;
    for (std::size_t number = 0; !cursor.empty(); ++number) {
        const Cell cell = cursor.take();
        if (number % every != 0) continue;
        runs.clear();
        for (const FileRange& part : cell.parts) spread.placement->runs(cell.file, part, runs);
        seen += static_cast<double>(cell.bytes());
        for (const Run& run : runs) {
            const bool all = run.memory == Run::every_memory;
            arriving += all && loads() ? run.size * count : run.size;
            if (all)
                bytes.shared += static_cast<double>(run.size);
            else if (run.memory < count)
                bytes.own[lane_of_[run.memory]] += static_cast<double>(run.size);
        }
    }
    bytes.shared /= seen;
    for (double& part : bytes.own) part /= seen;
    if (spread.bytes == 0) bytes.memories = arriving;
}

Result<void> SpreadWork::check_memory(const Buffer& memory) const {
    const Place& place = memory.place();
    const bool source = is_opened(place) && !loads();
    if (!place.is_gpu() && !place.is_host() && !source)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is not memory that files are spread over", place.to_string()),
                     memory.to_string(), "use gpu and host places"};
    SIDESTEP_CHECK(!loads() ? check_place(machine_.topology, place) : check_here(machine_.topology, place));
    if (memory.size() == Buffer::whole)
        return Error{ErrorCode::invalid_argument, "memory needs a size", memory.to_string()};
    return check_buffer(memory, loads());
}

// What the memories are, and their lanes; not whether each run fits, which is asked chunk by chunk.
Result<void> SpreadWork::look_at_memories() {
    for (const Buffer& memory : spread.memories) {
        const Place& place = memory.place();
        SIDESTEP_CHECK(check_memory(memory));
        SIDESTEP_TRY(const backend::Description found, describe(machine_.registry, memory));
        if (is_opened(place)) {
            if (place.is_file() && found.identity == 0 && found.size == 0)
                return Error{ErrorCode::not_found, fmt::format("there is no file {}", place.path()),
                             place.to_string(), "check the path"};
            // What is far says so late otherwise: when all before it has come.
            if (!place.node().empty() && memory.size() > found.size)
                return Error{ErrorCode::end_of_file,
                             fmt::format("{} has {} bytes, and the range ends at {}", place.to_string(),
                                         found.size, memory.size()),
                             "save", "name a range that ends where it does, or before"};
            sources_[lane_of_.size()] = found;
        }
        const route::End end{place, found.memory};
        const auto alike = [&end](const route::End& other) {
            return end == other ||
                   (is_opened(end.place) && end.memory == other.memory &&
                    end.place.kind() == other.place.kind() && end.place.node() == other.place.node());
        };
        const auto known = loads() ? ends.end() : std::ranges::find_if(ends, alike);
        lane_of_.push_back(static_cast<std::size_t>(known - ends.begin()));
        if (known == ends.end()) ends.push_back(end);
    }
    return {};
}

Result<void> SpreadWork::plan() {
    if (spread.memories.empty())
        return Error{ErrorCode::invalid_argument, "there are bytes to move, and no memory", "spread"};
    route::FanOutRequest request;
    request.file = spread.files.front().buffer().place();
    request.bytes = bytes.files;
    request.places = ends;
    request.to_file = !loads();
    request.shared = bytes.shared;
    request.own = bytes.own;
    if (request.to_file) request.own[lane_of_[0]] += bytes.shared;
    request.through_host = spread.look != nullptr;
    request.require = options_.require;
    request.prefer = options_.prefer;
    std::vector<backend::Offer> offers = machine_.registry.offers();
    if (!request.to_file) {
        std::vector<Buffer> sources;
        for (const SpreadFile& file : spread.files) sources.push_back(file.buffer());
        offers = with(std::move(offers), objections(machine_.registry, sources, spread.memories, options_));
    }

    SIDESTEP_TRY(way, route::fan_out(machine_.topology, offers, request));
    if (way.uses_slots()) storage = chosen(machine_.registry, offers, way.storage);
    for (const route::Choice& link : way.links) links.push_back(chosen(machine_.registry, offers, link));
    for (const auto& [lanes_of, peer] : way.peers) peers[lanes_of] = chosen(machine_.registry, offers, peer);
    return options_.verify ? plan_verification(offers) : Result<void>();
}

// The files are read through a slot, and every memory is fetched into another.
Result<void> SpreadWork::plan_verification(const std::vector<backend::Offer>& offers) {
    const auto to_slot = [&](const route::End& from) -> Result<ReadyHop> {
        const route::HopOption best =
            route::best_hop(machine_.topology, offers, from, way.slots, options_.prefer);
        if (best.possible()) return chosen(machine_.registry, offers, best.choice);
        return Error{ErrorCode::path_unavailable,
                     fmt::format("{} cannot be read to verify: {}", from.place.to_string(), best.refusal),
                     "route", best.remedy};
    };
    SIDESTEP_TRY(reader, to_slot({spread.files.front().buffer().place(), MemoryKind::storage}));
    for (const route::End& end : ends) {
        SIDESTEP_TRY(ReadyHop fetcher, to_slot(end));
        fetchers.push_back(std::move(fetcher));
    }
    return {};
}

Result<void> SpreadWork::make_ring() {
    const std::size_t count = lanes();
    const std::size_t min = options_.verify ? 2 : 1;
    const Bytes block = spread.look ? Spread::block : base::page;
    const Bytes best = best_chunk(usable_processors(), count);
    chunk = base::round_up(options_.chunk != 0 ? options_.chunk : best, block);
    if (!way.uses_slots() && !options_.verify) return {};
    const Bytes max =
        options_.max_staging > Buffer::whole / count ? Buffer::whole : options_.max_staging * count;
    const Bytes wanted = std::max(usual_ring(spread, options_, best), 4 * chunk);
    // The pool hands out powers of two: the nearer one.
    const Bytes room = std::bit_floor(std::min(max, wanted + wanted / 3));
    chunk = std::min(chunk, room / min / block * block);
    if (chunk == 0)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} of staging memory are too little: {} blocks of {} have to fit",
                                 format_bytes(max), min, format_bytes(block)),
                     "options", "raise max_staging"};
    const std::size_t slots =
        std::min<std::size_t>(room / chunk, std::max(min, min * cells_of(spread, chunk)));
    SIDESTEP_TRY(ring, SlotRing::create(machine_.pool, way.slots.place, way.slots.memory, slots, chunk));
    return {};
}

Result<void> SpreadWork::attach_all() {
    const std::size_t the_ring = spread.memories.size();
    const Access of_ring = loads() ? Access::read : Access::write;
    const Access of_memory = loads() ? Access::write : Access::read;
    attached_.all.resize(the_ring + 1);
    if (!loads())
        reading_ = std::make_unique<SpreadSources>(
            machine_.calls, attached_, [this](std::size_t memory) { return open_source(memory); });
    if (way.uses_slots()) SIDESTEP_CHECK(attach(storage, of_memory, the_ring));
    for (std::size_t lane = 0; lane < lanes(); ++lane)
        if (!way.direct[lane]) SIDESTEP_CHECK(attach(links[lane], of_ring, the_ring));
    for (const ReadyHop& fetcher : fetchers) SIDESTEP_CHECK(attach(fetcher, Access::write, the_ring));
    if (options_.verify) SIDESTEP_CHECK(attach(reader, Access::write, the_ring));
    for (std::size_t memory = 0; memory < the_ring; ++memory) {
        if (sources_.contains(memory)) continue;  // opened when a chunk comes to it
        SIDESTEP_CHECK(attach(links[lane_of_[memory]], of_memory, memory));
        if (options_.verify) SIDESTEP_CHECK(attach(fetchers[lane_of_[memory]], Access::read, memory));
    }
    for (const auto& [lanes_of, peer] : peers) {
        SIDESTEP_CHECK(attach(peer, Access::read, lanes_of.first));
        SIDESTEP_CHECK(attach(peer, Access::write, lanes_of.second));
    }
    return {};
}

Result<SpreadSources::Open> SpreadWork::open_source(std::size_t memory) const {
    const std::size_t lane = lane_of_[memory];
    std::vector<backend::Backend*> readers{links[lane].backend};
    if (options_.verify && fetchers[lane].backend != readers[0]) readers.push_back(fetchers[lane].backend);
    SpreadSources::Open opened;
    for (backend::Backend* by : readers) {
        SIDESTEP_TRY(auto made, by->attach(spread.memories[memory], options_for(Access::read, memory)));
        opened.push_back({by, Access::read, std::move(made)});
    }
    return opened;
}

backend::AttachOptions SpreadWork::options_for(Access access, std::size_t which) const {
    backend::AttachOptions options;
    options.access = access;
    if (const auto source = sources_.find(which); source != sources_.end()) {
        options.identity = source->second.identity;
        options.version = source->second.version;
    }
    return options;
}

Result<void> SpreadWork::attach(const ReadyHop& mover, Access access, std::size_t which) {
    if (attached_.find(which, mover.backend, access) != nullptr) return {};
    const Buffer& buffer = which < spread.memories.size() ? spread.memories[which] : ring.lease.buffer();
    SIDESTEP_TRY(auto registration, mover.backend->attach(buffer, options_for(access, which)));
    attached_.all[which].push_back({mover.backend, access, std::move(registration)});
    return {};
}

// No file that is read is one that is written.
Result<void> SpreadWork::check_targets() const {
    if (sources_.empty()) return {};
    for (const SpreadFile& file : spread.files) {
        SIDESTEP_TRY(const backend::Description target, describe(machine_.registry, file.buffer()));
        for (const auto& [memory, source] : sources_)
            if (target.identity != 0 && target.identity == source.identity &&
                spread.memories[memory].place().node().empty())
                return Error{
                    ErrorCode::invalid_argument,
                    fmt::format("{} is read for the files that are written, and is one of them", file.path),
                    file.path, "write to another name or folder"};
    }
    return {};
}

Result<void> SpreadWork::check_sources() const {
    for (const auto& [memory, then] : sources_)
        if (auto same = check_unchanged(machine_.registry, spread.memories[memory], then); !same)
            return same.error();
    return {};
}

std::vector<backend::Backend*> SpreadWork::file_backends() const {
    std::vector<backend::Backend*> backends;
    if (way.uses_slots()) backends.push_back(storage.backend);
    for (std::size_t lane = 0; lane < lanes(); ++lane)
        if (way.direct[lane] && std::ranges::find(backends, links[lane].backend) == backends.end())
            backends.push_back(links[lane].backend);
    return backends;
}

std::size_t SpreadWork::owner_of(const std::vector<std::size_t>& group) const {
    return *std::ranges::min_element(group, {}, [&](std::size_t lane) {
        return std::tuple(!way.direct[lane], shares_[lane].outstanding, shares_[lane].carried);
    });
}

}  // namespace sidestep::transfer
