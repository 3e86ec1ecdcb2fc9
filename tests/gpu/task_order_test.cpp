// Tasks of a rank run one after the other, as the program enqueued, captured and launched them, on whichever streams and
// in whichever graphs; and what overlaps all the same is a fault, never a number.
#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include <fmt/format.h>

#include "backends/cuda/cuda_backend.hpp"
#include "tests/gpu/collective_rig.hpp"
#include "tests/gpu/raw_memory.hpp"
#include "tests/gpu/slow_stream.hpp"

namespace sidestep::gpu_tests::task_order {
namespace {

using collective_seat::Crew;
using collective_seat::Values;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::FaultKind;
using protocol::Shape;

// Streams that wait share the queues of a GPU, eight by default.
unsigned ranks_of(Shape shape) {
    return shape == Shape::copies ? 2 : 4;
}
constexpr std::uint64_t count = 3000;  // floats of a rank

bool exchanges(Shape shape) {
    return shape == Shape::pairs || shape == Shape::copies;
}

// Link `number` of a chain. Reductions add up what the link before has left; exchanges send on what a rank has kept.
class Chain {
public:
    Chain(Crew& crew, Shape shape) : crew_(crew), shape_(shape) {}

    std::size_t place(unsigned number) const { return 4096 + number * place_bytes; }
    std::size_t own_part(unsigned rank) const { return exchanges(shape_) ? rank * count * 4 : 0; }

    CollectiveTask link(unsigned rank, unsigned number) const {
        const unsigned n = crew_.ranks();
        CollectiveTask task;
        task.shape = shape_;
        task.element = Element::f32;
        task.combine = exchanges(shape_) ? Combine::none : Combine::sum;
        task.blocks = 2;
        task.signature = 11;
        task.number = number + 1;
        if (number % 2 == 1) task.eager_max = 0;  // of pairs: both of their kernels
        const std::size_t from = place(number) + own_part(rank), to = place(number + 1);
        task.send = crew_.at(rank, from);
        task.recv = crew_.at(rank, to);
        task.send_token = {1, from};
        task.recv_token = {1, to};
        for (unsigned r = 0; r < n; ++r) {
            task.to[r] = task.from[r] = {0, count * 4};
            task.slices[r] = collective_seat::even_slice(count, r, n);
            if (!exchanges(shape_)) continue;
            task.from[r].offset = r * count * 4;
            task.from_tokens[r] = {1, to + r * count * 4};
        }
        return task;
    }

