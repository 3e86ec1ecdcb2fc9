// Collectives on real GPUs, beyond the suite of tests/unit/collective_seat: graphs, streams, several groups,
// and sizes that emulated GPUs would take too long for.
#include <atomic>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include <sidestep/group.hpp>

#include "tests/gpu/collective_rig.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::collective {
namespace {

using collective_seat::Crew;
using collective_seat::even_slice;
using collective_seat::Values;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::FaultKind;
using protocol::Shape;

constexpr unsigned ranks = 4;
constexpr std::size_t send_at = 4096;
constexpr std::size_t recv_at = 1 << 20;

struct Way {
    Shape shape;
    bool staged;
};
void PrintTo(const Way& way, std::ostream* out) {
    *out << collective_seat::name_of(way.shape) << (way.staged ? ", staged" : "");
}

// An all-reduce of `count` floats; of pairs and copies, an exchange of as many bytes with everybody.
CollectiveTask task_of(Crew& crew, const Way& way, unsigned rank, std::uint64_t count,
                       std::size_t from = send_at, std::size_t to = recv_at) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = count * 4;
    CollectiveTask task;
    task.shape = way.shape;
    task.element = Element::f32;
    const bool exchange = way.shape == Shape::pairs || way.shape == Shape::copies;
    task.combine = exchange ? Combine::none : Combine::sum;
    task.blocks = 2;
    task.signature = 11;
    task.send = crew.at(rank, from);
    task.recv = crew.at(rank, to);
    if (!way.staged) {
        task.send_token = {1, from};
        task.recv_token = {1, to};
    }
    for (unsigned r = 0; r < n; ++r) {
        task.to[r] = task.from[r] = {0, bytes};
        task.slices[r] = even_slice(count, r, n);
        if (!exchange) continue;
        task.from[r].offset = r * bytes;
        if (!way.staged) task.from_tokens[r] = {1, to + r * bytes};
    }
    return task;
}

class CollectiveGraphs : public testing::TestWithParam<Way> {
protected:
    void SetUp() override {
        if (!crew().ready()) GTEST_SKIP() << Machine::get().missing();
    }
    static Crew& crew() { return Crew::of(ranks); }

    void fill(unsigned seed) {
        collective_seat::Random random(seed);
        for (unsigned rank = 0; rank < ranks; ++rank) {
            crew().write(rank, send_at,
                         collective_seat::some_values(Element::f32, Combine::sum, 5000, ranks, random));
            crew().fill(rank, recv_at, 5000 * 4 * ranks, '\x77');
        }
    }
    std::vector<Values> outputs() {
        std::vector<Values> all;
        for (unsigned rank = 0; rank < ranks; ++rank)
            all.push_back(crew().read(rank, recv_at, 5000 * 4 * ranks));
        return all;
    }
};

// The same bits as on a stream, each time, with tasks outside of the graph in between.
TEST_P(CollectiveGraphs, ReplayedWithOtherInputs) {
    std::vector<CapturedTasks> graphs;
    for (unsigned rank = 0; rank < ranks; ++rank) {
        graphs.emplace_back(rank, crew().rig().stream(rank), [&](void*) {
            for (unsigned i = 0; i < 3; ++i) crew().start(rank, task_of(crew(), GetParam(), rank, 4999));
        });
    }
    for (unsigned seed = 0; seed < 5; ++seed) {
        fill(seed);
        for (unsigned rank = 0; rank < ranks; ++rank)
            crew().start(rank, task_of(crew(), GetParam(), rank, 4999));
        crew().finish();
        const auto expected = outputs();
        fill(seed);
        for (const CapturedTasks& graph : graphs) graph.launch();
        for (const CapturedTasks& graph : graphs) ASSERT_TRUE(graph.wait());
        EXPECT_EQ(outputs(), expected) << "seed " << seed;
        crew().finish();
        if (HasFailure()) return;
    }
}

