#include "shims/cufile/stats.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "shims/cufile/driver.hpp"
#include "shims/cufile/settings.hpp"

namespace sidestep::cufile {
namespace {

std::atomic<std::uint64_t> last_read_bytes{0};
std::atomic<std::uint64_t> last_written_bytes{0};

std::uint64_t a_second(std::uint64_t count, double seconds) {
    return seconds > 0 ? static_cast<std::uint64_t>(static_cast<double>(count) / seconds) : 0;
}

// What calls of one or two kinds did.
struct Kind {
    CUfileOpCounter_t calls{};
    std::uint64_t bytes = 0;
    std::uint64_t us = 0;
    std::uint64_t direct = 0;

    void add(const Totals::OfKind& kind) {
        calls.ok += kind.ok;
        calls.err += kind.failed;
        bytes += kind.bytes;
        us += kind.nanoseconds / 1000;
        direct += kind.direct;
    }
    std::uint64_t us_each() const {
        const std::uint64_t all = calls.ok + calls.err;
        return all == 0 ? 0 : us / all;
    }
};

Kind kind_of(const Totals& totals, std::initializer_list<CallKind> kinds) {
    Kind sum;
    for (const CallKind kind : kinds) sum.add(totals.of(kind));
    return sum;
}

CUfileOpCounter_t counter(const Totals& totals, Event event) {
    return {totals.of(event).ok, totals.of(event).failed};
}

void fill_calls(const Totals& totals, double seconds, CUfileStatsLevel1_t& stats) {
    const Kind read = kind_of(totals, {CallKind::read, CallKind::stream_read});
    const Kind write = kind_of(totals, {CallKind::write, CallKind::stream_write});
    stats.read_ops = read.calls;
    stats.write_ops = write.calls;
    stats.hdl_register_ops = counter(totals, Event::file_added);
    stats.hdl_deregister_ops = counter(totals, Event::file_removed);
    stats.buf_register_ops = counter(totals, Event::memory_added);
    stats.buf_deregister_ops = counter(totals, Event::memory_removed);
    stats.read_bytes = read.bytes;
    stats.write_bytes = write.bytes;
    stats.read_bw_bytes_per_sec = a_second(read.bytes, seconds);
    stats.write_bw_bytes_per_sec = a_second(write.bytes, seconds);
    stats.read_lat_avg_us = read.us_each();
    stats.write_lat_avg_us = write.us_each();
    stats.read_ops_per_sec = a_second(read.calls.ok, seconds);
    stats.write_ops_per_sec = a_second(write.calls.ok, seconds);
    stats.read_lat_sum_us = read.us;
    stats.write_lat_sum_us = write.us;
}

// Nothing of NVIDIA's driver, libaio or io_uring is handed entries here: threads carry them out.
void fill_batches(const Totals& totals, double seconds, CUfileStatsLevel1_t& stats) {
    const Kind read = kind_of(totals, {CallKind::batch_read});
    const Kind write = kind_of(totals, {CallKind::batch_write});
    const Kind both = kind_of(totals, {CallKind::batch_read, CallKind::batch_write});
    const Totals::OfEvent& submits = totals.of(Event::batch_submitted);
    stats.batch_submit_ops = counter(totals, Event::batch_submitted);
    stats.batch_complete_ops = counter(totals, Event::entries_collected);
    stats.batch_setup_ops = counter(totals, Event::batch_made);
    stats.batch_cancel_ops = counter(totals, Event::batch_cancelled);
    stats.batch_destroy_ops = counter(totals, Event::batch_destroyed);
    stats.batch_enqueued_ops = counter(totals, Event::entries_submitted);
    stats.batch_processed_ops = both.calls;
    stats.batch_posix_processed_ops = {both.calls.ok - both.direct, both.calls.err};
    stats.batch_posix_enqueued_ops = stats.batch_posix_processed_ops;
    stats.batch_p2p_submit_ops = {both.direct, 0};
    stats.batch_total_submit_ops = stats.batch_enqueued_ops;
    stats.batch_read_bytes = read.bytes;
    stats.batch_write_bytes = write.bytes;
    stats.batch_read_bw_bytes = a_second(read.bytes, seconds);
    stats.batch_write_bw_bytes = a_second(write.bytes, seconds);
    const std::uint64_t calls = submits.ok + submits.failed;
    stats.batch_submit_lat_sum_us = submits.nanoseconds / 1000;
    stats.batch_submit_lat_avg_us = calls == 0 ? 0 : stats.batch_submit_lat_sum_us / calls;
    stats.batch_completion_lat_sum_us = both.us;
    stats.batch_completion_lat_avg_us = both.us_each();
    stats.batch_submit_ops_per_sec = a_second(submits.ok, seconds);
    stats.batch_complete_ops_per_sec = a_second(stats.batch_complete_ops.ok, seconds);
    stats.last_batch_read_bytes = last_read_bytes.load(std::memory_order_relaxed);
    stats.last_batch_write_bytes = last_written_bytes.load(std::memory_order_relaxed);
}

void fill_parts(const Totals& totals, double seconds, CUfileStatsLevel1_t& stats) {
    const Kind read = kind_of(totals, {CallKind::readv});
    const Kind write = kind_of(totals, {CallKind::writev});
    stats.readv_ops = read.calls;
    stats.writev_ops = write.calls;
    stats.readv_bytes = read.bytes;
    stats.writev_bytes = write.bytes;
    stats.readv_bw_bytes_per_sec = a_second(read.bytes, seconds);
    stats.writev_bw_bytes_per_sec = a_second(write.bytes, seconds);
    stats.readv_lat_avg_us = read.us_each();
    stats.writev_lat_avg_us = write.us_each();
    stats.readv_ops_per_sec = a_second(read.calls.ok, seconds);
    stats.writev_ops_per_sec = a_second(write.calls.ok, seconds);
    stats.readv_lat_sum_us = read.us;
    stats.writev_lat_sum_us = write.us;
}

CUfileStatsLevel1_t first_level(const Totals& totals, double seconds) {
    CUfileStatsLevel1_t stats{};
    fill_calls(totals, seconds, stats);
    fill_batches(totals, seconds, stats);
    fill_parts(totals, seconds, stats);
    return stats;
}

// The share of the time in which calls were moving bytes, in percent; more than 100 where several did.
std::uint64_t percent(std::uint64_t nanoseconds, double seconds) {
    return seconds > 0 ? static_cast<std::uint64_t>(static_cast<double>(nanoseconds) / 1e7 / seconds) : 0;
}

// n_dr_*, n_sparse_regions, n_inline_regions and n_mmap* stay 0: nothing is routed through another GPU, read without its storage,
// or mapped for NVIDIA's driver.
void fill_gpu(const Totals::OfGpu& gpu, double seconds, CUfilePerGpuStats_t& stats) {
    stats.read_bytes = gpu.read.bytes;
    stats.read_bw_bytes_per_sec = a_second(gpu.read.bytes, seconds);
    stats.read_utilization = percent(gpu.read.nanoseconds, seconds);
    stats.read_duration_us = gpu.read.nanoseconds / 1000;
    stats.n_total_reads = gpu.read.calls;
    stats.n_p2p_reads = gpu.read.direct;
    stats.n_posix_reads = gpu.read.posix;
    stats.n_unaligned_reads = gpu.read.unaligned;
    stats.n_reads_err = gpu.read.failed;
    stats.writes_bytes = gpu.write.bytes;
    stats.write_bw_bytes_per_sec = a_second(gpu.write.bytes, seconds);
    stats.write_utilization = percent(gpu.write.nanoseconds, seconds);
    stats.write_duration_us = gpu.write.nanoseconds / 1000;
    stats.n_total_writes = gpu.write.calls;
    stats.n_p2p_writes = gpu.write.direct;
    stats.n_posix_writes = gpu.write.posix;
    stats.n_unaligned_writes = gpu.write.unaligned;
    stats.n_writes_err = gpu.write.failed;
}

// Zeros where CUDA does not know the GPU, as one that is emulated.
void fill_name(const std::string& bus_id, char (&uuid)[16]) {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) return;
    const auto by_bus_id =
        reinterpret_cast<int (*)(int*, const char*)>(::dlsym(library, "cuDeviceGetByPCIBusId"));
    const auto name_of = reinterpret_cast<int (*)(char*, int)>(::dlsym(library, "cuDeviceGetUuid_v2"));
    int device = 0;
    if (by_bus_id != nullptr && name_of != nullptr && by_bus_id(&device, bus_id.c_str()) == 0)
        name_of(uuid, device);
}

// Writes what belongs together without the members that came in 1.19 where the version is older.
class Writer {
public:
    explicit Writer(void* to) : to_(static_cast<char*>(to)) {}
    void write(const void* from, std::size_t bytes) {
        std::memcpy(to_, from, bytes);
        to_ += bytes;
    }
    void write_first(const Totals& totals, double seconds) {
        const CUfileStatsLevel1_t first = first_level(totals, seconds);
        constexpr std::size_t before = CUFILE_STATS_L1_BEFORE_1_19;
        write(&first, version().has_vectors() ? sizeof first : before);
    }
    void write_second(const Totals& totals, double seconds) {
        write_first(totals, seconds);
        write(totals.sizes.data(), sizeof totals.sizes);
    }

private:
    char* to_;
};

}  // namespace

