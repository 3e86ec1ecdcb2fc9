// Prints what the backend costs and reaches. Asserts nothing about time: machines differ.
#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include <fmt/format.h>

#include <sidestep/context.hpp>

#include "base/median.hpp"
#include "driver/memory_map.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::measure {
namespace {

using backends::cuda::Engine;
using base::median;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Measure : public GpuTest {
protected:
    // GB/s of 1 GiB pieces, four in flight.
    static double rate(const Buffer& from, const Buffer& to, std::size_t engine) {
        auto source = backend().attach(from, {}).value();
        auto target = backend().attach(to, {backend::Access::write}).value();
        std::vector<double> rates;
        for (int round = 0; round < 9; ++round) {
            backend::Piece piece;
            piece.from = source.get();
            piece.to = target.get();
            piece.size = from.size() / 4;
            piece.capability = engine;
            std::deque<test::StartedPiece> started;
            const auto start = Clock::now();
            for (Bytes i = 0; i < 4; ++i) {
                piece.from_offset = piece.to_offset = i * piece.size;
                started.emplace_back(backend(), piece);
            }
            for (auto& each : started) EXPECT_TRUE(each.wait());
            rates.push_back(static_cast<double>(from.size()) / seconds_since(start) / 1e9);
        }
        return median(rates);
    }

    template <typename Call>
    static double cost_us(int calls, Call call) {
        std::vector<double> rounds;
        for (int round = 0; round < 5; ++round) {
            const auto start = Clock::now();
            for (int i = 0; i < calls; ++i) call();
            rounds.push_back(seconds_since(start) / calls * 1e6);
        }
        return median(rounds);
    }
};

TEST_F(Measure, Rates) {
    constexpr Bytes size = 1_GiB;
    const Allocation host = raw_memory(Raw::host_alloc, 0, size);
    const Allocation first = raw_memory(Raw::device, 0, size);
    const Allocation second = raw_memory(Raw::device, 0, size);
    fmt::print("    host to gpu:0, copy engine {:.1f} GB/s\n",
               rate(host.buffer(), first.buffer(), Engine::host_to_gpu));
    fmt::print("    gpu:0 to host, copy engine {:.1f} GB/s\n",
               rate(first.buffer(), host.buffer(), Engine::gpu_to_host));
    fmt::print("    inside gpu:0, copy engine {:.0f}, kernel {:.0f} GB/s\n",
               rate(first.buffer(), second.buffer(), Engine::local_copy),
               rate(first.buffer(), second.buffer(), Engine::local_kernel));
    for (int peer = 1; peer < machine().gpus(); ++peer) {
        if (!machine().topology().peer_access(0, peer).allowed) continue;
        const Allocation other = raw_memory(Raw::device, peer, size);
        fmt::print("    gpu:0 to gpu:{}, copy engine {:.1f}, kernel {:.1f} GB/s\n", peer,
                   rate(first.buffer(), other.buffer(), Engine::peer_copy),
                   rate(first.buffer(), other.buffer(), Engine::peer_kernel));
    }
}

TEST_F(Measure, Costs) {
    const Allocation host = raw_memory(Raw::host_alloc, 0, 64_KiB);
    const Allocation gpu = raw_memory(Raw::device, 0, 64_KiB);
    const Allocation vmm = raw_memory(Raw::vmm, 0, 64_KiB);
    const Allocation pageable = raw_memory(Raw::pageable, 0, 64_KiB);
    for (const auto* memory : {&host, &gpu, &vmm, &pageable}) {
        const double cost = cost_us(20000, [&] { EXPECT_TRUE(backend().describe(memory->buffer())); });
        fmt::print("    describe {} memory {:.2f} us\n", sidestep::to_string(memory->kind()), cost);
    }
    fmt::print("    attach {:.2f} us\n",
               cost_us(20000, [&] { EXPECT_TRUE(backend().attach(gpu.buffer(), {})); }));

    auto source = backend().attach(host.buffer(), {}).value();
    auto target = backend().attach(gpu.buffer(), {backend::Access::write}).value();
    for (Bytes size : {8_KiB, 64_KiB}) {
        const double whole = cost_us(
            2000, [&] { EXPECT_TRUE(move(backend(), *source, 0, *target, 0, size, Engine::host_to_gpu)); });
        driver::ScopedCudaContext current(machine().context(0));
        CUstream stream = nullptr;
        expect_success(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        const double bare = cost_us(2000, [&] {
            cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(gpu.address()),
                                 reinterpret_cast<CUdeviceptr>(host.address()), size, stream);
            while (cuda().cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
            }
        });
        cuda().cuStreamDestroy(stream);
        fmt::print(
            "    {} host to gpu, start to done {:.2f} us; bare cuMemcpyAsync and cuStreamQuery {:.2f} us\n",
            format_bytes(size), whole, bare);
    }
}

// What each driver call of a piece costs by itself, to see where start() and poll() spend their time.
TEST_F(Measure, DriverCalls) {
    driver::ScopedCudaContext current(machine().context(0));
    CUstream stream = nullptr;
    CUevent event = nullptr;
    expect_success(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    expect_success(cuda().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    fmt::print("    cuCtxPushCurrent and cuCtxPopCurrent {:.3f} us\n",
               cost_us(20000, [&] { driver::ScopedCudaContext inner(machine().context(0)); }));
    fmt::print("    cuEventRecord {:.3f} us\n", cost_us(1000, [&] { cuda().cuEventRecord(event, stream); }));
    expect_success(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
    fmt::print("    cuEventQuery {:.3f} us\n", cost_us(20000, [&] { cuda().cuEventQuery(event); }));
    std::thread([&] {
        unsigned flag = 0;
        void* values[] = {&flag};
        CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
        const Allocation memory = raw_memory(Raw::device, 0, 1_MiB);
        const auto address = reinterpret_cast<CUdeviceptr>(memory.address());
        fmt::print("    without a current context cuEventQuery answers {}, cuPointerGetAttributes {}\n",
                   static_cast<int>(cuda().cuEventQuery(event)),
                   static_cast<int>(cuda().cuPointerGetAttributes(1, names, values, address)));
    }).join();
    cuda().cuEventDestroy(event);
    cuda().cuStreamDestroy(stream);
}

// What the first use of pinned memory costs, by the pages it lies on.
TEST_F(Measure, Pinning) {
    constexpr unsigned everywhere = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    driver::ScopedCudaContext current(machine().context(0));
    for (const Bytes size : {32_MiB, 256_MiB, 1_GiB}) {
        auto start = Clock::now();
        void* address = nullptr;
        expect_success(cuda().cuMemHostAlloc(&address, size, 0), "cuMemHostAlloc");
        fmt::print("    {}: cuMemHostAlloc {:.1f} ms", format_bytes(size), seconds_since(start) * 1e3);
        cuda().cuMemFreeHost(address);
        for (const int threads : {0, 1, 4, 8}) {
            start = Clock::now();
            const auto map = threads == 0 ? driver::MemoryMap::anonymous(size)
                                          : driver::MemoryMap::populated(size, -1, threads);
            const double pages = seconds_since(start);
            expect_success(cuda().cuMemHostRegister(map->address(), size, everywhere), "cuMemHostRegister");
            fmt::print("; {} thread{} {:.1f} + {:.1f} ms ({} huge)", threads, threads == 1 ? "" : "s",
                       pages * 1e3, (seconds_since(start) - pages) * 1e3,
                       format_bytes(driver::huge_bytes(map->address(), size)));
            cuda().cuMemHostUnregister(map->address());
        }
        fmt::print("\n");
    }
}

// The first and the later copies through a context: the later ones find their memory attached.
TEST_F(Measure, SmallCopies) {
    const auto context = Context::open({"live"});
    ASSERT_TRUE(context) << context.error().to_string();
    for (const Raw raw : {Raw::device, Raw::pool, Raw::vmm, Raw::vmm_pieces}) {
        const Allocation from = raw_memory(raw, 0, 64_MiB);
        const Allocation to = raw_memory(raw, machine().gpus() - 1, 64_MiB);
        for (const Bytes size : {Bytes{8}, 4_KiB, 64_MiB}) {
            const Buffer source = from.buffer().slice(0, size);
            const Buffer target = to.buffer().slice(0, size);
            const auto copy = [&] { EXPECT_TRUE(context->copy(source, target).wait()); };
            const double first = cost_us(1, copy);
            fmt::print("    {} of {} memory, gpu:0 to gpu:{}: first few {:.1f} us, later {:.1f} us\n",
                       format_bytes(size), to_string(raw), machine().gpus() - 1, first,
                       cost_us(size < 1_MiB ? 500 : 20, copy));
        }
    }
}

}  // namespace
}  // namespace sidestep::gpu_tests::measure