// A rank alone in a graph that is launched is let go within a second.
TEST_P(CollectiveGraphs, AbortedInsideOfAReplay) {
    Crew alone(ranks, 0);
    ASSERT_TRUE(alone.ready());
    const CapturedTasks graph(0, alone.rig().stream(0), [&](void*) {
        for (unsigned i = 0; i < 20; ++i) alone.start(0, task_of(alone, GetParam(), 0, 100));
    });
    graph.launch();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::thread([&] { alone.seat(0).abort(); }).join();
    EXPECT_TRUE(graph.wait(1)) << "it still waits a second after the abort";
    ASSERT_TRUE(alone.seat(0).fault().has_value());
    EXPECT_EQ(alone.seat(0).fault()->kind, FaultKind::aborted);
    EXPECT_EQ(alone.seat(0).fault()->signature, 11u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CollectiveGraphs,
                         testing::Values(Way{Shape::packets, false}, Way{Shape::lamport, false},
                                         Way{Shape::packets_two_phase, false}, Way{Shape::lines, false},
                                         Way{Shape::slices, false}, Way{Shape::slices, true},
                                         Way{Shape::pushed_slices, false}, Way{Shape::pairs, false},
                                         Way{Shape::pairs, true}, Way{Shape::ring, false}));
INSTANTIATE_TEST_SUITE_P(Copies, CollectiveGraphs,
                         testing::Values(Way{Shape::copies, false}, Way{Shape::copies, true}));

// Tasks behind the one that waits are let go too.
TEST(CopyGraphs, AllButOneAbortedInsideOfReplays) {
    const std::uint64_t lane = protocol::ArenaLayout{ranks}.copy_lane_bytes();
    Crew crew(ranks, 0, (std::size_t{1} << 20) + 2 * ranks * lane * 3);
    if (!crew.ready()) GTEST_SKIP() << Machine::get().missing();
    std::vector<CapturedTasks> graphs;
    for (unsigned rank = 0; rank + 1 < ranks; ++rank)
        graphs.emplace_back(rank, crew.rig().stream(rank), [&](void*) {
            for (unsigned i = 0; i < 5; ++i)
                crew.start(rank, task_of(crew, {Shape::copies, false}, rank, lane * 3 / 4, send_at,
                                         recv_at + lane * 3));
        });
    for (const CapturedTasks& graph : graphs) graph.launch();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (unsigned rank = 0; rank + 1 < ranks; ++rank) crew.seat(rank).abort();
    // As the service thread of a group does.
    std::jthread looks([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
            for (unsigned rank = 0; rank + 1 < ranks; ++rank) static_cast<void>(crew.seat(rank).idle());
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    });
    for (const CapturedTasks& graph : graphs) EXPECT_TRUE(graph.wait(20));
    for (unsigned rank = 0; rank + 1 < ranks; ++rank) {
        ASSERT_TRUE(crew.seat(rank).fault().has_value());
        EXPECT_EQ(crew.seat(rank).fault()->kind, FaultKind::aborted);
    }
    // A graph that is launched after it does not wait either.
    graphs[0].launch();
    EXPECT_TRUE(graphs[0].wait(20));
}

// A graph is launched long after it was captured: what the others have mapped by then is written straight, and nothing passes
// through the arenas. What they have mapped no longer goes that way again.
TEST(CopyGraphs, MemoryThatIsMappedAfterTheCapture) {
    Crew crew(2);
    if (!crew.ready()) GTEST_SKIP() << Machine::get().missing();
    std::atomic<bool> mapped{false};
    for (unsigned rank = 0; rank < 2; ++rank) {
        crew.seat(rank).ask([&crew, &mapped, rank](const void* address, Bytes) {
            const auto offset =
                static_cast<std::uint64_t>(static_cast<const char*>(address) - crew.at(rank, 0));
            return mapped ? protocol::Token{1, offset} : protocol::Token{};
        });
        crew.fill(rank, send_at, 4000, static_cast<char>('a' + rank));
    }
    std::vector<CapturedTasks> graphs;
    for (unsigned rank = 0; rank < 2; ++rank)
        graphs.emplace_back(rank, crew.rig().stream(rank), [&](void*) {
            crew.start(rank, task_of(crew, {Shape::copies, true}, rank, 1000));
        });
    const auto in_arena = [&](unsigned rank) {
        Values found(4000);
        const protocol::ArenaLayout layout{2};
        crew.rig().read(
            found.data(),
            static_cast<char*>(crew.seat(rank).arena().address()) + layout.copy_lane(0, rank, 1 - rank),
            found.size());
        return found;
    };
    for (const bool now : {true, false}) {
        mapped = now;
        for (unsigned rank = 0; rank < 2; ++rank) crew.fill(rank, recv_at, 8000, 'x');
        for (const CapturedTasks& graph : graphs) graph.launch();
        for (const CapturedTasks& graph : graphs) ASSERT_TRUE(graph.wait(20));
        for (unsigned rank = 0; rank < 2; ++rank) {
            EXPECT_EQ(crew.read(rank, recv_at + (1 - rank) * 4000, 4000),
                      Values(4000, static_cast<char>('b' - rank)));
            EXPECT_EQ(in_arena(rank), now ? Values(4000, 0) : Values(4000, static_cast<char>('b' - rank)));
        }
    }
}

using GraphGroups = ContextTest;

// The other one needs it to the end, however late it launches its own.
TEST_F(GraphGroups, ARankLeavesWhenItsLaunchedGraphHasEnded) {
    constexpr std::size_t count = 5000;
    GroupOptions options;
    options.timeout = std::chrono::seconds(20);
    auto groups = Group::local(*context_, {Place::gpu(0), Place::gpu(gpu_of(1))}, options);
    ASSERT_TRUE(groups) << groups.error().to_string();
    const auto rig = collective_seat::make_rig(2);
    std::vector<Allocation> memory;
    std::vector<CapturedTasks> graphs;
    for (unsigned rank = 0; rank < 2; ++rank) {
        memory.push_back(context_->allocate(Place::gpu(gpu_of(rank)), count * sizeof(int)).value());
        rig->write(memory[rank].address(), std::vector<int>(count, 3 + static_cast<int>(rank)).data(),
                   count * sizeof(int));
        graphs.emplace_back(rank, rig->stream(rank), [&](void* stream) {
            void* const own = memory[rank].address();
            ASSERT_TRUE(
                (*groups)[rank].all_reduce(own, own, count, Dtype::i32, {}, static_cast<CUstream>(stream)));
        });
    }
    graphs[0].launch();
    std::thread leaves([&] { const Group gone = std::move((*groups)[0]); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    graphs[1].launch();
    leaves.join();
    for (unsigned rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(graphs[rank].wait());
        std::vector<int> found(count);
        rig->read(found.data(), memory[rank].address(), count * sizeof(int));
        EXPECT_EQ(found, std::vector<int>(count, 7)) << rank;
    }
    EXPECT_TRUE((*groups)[1].status());
}

// More than a stream's queue holds: the thread that enqueues them waits outside of the driver, and goes on
// when the other rank comes.
TEST(CopyQueue, ManyTasksBeforeTheOtherRankComes) {
    Crew crew(2);
    if (!crew.ready()) GTEST_SKIP() << Machine::get().missing();
    constexpr unsigned tasks = 400;
    constexpr unsigned max = 240;
    const auto task = [&](unsigned rank, unsigned number) {
        return task_of(crew, {Shape::copies, false}, rank, 64, send_at, recv_at + number * 1024);
    };
    for (unsigned rank = 0; rank < 2; ++rank) crew.fill(rank, send_at, 256, static_cast<char>('a' + rank));
    std::atomic<unsigned> taken{0};
    std::thread first([&] {
        for (unsigned i = 0; i < tasks; ++i, ++taken) crew.start(0, task(0, i));
    });
    while (taken < max) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(taken, max);
    for (unsigned i = 0; i < tasks; ++i) crew.start(1, task(1, i));
    first.join();
    crew.finish();
    for (unsigned i = 0; i < tasks; ++i)
        EXPECT_EQ(crew.read(0, recv_at + i * 1024 + 256, 256), Values(256, 'b'));
}

// An abort ends that wait.
TEST(CopyQueue, AbortedWhileItWaitsForRoom) {
    Crew crew(2, 0);
    if (!crew.ready()) GTEST_SKIP() << Machine::get().missing();
    const auto task = task_of(crew, {Shape::copies, false}, 0, 64, send_at, recv_at);
    std::thread first([&] {
        for (unsigned i = 0; i < 400; ++i) crew.start(0, task);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    crew.seat(0).abort();
    first.join();
    EXPECT_TRUE(crew.wait_idle(0));
}

class Collectives : public GpuTest {};

// Every task adds up what the one before has left, on the other of two streams.
TEST_F(Collectives, TasksOnTwoStreamsStayInOrder) {
    Crew& crew = Crew::of(ranks);
    ASSERT_TRUE(crew.ready());
    constexpr unsigned tasks = 12;
    const auto others = collective_seat::make_rig(ranks);
    const auto place_of = [](unsigned number) { return send_at + number * 65536; };
    for (unsigned rank = 0; rank < ranks; ++rank) {
        Values ones(4 * 1000);
        for (std::size_t i = 0; i < 1000; ++i)
            collective_seat::encode(Element::f32, 1.0, ones.data() + 4 * i);
        crew.write(rank, place_of(0), ones);
    }
    for (unsigned number = 0; number < tasks; ++number) {
        for (unsigned rank = 0; rank < ranks; ++rank) {
            const Way way{number % 3 == 0 ? Shape::packets : Shape::slices, number % 2 == 0};
            const auto task = task_of(crew, way, rank, 1000, place_of(number), place_of(number + 1));
            collective_seat::Rig& rig = number % 2 == 0 ? crew.rig() : *others;
            ASSERT_TRUE(crew.seat(rank).run(task, rig.stream(rank)).ok());
        }
    }
    crew.finish();
    double expected = 1;
    for (unsigned number = 0; number < tasks; ++number) expected *= ranks;
    for (unsigned rank = 0; rank < ranks; ++rank) {
        const Values last = crew.read(rank, place_of(tasks), 4 * 1000);
        for (std::size_t i = 0; i < 1000; ++i)
            ASSERT_EQ(collective_seat::decode(Element::f32, last.data() + 4 * i), expected)
                << "rank " << rank;
    }
}

// Their tasks are on the GPUs side by side.
TEST_F(Collectives, TwoGroupsAtATime) {
    Crew one(ranks);
    Crew two(ranks);
    ASSERT_TRUE(one.ready() && two.ready());
    collective_seat::Random random(3);
    std::vector<Values> inputs;
    for (unsigned rank = 0; rank < ranks; ++rank) {
        inputs.push_back(collective_seat::some_values(Element::f32, Combine::sum, 999, ranks, random));
        one.write(rank, send_at, inputs[rank]);
        two.write(rank, send_at, inputs[rank]);
    }
    for (unsigned round = 0; round < 200; ++round) {
        const Way way{round % 2 == 0 ? Shape::packets : Shape::slices, false};
        // The ranks of one group come in the order that those of the other do not.
        for (unsigned r = 0; r < ranks; ++r) {
            one.start(r, task_of(one, way, r, 999));
            two.start(ranks - 1 - r, task_of(two, way, ranks - 1 - r, 999));
        }
    }
    one.finish();
    two.finish();
    for (unsigned rank = 0; rank < ranks; ++rank) {
        const Values output = one.read(rank, recv_at, 999 * 4);
        EXPECT_EQ(collective_seat::wrong_element(Element::f32, Combine::sum, inputs, {}, output), "");
        EXPECT_EQ(two.read(rank, recv_at, 999 * 4), output);
    }
}

// 2^32 bytes and some more.
TEST_F(Collectives, MoreThanFourGigabytes) {
    constexpr std::uint64_t bytes = (std::uint64_t{1} << 32) + 4099;
    constexpr std::size_t heap = 10_GiB;
    constexpr std::size_t to = 5_GiB;
    constexpr unsigned n = 2;
    Crew crew(n, 60'000'000'000, heap);
    ASSERT_TRUE(crew.ready());
    const std::uint64_t looks[] = {0, bytes / 2 - 50, (std::uint64_t{1} << 32) - 50, bytes - 100};
    for (const Way way : {Way{Shape::slices, false}, Way{Shape::slices, true},
                          Way{Shape::pushed_slices, false}, Way{Shape::pairs, false}}) {
        SCOPED_TRACE(fmt::format("shape {}, staged {}", static_cast<unsigned>(way.shape), way.staged));
        collective_seat::Random random(9);
        std::vector<std::vector<Values>> given(n);
        for (unsigned rank = 0; rank < n; ++rank) {
            for (const std::uint64_t at : looks) {
                given[rank].push_back(
                    collective_seat::some_values(Element::u8, Combine::sum, 100, n, random));
                crew.write(rank, at, given[rank].back());
                crew.fill(rank, to + at, 100, '\x31');
            }
            crew.fill(rank, to + bytes, 64, '\x5a');
        }
        std::vector<CollectiveTask> tasks;
        for (unsigned rank = 0; rank < n; ++rank) {
            CollectiveTask task = task_of(crew, way, rank, 0, 0, to);
            task.element = Element::u8;
            task.blocks = 32;
            task.to[1 - rank] = task.from[1 - rank] = {0, bytes};
            task.to[rank] = task.from[rank] = {};
            for (unsigned r = 0; r < n; ++r) task.slices[r] = even_slice(bytes, r, n);
            tasks.push_back(task);
        }
        crew.run(tasks);
        for (unsigned rank = 0; rank < n; ++rank) {
            for (std::size_t i = 0; i < given[rank].size(); ++i) {
                Values expected = given[1 - rank][i];
                for (std::size_t k = 0; k < expected.size() && way.shape != Shape::pairs; ++k)
                    expected[k] = static_cast<char>(expected[k] + given[rank][i][k]);
                EXPECT_EQ(crew.read(rank, to + looks[i], 100), expected)
                    << "rank " << rank << " at " << looks[i];
            }
            EXPECT_EQ(crew.read(rank, to + bytes, 64), Values(64, '\x5a')) << "behind the end";
        }
    }
}

// Thread blocks take the tiles of what is long as they come, and each task finds the tiles' counter as the first one did.
TEST_F(Collectives, LongBlocksTimeAndAgain) {
    constexpr std::size_t bytes = (32 << 20) + 70'003, from = 4096, to = 40 << 20;
    constexpr unsigned n = 2;
    Crew crew(n, 30'000'000'000, 80 << 20);
    ASSERT_TRUE(crew.ready());
    collective_seat::Random random(11);
    const auto next_task = [&](Shape shape, unsigned rank, unsigned shift) {
        const unsigned peer = 1 - rank;
        CollectiveTask task = task_of(crew, {shape, false}, rank, 0, from + shift, to);
        task.element = Element::u8;
        task.combine = Combine::none;
        task.blocks = 32;
        task.pair_blocks_max =
            std::min(protocol::max_blocks, 2 * crew.seat(0).multiprocessors() / crew.max_on_a_gpu());
        task.to[peer] = task.from[peer] = {0, bytes};
        task.from_tokens[peer] = {1, to};
        task.to[rank] = task.from[rank] = {};
        for (unsigned r = 0; r < n; ++r)
            task.slices[r] = {bytes, 0, 0, static_cast<std::uint16_t>(2 - r),
                              static_cast<std::uint16_t>(1 + r)};
        return task;
    };
    for (const Shape shape : {Shape::pairs, Shape::slices, Shape::pairs})
        for (const unsigned shift : {0, 0, 3}) {  // source and target lie alike, and not
            std::vector<Values> given;
            std::vector<CollectiveTask> tasks;
            for (unsigned rank = 0; rank < n; ++rank) {
                given.push_back(collective_seat::some_values(Element::u8, Combine::none, bytes, n, random));
                crew.write(rank, from + shift, given[rank]);
                crew.fill(rank, to, bytes + 64, '\x31');
                tasks.push_back(next_task(shape, rank, shift));
            }
            crew.run(tasks);
            for (unsigned rank = 0; rank < n; ++rank) {
                EXPECT_TRUE(crew.holds(rank, to, given[1 - rank]))
                    << "rank " << rank << ", shift " << shift << ", shape " << static_cast<unsigned>(shape);
                EXPECT_EQ(crew.read(rank, to + bytes, 64), Values(64, '\x31')) << "behind the end";
            }
        }
}

// Growing memory of pools and of mappings, as frameworks have it.
TEST_F(Collectives, ExtentsOfOtherMemory) {
    const auto seat = backend().seats()->seat({0, 1, Place::gpu(0)});
    ASSERT_TRUE(seat.ok()) << seat.error().to_string();
    for (const MemoryKind kind : {MemoryKind::device, MemoryKind::vmm, MemoryKind::pool}) {
        const auto memory = backend().allocator()->allocate(Place::gpu(0), 3_MiB, kind);
        ASSERT_TRUE(memory.ok());
        const auto extent = (*seat)->extent(static_cast<char*>(memory->address()) + 5000);
        ASSERT_TRUE(extent.ok()) << to_string(kind) << ": " << extent.error().to_string();
        EXPECT_LE(extent->whole.address(), memory->address());
        EXPECT_NE(extent->identity, 0u);
        EXPECT_TRUE(extent->shares_in_place);
        EXPECT_FALSE(extent->goes_on) << to_string(kind);
        EXPECT_EQ(extent->never_lent, nullptr);
    }
    const Allocation pieces = raw_memory(Raw::vmm_pieces, 0, 9_MiB);
    const auto first = (*seat)->extent(pieces.address());
    ASSERT_TRUE(first.ok()) << first.error().to_string();
    EXPECT_LT(first->whole.size(), 9_MiB);
    EXPECT_TRUE(first->goes_on);
    const auto pinned = backend().allocator()->allocate(Place::host(), 4096, MemoryKind::pinned);
    ASSERT_TRUE(pinned.ok());
    const auto own = (*seat)->extent(pinned->address());
    ASSERT_TRUE(own.ok()) << own.error().to_string();
    EXPECT_NE(own->never_lent, nullptr) << "a kernel reads it in place, the others do not";
    std::vector<char> pageable(4096);
    const auto refused = (*seat)->extent(pageable.data());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
}

// A stream of a GPU that is not the rank's.
TEST_F(Collectives, AStreamOfAnotherGpuIsRefused) {
    if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
    const auto seat = backend().seats()->seat({0, 1, Place::gpu(0)});
    ASSERT_TRUE(seat.ok());
    const auto rig = collective_seat::make_rig(2);
    CollectiveTask task;
    task.signature = 1;
    const auto run = (*seat)->run(task, rig->stream(1));
    ASSERT_FALSE(run.ok());
    EXPECT_EQ(run.error().code, ErrorCode::invalid_argument) << run.error().to_string();
}

}  // namespace
}  // namespace sidestep::gpu_tests::collective
