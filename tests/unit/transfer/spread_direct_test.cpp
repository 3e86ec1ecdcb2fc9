// Storage that brings the bytes of files to GPUs by itself, to all of them or to some.
#include <gtest/gtest.h>

#include "spread_rig.hpp"

namespace sidestep {
namespace {

using test::chunks_of;
using test::every;
using test::names_of;
using test::SpreadRig;

TEST(Spread, StorageThatReachesGpusNeedsNoSlots) {
    SpreadRig rig({.gpus = 2, .files = {.looks = 2}, .direct = [](const Place&) { return true; }});
    rig.add_gpus(2, 1_MiB);
    rig.replicate(1_MiB);
    const Bytes before = rig.fake->allocated;
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(rig.files->bytes_read.load(), 1_MiB);
    EXPECT_EQ(rig.fake->allocated, before);
    EXPECT_EQ(receipt->route->lanes[0].hops[0].engine, "direct storage");
    EXPECT_EQ(names_of(*receipt), (std::vector<std::string>{"read", "GPU to GPU"}));
    CopyOptions options = chunks_of(64_KiB);
    options.verify = true;
    const auto verified = rig.run(options);
    ASSERT_TRUE(verified) << verified.error().to_string();
    EXPECT_TRUE(verified->verified);
    EXPECT_EQ(rig.files->bytes_read.load(), 3_MiB);
}

bool likes_others(const Place& gpu) {
    return gpu != Place::gpu(1);
}

// The rest of what is read, and nothing else, waits in slots.
TEST(Spread, OneGpuThatStorageDoesNotReachGetsItsBytesThroughSlots) {
    for (const bool verify : {false, true}) {
        SpreadRig rig({.gpus = 3, .nvlink = false, .files = {.looks = 2}, .direct = likes_others});
        rig.add_gpus(3, 4_MiB);
        const auto file = rig.add_file(5_MiB, {{0, 5_MiB}});
        rig.row(file, 0, 1_MiB, every, 0);
        for (std::uint32_t gpu = 0; gpu < 3; ++gpu) rig.row(file, (1 + gpu) * 1_MiB, 1_MiB, gpu, 1_MiB);
        rig.row(file, 4_MiB, 1_MiB, 1, 2_MiB);
        CopyOptions options = chunks_of(256_KiB);
        options.verify = verify;
        const auto receipt = rig.run(options);
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(rig.arrived());
        EXPECT_EQ(rig.direct->bytes_read.load(), 4_MiB);
        EXPECT_EQ(rig.files->bytes_read.load(), 4_MiB + 3_MiB + (verify ? 5_MiB : 0))
            << "directly, into slots, and again";
        const auto& lanes = receipt->route->lanes;
        EXPECT_EQ(lanes[0].hops[0].engine, "direct storage");
        EXPECT_EQ(lanes[1].hops[0].engine, "file I/O");
        EXPECT_EQ(lanes[1].hops[1].to, Place::gpu(1));
        EXPECT_EQ(lanes[2].hops[0].engine, "direct storage");
        EXPECT_EQ(receipt->lane_bytes, (std::vector<Bytes>{2_MiB, 3_MiB, 2_MiB}));
        const std::string text = receipt->explain();
        EXPECT_NE(text.find("file -> gpu:1 by direct storage  it does not like this GPU"), std::string::npos)
            << text;
        EXPECT_TRUE(rig.nothing_left());
    }
}

// What all get comes to it from the GPUs that storage reaches.
TEST(Spread, OneGpuThatStorageDoesNotReachGetsWhatAllGetOverNvlink) {
    SpreadRig rig({.gpus = 3, .files = {.looks = 2}, .direct = likes_others});
    rig.add_gpus(3, 1_MiB);
    rig.replicate(1_MiB);
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(rig.files->bytes_read.load(), 1_MiB);
    EXPECT_EQ(rig.direct->bytes_read.load(), 1_MiB);
    EXPECT_EQ(receipt->route->lanes[1].hops.back().to, Place::gpu(1)) << receipt->explain();
    EXPECT_TRUE(rig.nothing_left());
}

TEST(Spread, DirectIsRefusedWithTheReason) {
    SpreadRig rig({});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    CopyOptions options;
    options.require = Require::direct;
    const auto refused = rig.run(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(refused.error().message.find("a direct path is required"), std::string::npos)
        << refused.error().message;
}

}  // namespace
}  // namespace sidestep
