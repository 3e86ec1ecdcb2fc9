// How long tasks take: nothing is asserted but that they end. A graph of many equal tasks and one of few are
// replayed; the difference is the time of a task, without what a launch costs.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "tests/gpu/collective_rig.hpp"

namespace sidestep::gpu_tests::measure_collective {
namespace {

using collective_seat::Crew;
using collective_seat::even_slice;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::Shape;

constexpr std::uint64_t largest = 512_MiB;

class MeasureCollectives : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        n_ = static_cast<unsigned>(std::clamp(machine().gpus(), 2, 16));
        machine().context(0);
        // The first one loads the kernels.
        for (const char* which : {"first", "next"}) {
            const auto began = std::chrono::steady_clock::now();
            const auto seat = backend().seats()->seat({0, n_, Place::gpu(0)});
            ASSERT_TRUE(seat.ok());
            fmt::print(
                "{} seat: {:.1f} ms\n", which,
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
        }
        fmt::print("{} ranks on {} GPUs\n", n_, machine().gpus());
        crew_ = std::make_unique<Crew>(n_, std::uint64_t{20'000'000'000}, 2 * largest + 1_MiB);
        ASSERT_TRUE(crew_->ready());
    }

    enum class What { all_reduce, reduce, reduce_scatter, broadcast, all_gather, all_to_all };
    static bool adds(What what) { return what <= What::reduce_scatter; }

    // `bytes` as nccl-tests counts them.
    CollectiveTask task(What what, Shape shape, unsigned rank, std::uint64_t bytes, unsigned blocks,
                        Element element, bool staged) const {
        CollectiveTask task;
        task.shape = shape;
        task.element = adds(what) ? element : Element::u8;
        task.combine = adds(what) ? Combine::sum : Combine::none;
        task.blocks = static_cast<std::uint8_t>(blocks);
        task.signature = 1;
        task.send = crew_->at(rank, 0);
        task.recv = crew_->at(rank, largest);
        if (!staged) {
            task.send_token = {1, 0};
            task.recv_token = {1, largest};
        }
        const std::uint64_t part = bytes / n_;
        if (what == What::broadcast && rank == 0) task.local_bytes = bytes;
        for (unsigned r = 0; r < n_; ++r) {
            set_slice(task, what, r, bytes);
            task.to[r] = {what == What::all_to_all || what == What::reduce_scatter ? r * part : 0, part};
            task.from[r] = {what == What::reduce_scatter ? 0 : r * part, part};
            if (what == What::all_reduce) task.to[r] = task.from[r] = {0, bytes};
            if (!staged) task.from_tokens[r] = {1, largest + task.from[r].offset};
        }
        if (shape != Shape::coalesced) return task;
        const std::uint64_t each = bytes / calls_;
        for (unsigned i = 0; i < calls_; ++i) task.set_call(i, {i * each, i * each, each, i * each / 8});
        task.calls = static_cast<std::uint8_t>(calls_);
        return task;
    }

    // As the library cuts them, with rank 0 as the root.
    void set_slice(CollectiveTask& task, What what, unsigned r, std::uint64_t bytes) const {
        const std::uint64_t count = bytes / protocol::size_of(task.element);
        const std::uint64_t part = count / n_;
        const auto all = static_cast<std::uint16_t>((1u << n_) - 1);
        const auto only = static_cast<std::uint16_t>(1u << r);
        if (what == What::all_reduce) task.slices[r] = even_slice(count, r, n_);
        if (what == What::reduce_scatter) task.slices[r] = {part, r * part, 0, all, only};
        if (what == What::all_gather || what == What::all_to_all)
            task.slices[r] = {part, 0, r * part, only, all};
        if (what == What::reduce && n_ == 2 && r == 0) task.slices[r] = {count, 0, 0, all, 1};
        if (r == 0 || (what != What::broadcast && (what != What::reduce || n_ == 2))) return;
        const auto [begin, end] =
            protocol::share_of(count, r - 1, n_ - 1, 128 / protocol::size_of(task.element));
        task.slices[r] = {end - begin, begin, begin, 0, 0};
        task.slices[r].sources = what == What::broadcast ? 1 : all;
        task.slices[r].targets = what == What::broadcast ? static_cast<std::uint16_t>(all & ~1) : 1;
    }

    // Of one task, in microseconds: the median.
    double time(const std::vector<CollectiveTask>& tasks, unsigned few, unsigned many, unsigned replays) {
        const double short_us = replay(tasks, few, replays);
        const double long_us = replay(tasks, many, replays);
        return (long_us - short_us) / (many - few);
    }

    double replay(const std::vector<CollectiveTask>& tasks, unsigned nodes, unsigned replays) {
        std::vector<CapturedTasks> graphs;
        for (unsigned rank = 0; rank < n_; ++rank)
            graphs.emplace_back(rank, crew_->rig().stream(rank), [&](void*) {
                for (unsigned i = 0; i < nodes; ++i) crew_->start(rank, tasks[rank]);
            });
        std::vector<double> times;
        for (unsigned i = 0; i < replays + 2; ++i) {
            const auto began = std::chrono::steady_clock::now();
            for (const CapturedTasks& graph : graphs) graph.launch();
            for (const CapturedTasks& graph : graphs) EXPECT_TRUE(graph.wait());
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
            if (i >= 2) times.push_back(took.count());
        }
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }

    // A line of a table: one size, several numbers of blocks.
    void row(const char* name, What what, Shape shape, std::uint64_t bytes,
             const std::vector<unsigned>& blocks, Element element = Element::f32, bool staged = false) {
        const protocol::ArenaLayout layout{n_};
        if (shape == Shape::packets && bytes > layout.packet_payload()) return;
        if (shape == Shape::lamport && bytes > layout.lamport_payload()) return;
        if (shape == Shape::coalesced && bytes > layout.packet_payload()) return;
        if (shape == Shape::packets_two_phase && bytes / n_ > layout.packet_payload()) return;
        const bool rooted = what == What::reduce || what == What::broadcast;
        if (shape == Shape::lines && bytes / (rooted ? n_ - 1 : n_) > layout.lines_payload()) return;
        const bool small = bytes <= 2_MiB;
        const double others = 1.0 * (n_ - 1) / n_;
        const double factor = what == What::all_reduce                          ? 2 * others
                              : what == What::reduce || what == What::broadcast ? 1
                                                                                : others;
        double best = 0;
        std::string all;
        for (const unsigned count : blocks) {
            std::vector<CollectiveTask> tasks;
            for (unsigned rank = 0; rank < n_; ++rank)
                tasks.push_back(task(what, shape, rank, bytes, count, element, staged));
            const double us = time(tasks, small ? 20 : 2, small ? 120 : 12, small ? 20 : 8);
            all += fmt::format("  {:>3}: {:8.2f}", count, us);
            best = best == 0 ? us : std::min(best, us);
            for (unsigned rank = 0; rank < n_; ++rank) {
                const auto fault = crew_->seat(rank).fault();
                ASSERT_FALSE(fault.has_value()) << collective_seat::to_string(*fault);
            }
        }
        fmt::print("{:<28} {:>10} B  best {:9.2f} us  {:7.1f} GB/s busbw |{}\n", name, bytes, best,
                   static_cast<double>(bytes) * factor / best / 1e3, all);
        std::fflush(stdout);
    }

    unsigned n_ = 0;
    unsigned calls_ = 1;  // of a task of Shape::coalesced
    std::unique_ptr<Crew> crew_;
};

TEST_F(MeasureCollectives, AllReduce) {
    for (const std::uint64_t bytes :
         {Bytes{8}, Bytes{512}, 1_KiB, 2_KiB, 4_KiB, 8_KiB, 16_KiB, 32_KiB, 64_KiB, 128_KiB, 256_KiB})
        row("packets f32", What::all_reduce, Shape::packets, bytes, {1, 2, 4, 8, 16, 32});
    for (const std::uint64_t bytes : {Bytes{8}, Bytes{512}, 1_KiB, 2_KiB, 4_KiB, 8_KiB, 16_KiB, 32_KiB,
                                      64_KiB, 128_KiB, 256_KiB, 512_KiB})
        row("lamport f32", What::all_reduce, Shape::lamport, bytes, {1, 2, 4, 8, 16, 32, 48, 64});
    for (const std::uint64_t bytes : {8_KiB, 32_KiB, 128_KiB, 512_KiB})
        row("lamport bf16", What::all_reduce, Shape::lamport, bytes, {1, 2, 4, 8, 16, 32, 64}, Element::bf16);
    for (const std::uint64_t bytes : {8_KiB, 16_KiB, 32_KiB, 64_KiB, 128_KiB, 256_KiB, 512_KiB, 1_MiB})
        row("two phases f32", What::all_reduce, Shape::packets_two_phase, bytes, {1, 4, 8, 16, 32, 64});
    for (const std::uint64_t bytes :
         {8_KiB, 16_KiB, 32_KiB, 64_KiB, 128_KiB, 256_KiB, 512_KiB, 1_MiB, 2_MiB, 4_MiB, 8_MiB})
        row("lines f32", What::all_reduce, Shape::lines, bytes, {1, 4, 8, 16, 24, 32, 48, 64});
    for (const std::uint64_t bytes : {128_KiB, 512_KiB, 2_MiB})
        row("lines bf16", What::all_reduce, Shape::lines, bytes, {8, 16, 32, 64}, Element::bf16);
    for (const std::uint64_t bytes :
         {128_KiB, 512_KiB, 1_MiB, 2_MiB, 4_MiB, 8_MiB, 16_MiB, 32_MiB, 128_MiB, 512_MiB})
        row("slices f32", What::all_reduce, Shape::slices, bytes, {8, 16, 24, 32, 48, 64});
    for (const std::uint64_t bytes : {2_MiB, 4_MiB, 8_MiB, 16_MiB, 32_MiB, 64_MiB, 128_MiB, 512_MiB})
        row("pushed slices f32", What::all_reduce, Shape::pushed_slices, bytes, {32, 48, 64, 96, 128});
    for (const std::uint64_t bytes : {2_MiB, 8_MiB, 32_MiB, 512_MiB})
        row("slices bf16", What::all_reduce, Shape::slices, bytes, {16, 32, 64}, Element::bf16);
    for (const std::uint64_t bytes : {8_KiB, 128_KiB})
        row("packets bf16", What::all_reduce, Shape::packets, bytes, {1, 4, 16, 32}, Element::bf16);
    for (const std::uint64_t bytes : {1_MiB, 16_MiB, 256_MiB})
        row("slices f32 staged", What::all_reduce, Shape::slices, bytes, {16, 32, 64}, Element::f32, true);
}

// All of the calls; beside them one alone, which takes the time as often as there are calls.
TEST_F(MeasureCollectives, Coalesced) {
    for (const std::uint64_t each : {Bytes{512}, 4_KiB, 16_KiB, 32_KiB}) {
        row("lamport f32", What::all_reduce, Shape::lamport, each, {1, 4, 8, 16});
        for (const unsigned calls : {1u, 2u, 4u, 16u}) {
            calls_ = calls;
            row(fmt::format("{} calls coalesced f32", calls).c_str(), What::all_reduce, Shape::coalesced,
                calls * each, {1, 4, 8, 16, 32});
        }
    }
}

TEST_F(MeasureCollectives, ToOneAndFromOne) {
    struct Named {
        What what;
        const char* name;
    };
    for (const auto [what, name] :
         {Named{What::reduce, "reduce"}, Named{What::reduce_scatter, "reduce_scatter"},
          Named{What::broadcast, "broadcast"}, Named{What::all_gather, "all_gather"}}) {
        for (const std::uint64_t bytes : {8_KiB, 32_KiB, 128_KiB, 512_KiB, 1_MiB, 2_MiB, 4_MiB, 8_MiB})
            row(fmt::format("lines {}", name).c_str(), what, Shape::lines, bytes, {1, 4, 8, 16, 32, 48, 64});
        for (const std::uint64_t bytes : {128_KiB, 512_KiB, 1_MiB, 2_MiB, 8_MiB, 128_MiB})
            row(fmt::format("slices {}", name).c_str(), what, Shape::slices, bytes, {8, 16, 32, 64});
        if (adds(what))
            for (const std::uint64_t bytes : {2_MiB, 8_MiB, 32_MiB, 128_MiB})
                row(fmt::format("pushed slices {}", name).c_str(), what, Shape::pushed_slices, bytes,
                    {64, 96, 128});
    }
}

TEST_F(MeasureCollectives, Moving) {
    for (const std::uint64_t bytes : {1_KiB, 64_KiB, 512_KiB})
        row("packets all-gather", What::all_gather, Shape::packets, bytes, {1, 4, 16, 32});
    for (const std::uint64_t bytes : {512_KiB, 2_MiB, 8_MiB, 64_MiB, 512_MiB})
        row("slices all-gather", What::all_gather, Shape::slices, bytes, {8, 16, 32, 64});
    row("slices all-gather staged", What::all_gather, Shape::slices, 64_MiB, {16, 32, 64}, Element::u8, true);
    for (const std::uint64_t bytes : {1_KiB, 64_KiB, 512_KiB})
        row("packets all-to-all", What::all_to_all, Shape::packets, bytes, {1, 4, 16, 32});
    for (const std::uint64_t bytes : {512_KiB, 2_MiB, 8_MiB, 64_MiB, 512_MiB})
        row("pairs all-to-all", What::all_to_all, Shape::pairs, bytes, {1});
    row("pairs all-to-all staged", What::all_to_all, Shape::pairs, 64_MiB, {1}, Element::u8, true);
}

}  // namespace
}  // namespace sidestep::gpu_tests::measure_collective
