// Links by a network plugin of NCCL: what is particular to them while all goes well.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/ncclnet_rig.hpp"

namespace sidestep::wire {
namespace {

using test::Frame;
using test::Landing;
using test::NcclNet;
using test::StandIn;
using test::Target;

// Every byte, both ways at once, by memory that is prepared, that is not, and in between.
TEST_F(NcclNet, BytesGoBothWaysUnhurt) {
    start();
    constexpr Bytes size = 3 * mib;
    const std::array<std::string, 2> bytes = {sidestep::test::text_of(size, 1),
                                              sidestep::test::text_of(size, 2)};
    for (const char* fault : {"", "not-now"})
        for (const bool out : {false, true})
            for (const bool in : {false, true}) {
                plugin.fault(fault);
                join(size, 2);
                std::vector<std::shared_ptr<const void>> kept_ready;
                for (std::size_t i = 0; i < 2; ++i) {
                    if (out)
                        kept_ready.push_back(
                            engine->prepare(const_cast<char*>(bytes[i].data()), size).value());
                    if (in) kept_ready.push_back(engine->prepare(targets[i]->data(), size).value());
                }
                const auto before = counts();
                std::atomic<std::uint64_t> sent{0};
                std::uint64_t parts = 0;
                for (const Bytes part : {mib, Bytes{100'001}, Bytes{16} << 10}) {
                    sent = 0;
                    const std::uint64_t frames = (size + part - 1) / part;
                    if (part > Bytes{16} << 10) parts += 2 * frames;
                    const Bytes came = targets[0]->came;
                    std::thread other([&] { push(1, bytes[1], part, sent); });
                    push(0, bytes[0], part, sent);
                    other.join();
                    ASSERT_TRUE(test::comes([&] {
                        return targets[0]->came == came + size && targets[1]->came == came + size &&
                               sent == 2 * frames;
                    })) << part;
                    EXPECT_TRUE(targets[0]->text() == bytes[1]) << part;
                    EXPECT_TRUE(targets[1]->text() == bytes[0]) << part;
                    std::memset(targets[0]->data(), 0, size);
                    std::memset(targets[1]->data(), 0, size);
                }
                const auto after = counts();
                // The last one or two bytes of those in odd parts are a small frame.
                const std::uint64_t small = size % 100'001 <= (16 << 10) ? 2 : 0;
                parts -= small;
                EXPECT_EQ(after[0] - before[0], out ? parts : 0) << "sent without a copy";
                EXPECT_EQ(after[1] - before[1], out ? 0 : parts);
                EXPECT_EQ(after[2] - before[2], in ? parts : 0) << "landed without a copy";
                EXPECT_EQ(after[3] - before[3], in ? 0 : parts);
                EXPECT_TRUE(targets[0]->whole() && targets[1]->whole());
                end();
            }
}

// Each version of the interface has other arguments.
TEST_F(NcclNet, EveryVersionCarriesBytes) {
    for (const int version : {8, 9, 10, 11, 12}) {
        std::string path = plugin.path();
        path.insert(path.rfind('.'), "_v" + std::to_string(version));
        start({.plugin = path});
        EXPECT_EQ(engine->plugin().net->version(), version);
        EXPECT_EQ(engine->plugin().devices.front().name, "fast0") << "the quicker ones";
        join(mib);
        send_once();
        end();
        engine.reset();
        EXPECT_EQ(StandIn(path).open(), 0) << version;
    }
    start();
    EXPECT_EQ(engine->plugin().net->version(), 10) << "the newest of those that a plugin has";
}

// Memory that is prepared in parts, or whose preparation went before the bytes came.
TEST_F(NcclNet, OnlyWhatIsPreparedIsUsed) {
    start();
    join(2 * mib);
    const std::string bytes = sidestep::test::text_of(2 * mib, 3);
    auto small = engine->prepare(targets[1]->data(), 4096).value();
    auto whole = engine->prepare(targets[1]->data(), 2 * mib).value();
    auto behind = engine->prepare(targets[1]->data() + mib, mib).value();
    std::atomic<std::uint64_t> sent{0};
    const auto run = [&](Bytes part) {
        const std::uint64_t direct = engine->counts().direct_in;
        const Bytes came = targets[1]->came;
        push(0, bytes, part, sent);
        EXPECT_TRUE(test::comes([&] { return targets[1]->came == came + 2 * mib; }));
        EXPECT_TRUE(targets[1]->text() == bytes);
        std::memset(targets[1]->data(), 0, 2 * mib);
        return engine->counts().direct_in - direct;
    };
    EXPECT_EQ(run(mib), 2u);
    whole.reset();
    EXPECT_EQ(run(mib), 1u) << "the second half is prepared by itself";
    const int before = plugin.open();
    behind.reset();
    EXPECT_EQ(plugin.open(), before - 1) << "it is not registered any more when it has gone";
    EXPECT_EQ(run(mib), 0u);
    end();
}

TEST_F(NcclNet, PreparedMemoryIsBounded) {
    start({.most_pinned = mib - 1});
    std::string memory(mib, 'x');
    const auto too_large = engine->prepare(memory.data(), mib);
    ASSERT_FALSE(too_large.ok());
    EXPECT_EQ(too_large.error().code, ErrorCode::out_of_memory) << too_large.error().to_string();
    for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(engine->prepare(memory.data(), mib - 1).ok()) << "given back before";
    const auto first = engine->prepare(memory.data(), mib / 2);
    EXPECT_FALSE(engine->prepare(memory.data(), mib / 2).ok());
    EXPECT_TRUE(engine->prepare(nullptr, 0).ok());
}

// Memory that is prepared, and that the plugin does not take in the end: it is copied, and nothing else happens.
TEST_F(NcclNet, WhatThePluginDoesNotTakeIsCopied) {
    start();
    join(4 * mib);
    plugin.fault("regMr-large");
    const std::string bytes = sidestep::test::text_of(4 * mib, 3);
    const auto from = engine->prepare(const_cast<char*>(bytes.data()), bytes.size()).value();
    const auto to = engine->prepare(targets[1]->data(), 4 * mib).value();
    for (Bytes round = 1; round <= 2; ++round) {
        std::atomic<std::uint64_t> sent{0};
        push(0, bytes, 300'001, sent);
        ASSERT_TRUE(test::comes([&] { return sent == 14 && targets[1]->came == round * 4 * mib; }));
        EXPECT_TRUE(targets[1]->text() == bytes) << round;
        std::memset(targets[1]->data(), 0, 4 * mib);
    }
    EXPECT_EQ(targets[0]->ends + targets[1]->ends, 0);
    EXPECT_GE(engine->counts().bounced_in, 14u) << "it is remembered";
    end();
}

// Fewer buffers than are wanted, both ways at once: whoever waits for one gets it.
TEST_F(NcclNet, FewBuffersAreEnough) {
    start({.bounces = 1});
    join(8 * mib, 3);
    const std::string bytes = sidestep::test::text_of(8 * mib, 1);
    std::atomic<std::uint64_t> sent{0};
    for (int i = 0; i < 3; ++i) {
        push(0, bytes, 256 << 10, sent);
        push(1, bytes, 256 << 10, sent);
    }
    EXPECT_TRUE(test::comes(
        [&] { return sent == 192 && targets[0]->came == 24 * mib && targets[1]->came == 24 * mib; }));
    EXPECT_TRUE(targets[0]->text() == bytes && targets[1]->text() == bytes);
    end();
}

// What waits for a place is asked for again when it is told to be, frames of every size.
TEST_F(NcclNet, WhoSaidLaterIsAskedAgain) {
    start();
    test::expect_asked_again(*engine);
}

// Large bytes stay the sender's until the plugin has taken them.
TEST_F(NcclNet, SentIsToldWhenTheBytesAreGone) {
    start();
    test::expect_told_when_gone(*engine);
}

// Once end() has returned nothing is written, whatever the other end has under way.
TEST_F(NcclNet, NothingIsWrittenAfterTheEnd) {
    start();
    for (int round = 0; round < 3; ++round) {
        join(8 * mib, 2);
        const auto ready = engine->prepare(targets[1]->data(), 8 * mib).value();
        const std::string bytes = sidestep::test::text_of(8 * mib, 1);
        std::atomic<std::uint64_t> sent{0};
        for (int i = 0; i < 4; ++i) push(0, bytes, mib, sent);
        ASSERT_TRUE(test::comes([&] { return targets[1]->frames > 3; }));
        links[1]->end(test::some_error());
        std::memset(targets[1]->data(), 'm', 8 * mib);
        ASSERT_TRUE(test::comes([&] { return targets[0]->ends == 1; }));
        EXPECT_TRUE(targets[1]->text() == std::string(8 * mib, 'm'));
        EXPECT_TRUE(targets[1]->whole());
        end();
    }
}

// The names that NCCL itself would try.
TEST(NcclNetNames, AreThoseOfNccl) {
    using Names = std::vector<std::string>;
    using backends::ncclnet::plugin_libraries;
    EXPECT_EQ(plugin_libraries("/a/libx.so"), Names{"/a/libx.so"});
    EXPECT_EQ(plugin_libraries("libx.so"), Names{"libx.so"});
    EXPECT_EQ(plugin_libraries("ofi"), (Names{"ofi", "libnccl-net-ofi.so"}));
    ::unsetenv("NCCL_NET_PLUGIN");
    EXPECT_EQ(plugin_libraries(""), Names{"libnccl-net.so"});
    ::setenv("NCCL_NET_PLUGIN", "aws-ofi,other", 1);
    EXPECT_EQ(plugin_libraries(""), (Names{"aws-ofi", "libnccl-net-aws-ofi.so"}));
    EXPECT_EQ(plugin_libraries("libx.so"), Names{"libx.so"}) << "what is named here comes first";
    ::setenv("NCCL_NET_PLUGIN", "none", 1);
    EXPECT_EQ(plugin_libraries(""), Names{"libnccl-net.so"});
    ::unsetenv("NCCL_NET_PLUGIN");
}

}  // namespace
}  // namespace sidestep::wire
