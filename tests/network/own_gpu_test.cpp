// GPUs of the machine that asks: their memory goes to and from a node as it is, where what carries the bytes takes it.
#include <array>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/network/ncclnet_rig.hpp"
#include "tests/network/nodes.hpp"
#include "tests/slower.hpp"

namespace sidestep {
namespace {

constexpr Bytes own_bytes = (slower_by > 1 ? 12_MiB : 24_MiB) + 12'345;

class OwnGpu : public test::Nodes {
protected:
    ~OwnGpu() override {
        for (const char* name : {"SIDESTEP_NETWORK", "SIDESTEP_NCCL_NET", "SIDESTEP_NETWORK_CHECKSUMS"})
            ::unsetenv(name);
    }
    // Both ends use the plugin, under a name that nobody has started yet.
    void begin(const char* network = "ncclnet") {
        ::setenv("SIDESTEP_NCCL_NET", plugin.new_name().c_str(), 1);
        ::setenv("SIDESTEP_NETWORK", network, 1);
        serve(allow);
        auto opened = client();
        ASSERT_TRUE(opened) << opened.error().to_string();
        *here = std::move(*opened);
        gpu = *here->allocate(Place::gpu(0), own_bytes);
        ASSERT_TRUE(here->copy(Buffer::host(text.data(), own_bytes), gpu.buffer()).wait());
    }
    Buffer mine(Bytes bytes) const { return gpu.buffer().slice(0, bytes); }
    void wipe(const Buffer& memory) const {
        ASSERT_TRUE(here->copy(Buffer::host(none.data(), memory.size()), memory).wait());
    }
    // There and back, and the receipts.
    std::vector<Receipt> there_and_back(const Buffer& far, Bytes bytes) {
        const auto put = here->copy(mine(bytes), far).wait();
        EXPECT_TRUE(put) << put.error().to_string();
        wipe(mine(bytes));
        const auto get = here->copy(far, mine(bytes)).wait();
        EXPECT_TRUE(get) << get.error().to_string();
        EXPECT_TRUE(holds(mine(bytes), std::string_view(text).substr(0, bytes)))
            << far.to_string() << ", " << bytes;
        return put && get ? std::vector{*put, *get} : std::vector<Receipt>();
    }
    static std::string notes(const Receipt& receipt) {
        return fmt::format("{}", fmt::join(receipt.notes, "; "));
    }