    // Ones where the chain begins, and what is no number of it everywhere else.
    void fill(unsigned links) {
        for (unsigned rank = 0; rank < crew_.ranks(); ++rank) {
            Values ones(count * 4);
            for (std::size_t i = 0; i < count; ++i)
                collective_seat::encode(Element::f32, 1.0, ones.data() + 4 * i);
            crew_.fill(rank, place(0), (links + 1) * place_bytes, '\x77');
            crew_.write(rank, place(0) + own_part(rank), ones);
        }
    }
    // Numbers of the last link that are not what comes out in order.
    std::size_t wrong(unsigned links) {
        double expected = 1;
        if (!exchanges(shape_))
            for (unsigned i = 0; i < links; ++i) expected *= crew_.ranks();
        const std::uint64_t parts = exchanges(shape_) ? crew_.ranks() : 1;
        std::size_t found = 0;
        for (unsigned rank = 0; rank < crew_.ranks(); ++rank) {
            const Values last = crew_.read(rank, place(links), parts * count * 4);
            for (std::size_t i = 0; i < parts * count; ++i)
                found += collective_seat::decode(Element::f32, last.data() + 4 * i) != expected;
        }
        return found;
    }

private:
    static constexpr std::size_t place_bytes = 65536;
    static_assert(place_bytes >= 4 * count * 4);
    Crew& crew_;
    const Shape shape_;
};

class TaskOrder : public testing::TestWithParam<Shape> {
protected:
    void SetUp() override {
        if (!crew().ready()) GTEST_SKIP() << Machine::get().missing();
        other_ = collective_seat::make_rig(ranks());
    }
    void TearDown() override {
        if (other_) crew().finish();
    }
    static unsigned ranks() { return ranks_of(GetParam()); }
    static Crew& crew() { return Crew::of(ranks()); }
    void* stream(unsigned rank, bool second) {
        return second ? other_->stream(rank) : crew().rig().stream(rank);
    }
    void enqueue(const Chain& chain, unsigned rank, unsigned number, void* on) {
        const auto enqueued = crew().seat(rank).run(chain.link(rank, number), on);
        ASSERT_TRUE(enqueued.ok()) << enqueued.error().to_string();
    }
    std::vector<CapturedTasks> capture(const Chain& chain, unsigned begin, unsigned end, bool second) {
        std::vector<CapturedTasks> graphs;
        for (unsigned rank = 0; rank < ranks(); ++rank)
            graphs.emplace_back(rank, stream(rank, second), [&](void* on) {
                for (unsigned number = begin; number < end; ++number) enqueue(chain, rank, number, on);
            });
        return graphs;
    }
    static void launch(const std::vector<CapturedTasks>& graphs) {
        for (const CapturedTasks& graph : graphs) graph.launch();
    }
    static void wait(const std::vector<CapturedTasks>& graphs) {
        for (const CapturedTasks& graph : graphs) ASSERT_TRUE(graph.wait());
    }
    void run(const Chain& chain, unsigned begin, unsigned end, bool second) {
        for (unsigned number = begin; number < end; ++number)
            for (unsigned rank = 0; rank < ranks(); ++rank)
                enqueue(chain, rank, number, stream(rank, second));
    }
    // Rounds of one chain, each begun while nothing is under way.
    static constexpr unsigned rounds = 8;
    static constexpr unsigned part = 10;  // links

