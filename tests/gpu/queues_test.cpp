// Streams share the queues of a GPU, and who comes behind a stream that waits for a word in its queue waits as well:
// which ones those are, by the number of streams and their priority.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "backends/cuda/collective/urgent_streams.hpp"
#include "tests/gpu/collective_rig.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests {
namespace {

class QueuesOfAGpu : public GpuTest {
protected:
    static constexpr unsigned most = 40;
    static constexpr std::size_t bytes = 2 << 20;

    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        for (int gpu : {0, machine().gpus() - 1})
            memory_.push_back(raw_memory(Raw::device, gpu, (most + 1) * bytes));
        if (machine().gpus() > 1) {
            driver::ScopedCudaContext current(machine().context(0));
            // Refused where it is enabled already.
            cuda().cuCtxEnablePeerAccess(machine().context(machine().gpus() - 1).get(), 0);
        }
        words_memory_ = raw_memory(Raw::host_alloc, 0, 4096);
        words_ = static_cast<std::uint64_t*>(words_memory_.address());
        std::fill(words_, words_ + 512, 0);
    }
    void TearDown() override { let_go(); }

    CUstream stream(bool urgent) {
        driver::ScopedCudaContext current(machine().context(0));
        CUstream made = nullptr;
        expect_success(cuda().cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, urgent ? -1000 : 0),
                       "cuStreamCreateWithPriority");
        streams_.push_back(made);
        return made;
    }
    void let_go() {
        if (words_ != nullptr) std::atomic_ref(words_[gate]).store(1);
        if (streams_.empty()) return;
        driver::ScopedCudaContext current(machine().context(0));
        for (const CUstream one : streams_) {
            expect_success(cuda().cuStreamSynchronize(one), "cuStreamSynchronize");
            cuda().cuStreamDestroy(one);
        }
        streams_.clear();
    }
    CUdeviceptr word(unsigned index) { return reinterpret_cast<CUdeviceptr>(words_ + index); }

    // Copies within the GPU and to another one on each stream, one behind the other, several times; those that have not
    // ended in half a second.
    std::string held_up(const std::vector<CUstream>& streams, unsigned& count) {
        driver::ScopedCudaContext current(machine().context(0));
        const auto base = reinterpret_cast<CUdeviceptr>(memory_[0].address());
        const auto there = reinterpret_cast<CUdeviceptr>(memory_[1].address());
        for (unsigned again = 0; again < 4; ++again)
            for (unsigned i = 0; i < streams.size(); ++i) {
                const CUdeviceptr own = base + (i + 1) * bytes;
                expect_success(cuda().cuMemcpyAsync(own, base, bytes - 3, streams[i]), "cuMemcpyAsync");
                expect_success(cuda().cuMemcpyAsync(there + (i + 1) * bytes, own, bytes, streams[i]), "cuMemcpyAsync");
                expect_success(cuda().cuStreamWriteValue64(streams[i], word(i), again + 1, CU_STREAM_WRITE_VALUE_DEFAULT),
                               "cuStreamWriteValue64");
            }
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
        std::string held;
        do {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            held.clear();
            count = 0;
            for (unsigned i = 0; i < streams.size(); ++i) {
                const std::uint64_t ended = std::atomic_ref(words_[i]).load();
                if (ended == 4) continue;
                held += fmt::format(" {}({} of 4)", i, ended);
                ++count;
            }
        } while (count != 0 && std::chrono::steady_clock::now() < until);
        return held;
    }

    static constexpr unsigned gate = 500;
    std::vector<Allocation> memory_;
    Allocation words_memory_;
    std::uint64_t* words_ = nullptr;
    std::vector<CUstream> streams_;
};

// As many as the ranks of a GPU share are never held up; the others are printed.
TEST_F(QueuesOfAGpu, WhoIsHeldUpByStreamsThatWait) {
    const unsigned few = backends::cuda::UrgentStreams::each;
    for (const bool urgent : {true, false})
        for (const unsigned waiting : {1u, 2u, 8u})
            for (const unsigned others : {few, 8u, 16u, most}) {
                std::fill(words_, words_ + 512, 0);
                for (unsigned i = 0; i < waiting; ++i) {
                    const CUstream one = stream(false);
                    driver::ScopedCudaContext current(machine().context(0));
                    expect_success(cuda().cuStreamWaitValue64(one, word(gate), 1, CU_STREAM_WAIT_VALUE_GEQ),
                                   "cuStreamWaitValue64");
                }
                std::vector<CUstream> rest;
                for (unsigned i = 0; i < others; ++i) rest.push_back(stream(urgent));
                unsigned count = 0;
                const std::string held = held_up(rest, count);
                fmt::print("{} waiting, {} {} streams beside them: {} held up{}\n", waiting, others,
                           urgent ? "urgent" : "ordinary", count, held);
                if (urgent && others == few) {
                    EXPECT_EQ(count, 0u);
                }
                let_go();
            }
}

}  // namespace
}  // namespace sidestep::gpu_tests