    wire::test::StandIn plugin;
    Allocation gpu;
    const std::string text = test::text_of(own_bytes, 1);
    const std::string none = std::string(own_bytes, '.');
};

TEST_F(OwnGpu, GoesAsItIs) {
    for (const char* network : {"ncclnet", "auto"}) {
        begin(network);
        const std::vector<Allocation> memory = [&] {
            std::vector<Allocation> all;
            for (const char* place : {"n/host", "n/gpu:1"})
                all.push_back(*here->allocate(*Place::parse(place), own_bytes));
            return all;
        }();
        const auto route = here->route(Place::gpu(0), memory[1].place(), own_bytes);
        ASSERT_TRUE(route) << route.error().to_string();
        EXPECT_EQ(route->lanes[0].hops[0].link, "ncclnet (fast0, fast1)");
        for (const Bytes bytes : {own_bytes, Bytes{5'000}, Bytes{1}})
            for (const Buffer& far : {memory[0].buffer().slice(0, bytes), memory[1].buffer().slice(0, bytes),
                                      Buffer::file(path("out/f"), 0, bytes).on("n")}) {
                if (far.place().is_file()) test::put(path("out/f"), std::string(own_bytes, 'f'));
                const int flushed = plugin.flushes();
                for (const Receipt& receipt : there_and_back(far, bytes)) {
                    ASSERT_EQ(receipt.route->lanes[0].hops.size(), 1u) << receipt.explain();
                    EXPECT_NE(notes(receipt).find("this machine moved them by the network plugin straight "
                                                  "into gpu:0 and out of it, by its address"),
                              std::string::npos)
                        << notes(receipt);
                }
                // What came straight into a GPU was flushed.
                EXPECT_EQ(plugin.flushes() > flushed, bytes == own_bytes) << far.to_string();
            }
    }
}

// Bytes of host memory go by the device that is nearest to the GPU that gets them, at whichever end.
TEST_F(OwnGpu, IsReachedByTheNearestDevice) {
    begin();
    const Allocation far = *here->allocate(*Place::parse("n/host"), own_bytes);
    ASSERT_TRUE(here->copy(Buffer::host(text.data(), own_bytes), far.buffer()).wait());
    for (const int index : {0, 6})
        for (const char* there : {"", "n/"}) {
            SCOPED_TRACE(fmt::format("{}gpu:{}", there, index));
            const Allocation to =
                *here->allocate(*Place::parse(fmt::format("{}gpu:{}", there, index)), own_bytes);
            const Buffer from = *there == '\0' ? far.buffer() : Buffer::host(text.data(), own_bytes);
            const int near = index == 0 ? 0 : 1;
            const std::array before = {plugin.sends(0), plugin.sends(1)};
            const auto copied = here->copy(from, to.buffer()).wait();
            ASSERT_TRUE(copied) << copied.error().to_string();
            EXPECT_GE(plugin.sends(near) - before[static_cast<std::size_t>(near)], own_bytes / 1_MiB);
            // When each device is tried out with a GPU's memory it brings bytes there and back.
            EXPECT_LT(plugin.sends(1 - near) - before[static_cast<std::size_t>(1 - near)], 4);
            EXPECT_TRUE(holds(to.buffer(), text));
        }
    // Pieces of a batch, in turns to two of them.
    constexpr Bytes piece = 256_KiB;
    const std::array targets = {*here->allocate(*Place::parse("n/gpu:0"), own_bytes),
                                *here->allocate(*Place::parse("n/gpu:6"), own_bytes)};
    std::vector<BatchItem> items;
    for (Bytes i = 0; i < 32; ++i)
        items.push_back(
            {Buffer::host(text.data() + i * piece, piece), targets[i % 2].buffer().slice(i * piece, piece)});
    ASSERT_TRUE(here->copy_batch(items).wait());  // each is tried out
    const std::array before = {plugin.sends(0), plugin.sends(1)};
    ASSERT_TRUE(here->copy_batch(items).wait());
    EXPECT_EQ(plugin.sends(0) - before[0], 16);
    EXPECT_EQ(plugin.sends(1) - before[1], 16);
}

// What goes through host memory says why, in the route before, and in the receipt.
TEST_F(OwnGpu, TheRouteSaysWhyNot) {
    struct Case {
        const char* fault;
        const char* network;  // of the node
        const char* checksums;
        const char* reason;
    };
    for (const auto& [fault, network, checksums, reason] :
         {Case{"no-gpu-memory", "auto", "0", "the cards do not reach gpu:0: neither by dma-buf (the network"},
          Case{"regMr-gpu", "auto", "0", "the cards do not reach gpu:0: neither by dma-buf (memory of an"},
          Case{"", "tcp", "0", "n is reached by tcp, which takes memory of the host alone"},
          Case{"", "auto", "1", "a processor makes their checksums"}}) {
        SCOPED_TRACE(reason);
        plugin.fault(fault);
        ::setenv("SIDESTEP_NETWORK_CHECKSUMS", checksums, 1);
        begin("auto");
        ::setenv("SIDESTEP_NETWORK", network, 1);
        serve(allow);
        const auto route = here->route(Place::gpu(0), *Place::parse("n/gpu:1"), own_bytes);
        ASSERT_TRUE(route) << route.error().to_string();
        EXPECT_EQ(route->lanes[0].hops.size(), 2u);
        EXPECT_NE(route->to_string().find(reason), std::string::npos) << route->to_string();
        const auto memory = here->allocate(*Place::parse("n/gpu:1"), own_bytes);
        ASSERT_TRUE(memory);
        for (const Receipt& receipt : there_and_back(memory->buffer(), own_bytes)) {
            EXPECT_NE(receipt.explain().find(reason), std::string::npos) << receipt.explain();
            EXPECT_EQ(notes(receipt).find("this machine moved"), std::string::npos) << notes(receipt);
            // So does the node, of its own GPU.
            EXPECT_EQ(notes(receipt).find("copy engine, since a processor makes") != std::string::npos,
                      *checksums == '1')
                << notes(receipt);
        }
        plugin.fault("");
    }
}

// A plugin that fails midway: the rest goes by slots of host memory over sockets, and nothing is lost.
TEST_F(OwnGpu, GoesOnOverSockets) {
    for (const char* fault : {"isend", "irecv"}) {
        begin("auto");
        const auto memory = here->allocate(*Place::parse("n/gpu:1"), own_bytes);
        ASSERT_TRUE(memory);
        there_and_back(memory->buffer(), own_bytes);
        auto copy = here->copy(mine(own_bytes), memory->buffer());
        while (!copy.poll() && copy.bytes_done() < own_bytes / 3) std::this_thread::yield();
        plugin.fault(fault);
        const auto put = copy.wait();
        ASSERT_TRUE(put) << put.error().to_string();
        wipe(mine(own_bytes));
        for (int time = 0; time < 2; ++time) {
            const auto get = here->copy(memory->buffer(), mine(own_bytes)).wait();
            ASSERT_TRUE(get) << get.error().to_string();
            EXPECT_TRUE(holds(mine(own_bytes), text)) << fault;
            if (time == 0) continue;
            EXPECT_EQ(get->route->lanes[0].hops.size(), 2u) << "the next copy knows";
        }
        plugin.fault("");
    }
}

// Small pieces are gathered in slots, large ones go as they are.
TEST_F(OwnGpu, Batches) {
    begin();
    const auto memory = here->allocate(*Place::parse("n/gpu:1"), own_bytes);
    ASSERT_TRUE(memory);
    std::vector<BatchItem> there, back;
    Bytes at = 0;
    for (std::size_t i = 0; at < own_bytes; ++i) {
        const Bytes bytes = std::min(i % 50 == 7  ? 300'000
                                     : i % 3 == 0 ? Bytes{777}
                                                  : 20'000,
                                     own_bytes - at);
        there.push_back(
            {gpu.buffer().slice(at, bytes), memory->buffer().slice(own_bytes - at - bytes, bytes)});
        back.push_back({there.back().to, there.back().from});
        at += bytes;
    }
    const auto put = here->copy_batch(there).wait();
    ASSERT_TRUE(put) << put.error().to_string();
    wipe(mine(own_bytes));
    const auto get = here->copy_batch(back).wait();
    ASSERT_TRUE(get) << get.error().to_string();
    EXPECT_TRUE(holds(mine(own_bytes), text));
}

}  // namespace
}  // namespace sidestep