    std::unique_ptr<collective_seat::Rig> other_;
};

TEST_P(TaskOrder, AGraphThenAStream) {
    Chain chain(crew(), GetParam());
    const auto graphs = capture(chain, 0, part, false);
    for (unsigned round = 0; round < rounds; ++round) {
        chain.fill(2 * part);
        launch(graphs);
        run(chain, part, 2 * part, true);
        crew().finish();
        EXPECT_EQ(chain.wrong(2 * part), 0u) << "round " << round;
    }
}

TEST_P(TaskOrder, AStreamThenAGraph) {
    Chain chain(crew(), GetParam());
    const auto graphs = capture(chain, part, 2 * part, true);
    for (unsigned round = 0; round < rounds; ++round) {
        chain.fill(2 * part);
        run(chain, 0, part, false);
        launch(graphs);
        wait(graphs);
        EXPECT_EQ(chain.wrong(2 * part), 0u) << "round " << round;
    }
}

TEST_P(TaskOrder, TwoGraphsAtATimeAndAStreamBehindThem) {
    Chain chain(crew(), GetParam());
    const auto first = capture(chain, 0, part, false);
    const auto second = capture(chain, part, 2 * part, true);
    for (unsigned round = 0; round < rounds; ++round) {
        chain.fill(2 * part + 2);
        launch(first);
        launch(second);
        run(chain, 2 * part, 2 * part + 2, false);
        crew().finish();
        EXPECT_EQ(chain.wrong(2 * part + 2), 0u) << "round " << round;
    }
}

// The graph is launched again and again, each time between tasks of a stream that adds to what it works on.
TEST_P(TaskOrder, AGraphReplayedWhileAStreamGoesOn) {
    Chain chain(crew(), GetParam());
    const auto graphs = capture(chain, 1, 4, true);
    chain.fill(5);
    for (unsigned round = 0; round < rounds; ++round) {
        run(chain, 0, 1, false);
        launch(graphs);
        run(chain, 4, 5, false);
    }
    crew().finish();
    EXPECT_EQ(chain.wrong(5), 0u);
}

// Graphs of one group beside the stream of another.
TEST_P(TaskOrder, TwoGroups) {
    Crew another(ranks());
    ASSERT_TRUE(another.ready());
    Chain chain(crew(), GetParam());
    Chain beside(another, GetParam());
    const auto graphs = capture(chain, 0, part, false);
    for (unsigned round = 0; round < rounds; ++round) {
        chain.fill(part);
        beside.fill(part);
        launch(graphs);
        for (unsigned number = 0; number < part; ++number)
            for (unsigned rank = 0; rank < ranks(); ++rank) another.start(rank, beside.link(rank, number));
        another.finish();
        wait(graphs);
        EXPECT_EQ(chain.wrong(part) + beside.wrong(part), 0u) << "round " << round;
    }
}

const auto name = [](const testing::TestParamInfo<Shape>& info) {
    std::string text = collective_seat::name_of(info.param);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
    return text;
};
INSTANTIATE_TEST_SUITE_P(Shapes, TaskOrder,
                         testing::Values(Shape::packets, Shape::lamport, Shape::packets_two_phase,
                                         Shape::lines, Shape::slices, Shape::pushed_slices, Shape::pairs,
                                         Shape::ring),
                         name);
INSTANTIATE_TEST_SUITE_P(Copies, TaskOrder, testing::Values(Shape::copies), name);

// Streams of one capture that do not follow each other.
class ForkedCapture : public TaskOrder {};

TEST_P(ForkedCapture, IsOneOrder) {
    Chain chain(crew(), GetParam());
    std::vector<CapturedTasks> graphs;
    for (unsigned rank = 0; rank < ranks(); ++rank)
        graphs.emplace_back(rank, stream(rank, false), [&](void* on) {
            const ForkedStream fork(rank, on, stream(rank, true));
            for (unsigned number = 0; number < 2 * part; ++number)
                enqueue(chain, rank, number, number % 3 == 1 ? fork.stream() : on);
        });
    for (unsigned round = 0; round < rounds; ++round) {
        chain.fill(2 * part);
        launch(graphs);
        wait(graphs);
        EXPECT_EQ(chain.wrong(2 * part), 0u) << "round " << round;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ForkedCapture,
                         testing::Values(Shape::packets, Shape::lamport, Shape::packets_two_phase,
                                         Shape::lines, Shape::slices, Shape::pushed_slices, Shape::pairs,
                                         Shape::copies, Shape::ring),
                         name);

// A graph of which somebody has taken out the nodes that keep the order, as no program does: of two tasks at a time the
// one that comes second says so, at once.
class Overlap : public testing::TestWithParam<Shape> {};

TEST_P(Overlap, IsAFault) {
    Crew alone(2, 0);
    if (!alone.ready()) GTEST_SKIP() << Machine::get().missing();
    Chain chain(alone, GetParam());
    const auto others = collective_seat::make_rig(2);
    const CapturedTasks graph(
        0, alone.rig().stream(0), [&](void*) { alone.start(0, chain.link(0, 0)); },
        CapturedTasks::Events::removed);
    graph.launch();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(alone.seat(0).fault().has_value());
    ASSERT_TRUE(alone.seat(0).run(chain.link(0, 1), others->stream(0)).ok());
    ASSERT_TRUE(graph.wait(5)) << "both still wait for the other rank";
    EXPECT_TRUE(alone.wait_idle(0));
    ASSERT_TRUE(alone.seat(0).fault().has_value());
    EXPECT_EQ(alone.seat(0).fault()->kind, FaultKind::overlapped)
        << collective_seat::to_string(*alone.seat(0).fault());
    EXPECT_EQ(alone.seat(0).fault()->peer, 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Overlap,
                         testing::Values(Shape::packets, Shape::lamport, Shape::packets_two_phase,
                                         Shape::lines, Shape::slices, Shape::pushed_slices, Shape::pairs,
                                         Shape::ring),
                         name);

using SeatEnd = GpuTest;

// Its memory stays as long as a task may be under way, also where the driver fails to say whether one is.
TEST_F(SeatEnd, WaitsForATaskOfWhichTheDriverDoesNotTell) {
    const Allocation memory = raw_memory(Raw::device, 0, 64);
    CollectiveTask copying;
    copying.shape = Shape::copies;
    copying.send = memory.address();
    copying.recv = static_cast<char*>(memory.address()) + 32;
    copying.to[0] = copying.from[0] = {0, 32};
    for (const std::string fault :
         {"cuEventRecord:1", "cuEventQuery:2", "cuMemcpyAsync:1", "cuStreamWaitValue64:1"}) {
        auto seat = backend().seats()->seat({0, 1, Place::gpu(0)}).value();
        SlowStream stream(0);
        protocol::CopyRow row{};
        seat->meet(&row);
        const bool copies = !fault.starts_with("cuEvent");
        if (copies) {
            ASSERT_TRUE(seat->run(copying, stream.get()));  // makes ready with copies of its own
            ASSERT_TRUE(stream.drained(std::chrono::seconds(30)));
        }
        std::atomic<bool> ends{false};
        stream.run([&ends] {
            while (!ends) std::this_thread::yield();
        });
        ::setenv("FAKE_CUDA_FAIL", fault.c_str(), 1);
        (void)seat->run(copies ? copying : CollectiveTask(), stream.get()).ok();
        if (fault != "cuEventQuery:2") {
            EXPECT_FALSE(seat->idle().value()) << fault;
            EXPECT_FALSE(seat->at_rest().value()) << fault;
        }
        auto gone = std::async(std::launch::async, [&seat] { seat.reset(); });
        EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout) << fault;
        ends = true;
        gone.get();
        ::unsetenv("FAKE_CUDA_FAIL");
    }
}

// Those go on to copy within its memory where a call fails between them. The next seat makes ready what is left.
TEST_F(SeatEnd, WaitsForCopiesThatMakeStreamsReady) {
    for (const char* const fault : {"cuMemcpyAsync:2", "cuStreamWriteValue64:1"}) {
        const auto fresh = backends::cuda::create();
        ASSERT_TRUE(fresh->probe(machine().topology()).usable);
        ::setenv("FAKE_CUDA_OWN_QUEUE", "1", 1);
        std::unique_ptr<backend::Seat> seats[2];
        for (auto& seat : seats) {
            seat = fresh->seats()->seat({0, 1, Place::gpu(0)}).value();
            const Buffer& arena = seat->arena();
            ASSERT_TRUE(seat->reach(0, 0, {static_cast<char*>(arena.address()), arena.size()}));
        }
        ::unsetenv("FAKE_CUDA_OWN_QUEUE");
        ::setenv("FAKE_CUDA_ONE_QUEUE", "1", 1);
        std::atomic<bool> ends{false};
        SlowStream stream(0);
        stream.run([&ends] {
            while (!ends) std::this_thread::yield();
        });
        ::setenv("FAKE_CUDA_FAIL", fault, 1);
        const bool fails = !seats[0]->prepare_copies();
        ::unsetenv("FAKE_CUDA_FAIL");
        ::unsetenv("FAKE_CUDA_ONE_QUEUE");
        auto gone = std::async(std::launch::async, [&seats] { seats[0].reset(); });
        const auto waited = gone.wait_for(std::chrono::milliseconds(300));
        EXPECT_TRUE(!fails || waited == std::future_status::timeout) << fault;
        ends = true;
        EXPECT_TRUE(seats[1]->prepare_copies());
        gone.get();
        if (!fails) GTEST_SKIP() << "calls fail on a made-up driver alone";
    }
}

}  // namespace
}  // namespace sidestep::gpu_tests::task_order
