// Arenas in host memory, which GPUs without peer access share.
#include <chrono>
#include <numeric>
#include <thread>

#include <sidestep/group.hpp>

#include "tests/gpu/collective_rig.hpp"

namespace sidestep::gpu_tests::host_arena {
namespace {

using protocol::CollectiveTask;
using protocol::Shape;

class HostArenas : public ContextTest {
protected:
    static constexpr std::size_t block = 300'001;

    void write(const Allocation& memory, const std::vector<char>& bytes) {
        driver::ScopedCudaContext current(machine().context(memory.buffer().place().index()));
        expect_success(
            cuda().cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(memory.address()), bytes.data(), bytes.size()),
            "cuMemcpyHtoD");
    }
    std::vector<char> read(const Allocation& memory, std::size_t bytes) {
        driver::ScopedCudaContext current(machine().context(memory.buffer().place().index()));
        std::vector<char> found(bytes);
        expect_success(
            cuda().cuMemcpyDtoH(found.data(), reinterpret_cast<CUdeviceptr>(memory.address()), bytes),
            "cuMemcpyDtoH");
        return found;
    }
    // By the copy engine of a GPU.
    void copy(unsigned gpu, void* to, const void* from) {
        driver::ScopedCudaContext current(machine().context(static_cast<int>(gpu)));
        expect_success(cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                            reinterpret_cast<CUdeviceptr>(from), 2 * block, nullptr),
                       "cuMemcpyAsync");
        expect_success(cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    }
    // What rank r sends, a block for each rank.
    static std::vector<char> sent(int rank) {
        std::vector<char> bytes(2 * block);
        std::iota(bytes.begin(), bytes.end(), static_cast<char>(rank * 37 + 1));
        return bytes;
    }
};

// Seats move their arenas whatever the machine's peer access is. What one GPU copies into the arena of the
// other, that other copies out of it.
TEST_F(HostArenas, BothGpusReachThem) {
    if (machine().gpus() < 2) GTEST_SKIP() << "there is one GPU";
    std::unique_ptr<backend::Seat> seats[2];
    Allocation memory[2];
    for (unsigned rank = 0; rank < 2; ++rank) {
        const Place place = Place::gpu(static_cast<int>(rank));
        auto seat = backend().seats()->seat({rank, 2, place, 30'000'000'000});
        ASSERT_TRUE(seat.ok()) << seat.error().to_string();
        seats[rank] = std::move(*seat);
        const auto moved = seats[rank]->move_arena_to_host();
        ASSERT_TRUE(moved.ok()) << moved.error().to_string();
        EXPECT_TRUE(seats[rank]->arena().place().is_host());
        EXPECT_GE((*moved)->size, protocol::ArenaLayout{2}.bytes());
        EXPECT_GE((*moved)->descriptor, 0);
        memory[rank] =
            std::move(backend().allocator()->allocate(place, 2 * block, MemoryKind::device).value());
    }
    for (const auto& seat : seats)
        for (unsigned rank = 0; rank < 2; ++rank) {
            const auto admitted = seat->admit(seats[rank]->arena());
            ASSERT_TRUE(admitted.ok()) << admitted.error().to_string();
            ASSERT_TRUE(seat->reach(rank, 0, backend::bytes_of(seats[rank]->arena())).ok());
        }
    for (unsigned rank = 0; rank < 2; ++rank) {
        const unsigned other = 1 - rank;
        write(memory[rank], sent(static_cast<int>(rank)));
        copy(rank, seats[other]->arena().address(), memory[rank].address());
        write(memory[other], std::vector<char>(2 * block));
        copy(other, memory[other].address(), seats[other]->arena().address());
        EXPECT_EQ(read(memory[other], 2 * block), sent(static_cast<int>(rank))) << "rank " << rank;
    }
    for (const auto& seat : seats) seat->abort();
}

TEST_F(HostArenas, AGroupWhoseGpusDoNotReachEachOther) {
    if (machine().gpus() < 2) GTEST_SKIP() << "there is one GPU";
    if (machine().topology().peer_access(0, 1).allowed) GTEST_SKIP() << "the GPUs reach each other";
    GroupOptions options;
    options.timeout = std::chrono::seconds(30);
    auto groups = Group::local(*context_, {Place::gpu(0), Place::gpu(1)}, options);
    ASSERT_TRUE(groups.ok()) << groups.error().to_string();
    for (Group& group : *groups) {
        const auto plan = group.explain(Collective::all_gather, 1 << 20, Dtype::f32);
        ASSERT_TRUE(plan.ok()) << plan.error().to_string();
        EXPECT_NE(plan->reason.find("the arenas lie in host memory: gpu:0 and gpu:1 have no peer access"),
                  std::string::npos)
            << plan->reason;
    }
}

}  // namespace
}  // namespace sidestep::gpu_tests::host_arena
