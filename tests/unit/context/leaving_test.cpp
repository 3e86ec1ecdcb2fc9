// What the others still do when a rank of their group has left.
#include <atomic>
#include <chrono>
#include <memory>

#include "collective/member.hpp"
#include "context/impl.hpp"
#include "tests/unit/group/ranks.hpp"
#include "tests/unit/group/seat_around.hpp"

namespace sidestep::groups {
namespace {

// Has a task, on a stream or in a graph, that was enqueued just when the memory of a rank that left was hidden; it ends when it
// was looked for so often.
class BusySeat final : public SeatAround {
public:
    BusySeat(std::unique_ptr<backend::Seat> seat, std::atomic<int>& looks, bool in_graph)
        : SeatAround(std::move(seat)), looks_(looks), in_graph_(in_graph) {}
    Result<void> reach(unsigned rank, unsigned slot, std::span<char> memory) override {
        if (rank == 1 && ++reached_ == 2) looks_ = 20;
        return SeatAround::reach(rank, slot, memory);
    }
    Result<bool> idle() override { return !in_graph_ && busy() ? Result<bool>(false) : SeatAround::idle(); }
    Result<bool> at_rest() override { return in_graph_ && busy() ? Result<bool>(false) : idle(); }

private:
    bool busy() { return looks_ > 0 && --looks_ > 0; }

    std::atomic<int>& looks_;
    const bool in_graph_;
    int reached_ = 0;
};

class Leaving : public GroupTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(InAGraphOrNot, Leaving, testing::Bool());

// The others hide the memory of a rank that has left, and then look whether a task may use it still.
TEST_P(Leaving, TheMemoryOfARankThatLeftStaysForATaskThatBeganBeforeItWasHidden) {
    std::atomic<int> looks{0};
    const backend::Registry& real = ContextAccess::impl(*context).registry;
    backend::Registry busy;
    busy.add(
        std::make_unique<SeatsAround>(
            real, [&](auto seat) { return std::make_unique<BusySeat>(std::move(seat), looks, GetParam()); }),
        context->topology());
    const GroupId id = *GroupId::create();
    std::unique_ptr<collective::Member> members[2];
    std::vector<std::thread> threads;
    for (const int rank : {0, 1})
        threads.emplace_back([&, rank] {
            auto member = collective::Member::join(
                {rank == 0 ? busy : real, true, folder.path, {id, rank, 2, Place::gpu(rank)}, {}, {}, {}});
            ASSERT_TRUE(ok(member));
            members[rank] = std::move(*member);
        });
    for (std::thread& thread : threads) thread.join();
    for (const int rank : {1, 0}) {
        ASSERT_TRUE(members[rank]);
        members[rank]->leave();
        while (!members[rank]->finished()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(looks, 0);
    }
}

}  // namespace
}  // namespace sidestep::groups
