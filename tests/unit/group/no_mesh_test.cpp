// Groups on machines where not every GPU reaches every other one: the arenas lie in host memory.
#include "tests/unit/group/ranks.hpp"

namespace sidestep::groups {
namespace {

class NoMesh : public testing::Test {
protected:
    void open(const std::string& machine) {
        ContextOptions options;
        options.machine = machine;
        options.peer_folder = folder.path;
        auto opened = Context::open(options);
        ASSERT_TRUE(ok(opened));
        context.emplace(std::move(*opened));
    }
    std::vector<Group> make(const std::vector<int>& numbers, GroupPolicy policy = GroupPolicy::automatic) {
        std::vector<Place> places;
        for (const int number : numbers) places.push_back(Place::gpu(number));
        GroupOptions options;
        options.timeout = std::chrono::milliseconds(30'000);
        options.policy = policy;
        auto made = Group::local(*context, places, options);
        EXPECT_TRUE(ok(made));
        return made ? std::move(*made) : std::vector<Group>();
    }

    // Memory of `count` values of i32 at every rank.
    std::vector<Allocation> memory(const std::vector<Group>& groups, std::size_t count) {
        std::vector<Allocation> all;
        for (const Group& group : groups) {
            auto one = context->allocate(group.place(), std::max<std::size_t>(count, 1) * sizeof(int));
            EXPECT_TRUE(ok(one));
            all.push_back(std::move(*one));
        }
        return all;
    }

    static bool holds_sums(const Allocation& recv, int ranks, std::size_t count) {
        return holds(recv, count, [&](std::size_t i) {
            int sum = 0;
            for (int rank = 0; rank < ranks; ++rank) sum += small_number(rank, i);
            return sum;
        });
    }
    static void fill_own(const Group& group, const Allocation& send, std::size_t count) {
        fill(send, count, [&](std::size_t i) { return small_number(group.rank(), i); });
    }

    void all_reduce(std::vector<Group>& groups, std::size_t count) {
        const auto sends = memory(groups, count);
        const auto recvs = memory(groups, count);
        const int n = groups.front().ranks();
        on_all(groups, [&](Group& group) {
            const auto r = static_cast<std::size_t>(group.rank());
            fill_own(group, sends[r], count);
            for (int round = 0; round < 2; ++round) {
                ASSERT_TRUE(ok(group.all_reduce(at<int>(sends[r]), at<int>(recvs[r]), count, Dtype::i32)));
                ASSERT_TRUE(ok(group.wait()));
                EXPECT_TRUE(holds_sums(recvs[r], n, count))
                    << "rank " << group.rank() << ", " << count << " values";
            }
        });
    }

    void all_to_all(std::vector<Group>& groups, std::size_t count) {
        const int n = groups.front().ranks();
        const auto sends = memory(groups, count * static_cast<std::size_t>(n));
        const auto recvs = memory(groups, count * static_cast<std::size_t>(n));
        on_all(groups, [&](Group& group) {
            const auto r = static_cast<std::size_t>(group.rank());
            fill_own(group, sends[r], count * static_cast<std::size_t>(n));
            ASSERT_TRUE(ok(group.all_to_all(at<int>(sends[r]), at<int>(recvs[r]), count, Dtype::i32)));
            ASSERT_TRUE(ok(group.wait()));
            std::size_t wrong = 0;
            for (int from = 0; from < n; ++from)
                for (std::size_t i = 0; i < count; ++i)
                    wrong += at<int>(recvs[r])[static_cast<std::size_t>(from) * count + i] !=
                             small_number(from, r * count + i);
            EXPECT_EQ(wrong, 0u) << "rank " << group.rank();
        });
    }

    Folder folder;
    std::optional<Context> context;
};

// gpu:0 and gpu:5 of a DGX-1 have no NVLink, and the driver gives no other way.
TEST_F(NoMesh, EveryShapeThroughHostMemory) {
    open("dgx-1v");
    ASSERT_FALSE(context->topology().peer_access(0, 5).allowed);
    auto groups = make({0, 5, 1, 4});
    ASSERT_EQ(groups.size(), 4u);
    for (const std::size_t count : {0, 1, 77, 40'000, 700'001}) {
        all_reduce(groups, count);
        all_to_all(groups, std::min<std::size_t>(count, 100'000));
    }
}

TEST_F(NoMesh, ExplainSaysWhyOnAllRanksAlike) {
    open("dgx-1v");
    auto groups = make({0, 1, 5});
    ASSERT_EQ(groups.size(), 3u);
    std::string first;
    for (const Group& group : groups) {
        const auto plan = group.explain(Collective::all_reduce, 1 << 20, Dtype::f32);
        ASSERT_TRUE(ok(plan));
        EXPECT_NE(plan->reason.find(
                      "the arenas lie in host memory: gpu:0 and gpu:5 have no peer access (gpu:0 cannot "
                      "reach gpu:5: "),
                  std::string::npos)
            << plan->reason;
        if (first.empty()) first = plan->reason;
        EXPECT_EQ(plan->reason, first);
        EXPECT_EQ(plan->expected_us,
                  groups[0].explain(Collective::all_reduce, 1 << 20, Dtype::f32)->expected_us);
    }
    // Those that reach each other need none of it.
    auto pair = make({0, 1});
    ASSERT_EQ(pair.size(), 2u);
    const auto direct = pair[0].explain(Collective::all_reduce, 1 << 20, Dtype::f32);
    ASSERT_TRUE(ok(direct));
    EXPECT_EQ(direct->reason.find("host memory"), std::string::npos) << direct->reason;
    EXPECT_LT(direct->expected_us,
              groups[0].explain(Collective::all_reduce, 1 << 20, Dtype::f32)->expected_us);
}

// What is not built is said where it would be quicker.
TEST_F(NoMesh, ExplainNamesMulticastWhereTheMachineHasIt) {
    struct {
        const char* machine;
        std::vector<int> gpus;
        Collective collective;
        std::size_t count;
        bool named;
    } const cases[] = {
        {"dgx-h100", {0, 1, 2}, Collective::all_reduce, 4 << 20, true},
        {"dgx-h100", {0, 1, 2}, Collective::all_reduce, 4 << 19, false},
        {"dgx-h100", {0, 1, 2}, Collective::all_gather, 4 << 20, false},
        {"dgx-h100", {0, 1}, Collective::all_reduce, 4 << 20, false},
        {"dgx-a100", {0, 1, 2}, Collective::all_reduce, 4 << 20, false},
        {"dgx-1v", {0, 1, 2}, Collective::all_reduce, 4 << 20, false},
    };
    for (const auto& one : cases) {
        open(one.machine);
        auto groups = make(one.gpus);
        ASSERT_EQ(groups.size(), one.gpus.size());
        const auto plan = groups[0].explain(one.collective, one.count, Dtype::f32);
        ASSERT_TRUE(ok(plan));
        const bool named = std::any_of(plan->refused.begin(), plan->refused.end(),
                                       [](const Refused& other) { return other.path == "NVLink multicast"; });
        EXPECT_EQ(named, one.named) << one.machine << '\n' << plan->to_string();
    }
}

// Reductions and what is only moved, by rings through host memory and through GPU memory.
TEST_F(NoMesh, LargeOnesTakeARing) {
    for (const char* machine : {"dgx-1v", "pcie-2s"}) {
        open(machine);
        const bool mesh = std::string(machine) == "pcie-2s";
        auto groups = make(mesh ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0, 5, 1});
        ASSERT_FALSE(groups.empty());
        const std::size_t count = (8 << 20) + 3;
        const int n = groups.front().ranks();
        for (const Collective collective : {Collective::reduce, Collective::broadcast})
            EXPECT_EQ(groups[0].explain(collective, count, Dtype::i32)->algorithm,
                      mesh && collective == Collective::reduce ? "slices" : "ring")
                << machine;
        const auto sends = memory(groups, count);
        const auto recvs = memory(groups, count);
        on_all(groups, [&](Group& group) {
            const auto r = static_cast<std::size_t>(group.rank());
            fill_own(group, sends[r], count);
            ASSERT_TRUE(ok(group.reduce(at<int>(sends[r]), at<int>(recvs[r]), count, Dtype::i32, {}, 1)));
            ASSERT_TRUE(ok(group.broadcast(at<int>(recvs[r]), at<int>(recvs[r]), count, Dtype::i32, 1)));
            ASSERT_TRUE(ok(group.wait()));
            EXPECT_TRUE(holds_sums(recvs[r], n, count)) << "rank " << group.rank() << " on " << machine;
        });
    }
}

TEST_F(NoMesh, MemoryThatSomeCannotMapIsCarriedAndSaysSo) {
    open("dgx-1v");
    auto groups = make({0, 5});
    ASSERT_EQ(groups.size(), 2u);
    const auto sends = memory(groups, 1 << 20);
    on_all(groups, [&](Group& group) {
        const auto r = static_cast<std::size_t>(group.rank());
        const auto attached = group.attach(sends[r].buffer());
        ASSERT_FALSE(attached.ok());
        EXPECT_NE(attached.error().message.find("cannot reach"), std::string::npos)
            << attached.error().message;
    });
    all_reduce(groups, 1 << 20);
}

TEST_F(NoMesh, CopyEnginesAloneAreRefused) {
    open("dgx-1v");
    auto groups = make({0, 5, 6}, GroupPolicy::zero_sm);
    ASSERT_EQ(groups.size(), 3u);
    const auto sends = memory(groups, 64);
    for (Group& group : groups) {
        const auto r = static_cast<std::size_t>(group.rank());
        const auto done = group.broadcast(sends[r].address(), sends[r].address(), 64, Dtype::u8, 0);
        ASSERT_FALSE(done.ok());
        EXPECT_EQ(done.error().code, ErrorCode::unsupported);
        EXPECT_NE(done.error().message.find("the arenas lie in host memory (gpu:0 and gpu:5"),
                  std::string::npos)
            << done.error().message;
    }
}

// Peer access over PCIe: the arenas stay where they are, and are priced as what they are.
TEST_F(NoMesh, PeersOverPcieArePricedSo) {
    open("pcie-2s");
    ASSERT_TRUE(context->topology().peer_access(0, 3).allowed);
    auto groups = make({0, 1, 2, 3});
    ASSERT_EQ(groups.size(), 4u);
    const auto plan = groups[2].explain(Collective::all_reduce, 64 << 20, Dtype::f32);
    ASSERT_TRUE(ok(plan));
    EXPECT_EQ(plan->reason.find("host memory"), std::string::npos) << plan->reason;
    EXPECT_LT(plan->expected_bus_gb_per_s, 32);
    EXPECT_GT(plan->expected_bus_gb_per_s, 2);
    EXPECT_EQ(plan->algorithm, "ring");
    EXPECT_EQ(plan->memory, "not needed: pieces pass through the arenas of neighbours");
    all_reduce(groups, 300'001);
    all_reduce(groups, 8 << 20);
}

}  // namespace
}  // namespace sidestep::groups