Statistics& Statistics::get() {
    static auto& one = *new Statistics;
    return one;
}

// Asks for the sums in any case: so the memory they are in is there from the opening of the driver on, for whoever looks.
Statistics::Statistics() : since_(totals()), begun_(Clock::now()) {
    change(std::min(static_cast<int>(settings().size(CUFILE_PARAM_PROFILE_STATS)), highest_level), false);
}

void Statistics::change(int level, bool stopped) {
    const bool before = counting();
    level_ = level;
    stopped_ = stopped;
    if (counting() == before) return;
    if (before) {
        Totals now = totals();
        before_.totals += now -= since_;
        before_.seconds += std::chrono::duration<double>(Clock::now() - begun_).count();
    } else {
        since_ = totals();
        begun_ = Clock::now();
    }
}

int Statistics::level() const {
    const std::lock_guard guard(mutex_);
    return level_;
}

Refusal Statistics::set_level(int level) {
    if (level < 0 || level > highest_level)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("levels are 0 to {}, not {}", highest_level, level));
    const std::lock_guard guard(mutex_);
    change(level, stopped_);
    return {};
}

void Statistics::start() {
    const std::lock_guard guard(mutex_);
    change(level_, false);
}

void Statistics::stop() {
    const std::lock_guard guard(mutex_);
    change(level_, true);
}

