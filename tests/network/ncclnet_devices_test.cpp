// Memory of GPUs by a network plugin of NCCL, and several devices of one. What takes the place of a GPU's memory are pages of
// the host, whose descriptor stands for a dma-buf.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include "backend/device_trial.hpp"
#include "backend/nearness.hpp"
#include "driver/fd.hpp"
#include "tests/network/host_pages.hpp"
#include "tests/network/ncclnet_rig.hpp"

namespace sidestep::wire {
namespace {

using test::Frame;
using test::NcclNet;

constexpr Bytes gpu_bytes = Bytes{4} << 20;
constexpr Bytes all_bytes = gpu_bytes + backend::device_trial_bytes;

struct GpuPages final : test::HostPages {
    explicit GpuPages(bool exports, int gpu = 0) : exports_(exports), gpu_(gpu) {
        EXPECT_EQ(::ftruncate(pages.get(), all_bytes), 0);
        memory = static_cast<char*>(
            ::mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages.get(), 0));
        std::memset(memory, '#', gpu_bytes);
    }
    ~GpuPages() override { ::munmap(memory, all_bytes); }
    Result<backend::DmaBuf> dma_buf(const Buffer& part) override {
        if (!exports_) return Error{ErrorCode::unsupported, "this GPU has none", "gpu:0", {}};
        const auto offset = static_cast<Bytes>(static_cast<const char*>(part.address()) - memory);
        // Those of the trial are not counted.
        const auto give_back = [count = given_back, one = offset < gpu_bytes](const void*) { *count += one; };
        return backend::DmaBuf{pages.get(), offset, std::shared_ptr<const void>(this, give_back)};
    }
    Result<Allocation> scratch(const Place& gpu, Bytes bytes) override {
        ++trials;
        return Allocation(Buffer::memory(gpu, memory + gpu_bytes, bytes), MemoryKind::device, [] {});
    }
    Buffer part(Bytes offset, Bytes bytes) const { return Buffer::gpu(gpu_, memory + offset, bytes); }