void Statistics::reset() {
    const std::lock_guard guard(mutex_);
    before_ = {};
    since_ = totals();
    begun_ = Clock::now();
    last_read_bytes = 0;
    last_written_bytes = 0;
}

Refusal Statistics::seen(int level, Seen& seen) const {
    const std::lock_guard guard(mutex_);
    if (level_ < level)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("the level is {}: set it to {} with cuFileSetStatsLevel", level_, level));
    seen = before_;
    if (!counting()) return {};
    Totals now = totals();
    seen.totals += now -= since_;
    seen.seconds += std::chrono::duration<double>(Clock::now() - begun_).count();
    return {};
}

Refusal Statistics::fill(CUfileStatsLevel1_t& stats) const {
    Seen all;
    if (auto refused = seen(1, all)) return refused;
    Writer(&stats).write_first(all.totals, all.seconds);
    return {};
}

Refusal Statistics::fill(CUfileStatsLevel2_t& stats) const {
    Seen all;
    if (auto refused = seen(2, all)) return refused;
    Writer(&stats).write_second(all.totals, all.seconds);
    return {};
}

Refusal Statistics::fill(CUfileStatsLevel3_t& stats) const {
    Seen all;
    if (auto refused = seen(3, all)) return refused;
    const Topology& topology = Driver::get().context()->topology();
    // The padding behind it too.
    std::uint64_t gpus = 0;  // one more than the highest number
    for (std::size_t i = 0; i < most_gpus; ++i)
        if (topology.find(DeviceKind::gpu, static_cast<int>(i))) gpus = i + 1;
    Writer writer(&stats);
    writer.write_second(all.totals, all.seconds);
    writer.write(&gpus, sizeof gpus);
    for (std::size_t i = 0; i < most_gpus; ++i) {
        CUfilePerGpuStats_t of_gpu{};
        if (const auto id = topology.find(DeviceKind::gpu, static_cast<int>(i))) {
            fill_name(topology.device(*id).bus_id, of_gpu.uuid);
            fill_gpu(all.totals.gpus[i], all.seconds, of_gpu);
        }
        writer.write(&of_gpu, sizeof of_gpu);
    }
    return {};
}

void note_submission(std::uint64_t read_bytes, std::uint64_t written_bytes) noexcept {
    last_read_bytes.store(read_bytes, std::memory_order_relaxed);
    last_written_bytes.store(written_bytes, std::memory_order_relaxed);
}

}  // namespace sidestep::cufile