    const driver::Fd pages{::memfd_create("device", MFD_CLOEXEC)};
    char* memory = nullptr;
    int trials = 0;
    // The plugin's thread may be the last that has it.
    const std::shared_ptr<std::atomic<int>> given_back = std::make_shared<std::atomic<int>>(0);

private:
    const bool exports_;
    const int gpu_;
};

// Whichever the step that works, the words say why the better one does not.
TEST_F(NcclNet, MemoryOfGpusIsReachedStepByStep) {
    struct Case {
        const char* fault;
        bool exports, reached;
        std::vector<const char*> words;
    };
    const std::vector<Case> cases = {
        {"", true, true, {"by dma-buf and fast0, fast1"}},
        {"", false, true, {"by its address (no dma-buf: this GPU has none) and fast0, fast1"}},
        {"regMr-gpu", true, false, {"neither by dma-buf", "regMrDmaBuf", "nor by its address", "regMr:"}},
        {"iflush", true, true, {"by dma-buf"}},
    };
    start();
    for (const auto& [fault, exports, reached, words] : cases) {
        SCOPED_TRACE(words.front());
        plugin.fault(fault);
        GpuPages device(exports);
        constexpr Bytes offset = 8192 + 100, bytes = 2 * mib + 5000 + mib / 2;
        auto ready = engine->prepare_device(device.part(offset, bytes), device);
        const std::string said = !ready ? ready.error().to_string() : (*ready)->words;
        ASSERT_EQ(ready.ok(), reached) << said;
        for (const char* word : words) EXPECT_NE(said.find(word), std::string::npos) << said;
        if (!reached) continue;
        join(gpu_bytes, 2);
        EXPECT_EQ(links[0]->direct_above(), Bytes{16} << 10);
        // Out of it, and into it: what lands there is flushed before it is told.
        const std::string text = sidestep::test::text_of(bytes, 1);
        const auto before = counts();
        const int flushed = plugin.flushes();
        targets[1]->instead = device.memory;
        std::atomic<std::uint64_t> sent{0};
        for (Bytes at = 0; at < bytes; at += mib)
            links[0]->send({Frame::Kind::push, 1, 1, offset + at, std::min(mib, bytes - at)},
                           text.data() + at, [&] { ++sent; });
        if (std::string_view(fault) == "iflush") {
            EXPECT_TRUE(test::comes([&] { return targets[1]->ends == 1; })) << "the GPU may not see them";
            end();
            continue;
        }
        ASSERT_TRUE(test::comes([&] { return sent == 3 && targets[1]->came == bytes; }));
        EXPECT_EQ(plugin.flushes() - flushed, 3);
        EXPECT_EQ(counts()[2] - before[2], 3u) << "landed without a copy";
        EXPECT_TRUE(std::string(device.memory + offset, bytes) == text);
        EXPECT_EQ(std::string(device.memory, offset), std::string(offset, '#'));
        for (Bytes at = 0; at < bytes; at += mib)
            links[1]->send({Frame::Kind::push, 1, 1, at, std::min(mib, bytes - at)},
                           device.memory + offset + at, [&] { ++sent; });
        ASSERT_TRUE(test::comes([&] { return sent == 6 && targets[0]->came == bytes; }));
        EXPECT_EQ(counts()[0] - before[0], 3u) << "sent without a copy";
        EXPECT_TRUE(targets[0]->text().substr(0, bytes) == text);
        end();
        EXPECT_EQ(*device.given_back, 0);
        ready = test::some_error();
        EXPECT_TRUE(test::comes([&] { return *device.given_back == (exports ? 1 : 0); }));
    }
}

// One that says it takes memory of GPUs is tried out with bytes before anything of a copy goes there.
TEST_F(NcclNet, MemoryOfGpusIsTriedOut) {
    struct Case {
        const char* fault;
        const char* word;
        bool for_good;
    };
    for (const auto& [fault, word, for_good] :
         {Case{"gpu-io", "irecv", false}, Case{"iflush", "iflush", false},
          Case{"gpu-bytes", "fast0 brought to gpu:0 other bytes than those that were sent", true}}) {
        SCOPED_TRACE(fault);
        start({.plugin = plugin.new_name()});
        GpuPages device(true);
        plugin.fault(fault);
        const auto hurt = engine->prepare_device(device.part(0, mib), device);
        ASSERT_FALSE(hurt.ok());
        EXPECT_NE(hurt.error().message.find(word), std::string::npos) << hurt.error().to_string();
        EXPECT_NE(hurt.error().message.find("nor by its address"), std::string::npos);
        EXPECT_EQ(device.trials, 2);
        plugin.fault("");
        for (int i = 0; i < 2; ++i) {
            const auto again = engine->prepare_device(device.part(0, mib), device);
            EXPECT_EQ(again.ok(), !for_good);
        }
        EXPECT_EQ(device.trials, for_good ? 2 : 3) << "once it works it is not tried again";
        EXPECT_EQ(std::string(device.memory, gpu_bytes), std::string(gpu_bytes, '#'));
    }
}

// A plugin that takes none says so when it is asked.
TEST_F(NcclNet, PluginsWithoutMemoryOfGpus) {
    plugin.fault("no-gpu-memory");
    start({.plugin = plugin.new_name()});
    GpuPages device(true);
    const auto ready = engine->prepare_device(device.part(0, mib), device);
    ASSERT_FALSE(ready.ok());
    EXPECT_EQ(ready.error().message,
              "neither by dma-buf (the network plugin takes none) nor by its address (the network plugin "
              "takes none)");
}

// One that hangs while it is asked: an answer all the same, and soon.
TEST_F(NcclNet, AQuestionForMemoryOfGpusEnds) {
    backends::ncclnet::Options options;
    options.plugin = plugin.new_name();
    options.patience.join = options.patience.close = std::chrono::milliseconds(300);
    start(options);
    GpuPages device(true);
    for (const auto& [fault, word] :
         {std::pair{"listen", "listen"}, {"accept", "accept"}, {"", "by dma-buf"}}) {
        plugin.fault(fault);
        const auto ready = engine->prepare_device(device.part(0, mib), device);
        const std::string said = !ready ? ready.error().to_string() : (*ready)->words;
        EXPECT_NE(said.find(word), std::string::npos) << said;
    }
}

// Bytes from and to memory of a GPU go by the device that is nearest to it, as far as plugins and topologies tell.
TEST_F(NcclNet, TheNearestDeviceCarries) {
    const auto topology = Topology::open("dgx-h100").value();
    struct Case {
        const char* fault;
        const Topology* topology;
        int gpu;
        const char* words;
        std::array<bool, 2> carry;  // each device
    };
    const std::string text = sidestep::test::text_of(gpu_bytes, 1),
                      other = sidestep::test::text_of(gpu_bytes, 2);
    for (const auto& [fault, known, gpu, words, carry] :
         {Case{"", &topology, 0, "by dma-buf and fast0 (PXB): several switches from gpu:0", {true, false}},
          Case{"", &topology, 6, "by dma-buf and fast1 (PXB): several switches from gpu:6", {false, true}},
          Case{"", &topology, 1, "by dma-buf and fast0 (NODE): in the NUMA node of gpu:1", {true, false}},
          Case{"", nullptr, 0, "by dma-buf and fast0, fast1", {true, true}},
          Case{"no-paths", &topology, 6, "by dma-buf and fast0, fast1", {true, true}}}) {
        SCOPED_TRACE(words);
        plugin.fault(fault);
        backends::ncclnet::Options options;
        options.plugin = plugin.new_name();
        options.topology = known;
        start(options);
        GpuPages device(true, gpu);
        auto ready = engine->prepare_device(device.part(0, gpu_bytes), device);
        ASSERT_TRUE(ready) << ready.error().to_string();
        EXPECT_EQ((*ready)->words, words);
        join(gpu_bytes, 2);
        std::memcpy(device.memory, text.data(), gpu_bytes);
        for (const bool there : {false, true}) {
            SCOPED_TRACE(there ? "from the host to the other end's" : "from this end's");
            const char* const from = there ? other.data() : device.memory;
            Frame frame{Frame::Kind::push, 1, 1, 0, mib};
            frame.to_gpu = there ? backend::told_gpu(Place::gpu(gpu)) : std::uint8_t{0};
            const std::array<int, 2> before = {plugin.sends(0), plugin.sends(1)};
            const Bytes all = targets[0]->came + gpu_bytes;
            std::atomic<std::uint64_t> sent{0};
            for (frame.offset = 0; frame.offset < gpu_bytes; frame.offset += mib)
                links[1]->send(frame, from + frame.offset, [&] { ++sent; });
            ASSERT_TRUE(test::comes([&] { return targets[0]->came == all; }));
            EXPECT_TRUE(targets[0]->text() == (there ? other : text));
            for (const int one : {0, 1})
                EXPECT_EQ(plugin.sends(one) > before[static_cast<std::size_t>(one)],
                          carry[static_cast<std::size_t>(one)])
                    << one;
        }
        end();
    }
}

// Each connection of a link goes over another of the quickest.
TEST_F(NcclNet, SeveralDevicesCarry) {
    for (const auto& [fault, sockets] : {std::pair{"", 2}, {"many-devices", 32}}) {
        SCOPED_TRACE(fault);
        plugin.fault(fault);
        start({.plugin = plugin.new_name()});
        ASSERT_EQ(engine->useful_sockets(), static_cast<std::size_t>(sockets));
        join(mib, sockets);
        std::vector<int> before;
        for (int i = 0; i < sockets; ++i) before.push_back(plugin.sends(i));
        const auto unused = [&] {
            int count = 0;
            for (int i = 0; i < sockets; ++i)
                count += plugin.sends(i) == before[static_cast<std::size_t>(i)] ? 1 : 0;
            return count;
        };
        const std::string bytes = sidestep::test::text_of(mib, 7);
        std::atomic<std::uint64_t> sent{0};
        Bytes all = 0;
        // One that has sent all it was given may be given more before the last has its first.
        for (int tries = 0; tries == 0 || (unused() > 0 && tries < 50); ++tries) {
            for (int i = 0; i < sockets; ++i, all += mib)
                links[0]->send({Frame::Kind::push, 1, 1, 0, mib}, bytes.data(), [&] { ++sent; });
            ASSERT_TRUE(test::comes([&] { return targets[1]->came == all; }));
        }
        EXPECT_EQ(unused(), 0);
        const std::string over = links[0]->over() + ",";
        for (int i = 0; i < sockets; ++i)
            EXPECT_NE(over.find("fast" + std::to_string(i) + ","), std::string::npos) << over;
        end();
    }
}

}  // namespace
}  // namespace sidestep::wire
