// Files spread over memories: what arrives where, how often storage is read, and what is kept within bounds.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "spread_rig.hpp"
#include "transfer/spread_cursor.hpp"

namespace sidestep {
namespace {

using test::chunks_of;
using test::every;
using test::names_of;
using test::SpreadRig;

struct Machine {
    int gpus;
    bool nvlink;
};

class SpreadOver : public testing::TestWithParam<Machine> {};

TEST_P(SpreadOver, ReplicatesWhatIsReadOnce) {
    const auto [gpus, nvlink] = GetParam();
    SpreadRig rig({.gpus = gpus, .nvlink = nvlink, .files = {.looks = 2}, .gpu = {.looks = 3}});
    rig.add_gpus(gpus, 3_MiB + 100);
    rig.replicate(3_MiB + 100);
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(rig.files->bytes_read.load(), 3_MiB + 100);
    EXPECT_EQ(receipt->bytes, static_cast<Bytes>(gpus) * (3_MiB + 100));
    EXPECT_EQ(receipt->lane_bytes, std::vector<Bytes>(static_cast<std::size_t>(gpus), 3_MiB + 100));
    EXPECT_EQ(receipt->storage.page_cache, 3_MiB + 100);
    EXPECT_EQ(receipt->notes, std::vector<std::string>{"scripted files"});
    const bool hands_on = nvlink && gpus > 1;
    ASSERT_EQ(receipt->route->lanes.size(), static_cast<std::size_t>(gpus));
    EXPECT_EQ(receipt->route->lanes[0].hops.size(), hands_on ? 3u : 2u) << receipt->explain();
    EXPECT_EQ(names_of(*receipt), hands_on ? (std::vector<std::string>{"read", "host to GPU", "GPU to GPU"})
                                           : (std::vector<std::string>{"read", "host to GPU"}));
    // Each byte crosses the links from the host once where GPUs hand it on, else once for each GPU.
    EXPECT_EQ(receipt->stages[0].bytes, 3_MiB + 100);
    EXPECT_EQ(receipt->stages[1].bytes, (hands_on ? 1 : static_cast<Bytes>(gpus)) * (3_MiB + 100));
    EXPECT_TRUE(rig.nothing_left());
}

INSTANTIATE_TEST_SUITE_P(Machines, SpreadOver,
                         testing::Values(Machine{1, true}, Machine{2, true}, Machine{4, true},
                                         Machine{8, true}, Machine{2, false}, Machine{4, false},
                                         Machine{8, false}),
                         [](const auto& test) {
                             return fmt::format("{}Gpus{}", test.param.gpus,
                                                test.param.nvlink ? "Nvlink" : "Pcie");
                         });

TEST(Spread, OwnersTakeTurns) {
    SpreadRig rig({.gpus = 4, .gpu = {.looks = 2}});
    rig.add_gpus(4, 4_MiB);
    rig.replicate(4_MiB);
    std::vector<Bytes> fed(4);
    rig.fake->script.looks_of = [&](const backend::Piece& piece) {
        if (piece.from->buffer().place().is_host())
            fed[static_cast<std::size_t>(piece.to->buffer().place().index())] += piece.size;
        return 2;
    };
    ASSERT_TRUE(rig.run(chunks_of(64_KiB)));
    for (const Bytes bytes : fed) EXPECT_EQ(bytes, 1_MiB);
}

TEST(Spread, TensorsGoToTheirGpu) {
    SpreadRig rig({.gpus = 3});
    rig.add_gpus(3, 1_MiB);
    const auto file = rig.add_file(2_MiB, {{100, 2_MiB - 5}});
    Bytes at = 100;
    for (std::uint32_t memory = 0; at < 2_MiB - 5; memory = (memory + 1) % 3) {
        const Bytes size = std::min<Bytes>(77'777, 2_MiB - 5 - at);
        rig.row(file, at, size, memory, (at - 100) / 3 / 256 * 256 % 900'000);
        at += size;
    }
    // Rows of one memory overlap in this table where offsets wrap: keep them apart instead.
    std::vector<Bytes> next(3);
    for (auto& row : rig.table->rows) {
        row.run.memory_offset = next[row.run.memory];
        next[row.run.memory] += (row.run.size + 255) / 256 * 256;
    }
    const auto receipt = rig.run(chunks_of(128_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(receipt->bytes, rig.file_bytes());
    EXPECT_EQ(receipt->lane_bytes[0] + receipt->lane_bytes[1] + receipt->lane_bytes[2], receipt->bytes);
}

// A matrix of rows of 96 bytes, cut along its columns.
void cut_columns(SpreadRig& rig, Bytes rows) {
    const auto file = rig.add_file(rows * 96 + 8, {{8, 8 + rows * 96}});
    for (Bytes row = 0; row < rows; ++row)
        for (std::uint32_t memory = 0; memory < 3; ++memory)
            rig.row(file, 8 + row * 96 + memory * 32, 32, memory, row * 32);
}

TEST(Spread, ManySmallRunsGoAsBatches) {
    SpreadRig rig({.gpus = 3, .gpu = {.batches = true}});
    rig.add_gpus(3, 2000 * 32);
    cut_columns(rig, 2000);
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(rig.fake->batches.size(), 9u);  // three chunks, three GPUs
}

TEST(Spread, ManySmallRunsGoOneByOneWhereThereAreNoBatches) {
    SpreadRig rig({.gpus = 3});
    rig.add_gpus(3, 2000 * 32);
    cut_columns(rig, 2000);
    ASSERT_TRUE(rig.run(chunks_of(64_KiB)));
    EXPECT_TRUE(rig.arrived());
    EXPECT_TRUE(rig.fake->batches.empty());
    EXPECT_LE(rig.fake->max_in_flight, 3 * 3 * 16);
}

TEST(Spread, AdjacentRunsBecomeOnePiece) {
    SpreadRig rig({});
    rig.add_gpus(1, 64_KiB);
    const auto file = rig.add_file(64_KiB, {{0, 64_KiB}});
    for (Bytes at = 0; at < 64_KiB; at += 1024) rig.row(file, at, 1024, 0, at);
    ASSERT_TRUE(rig.run());
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(rig.fake->pieces.size(), 1u);
}

TEST(Spread, SlotsLieAsFilesDo) {
    SpreadRig rig({});
    rig.add_gpus(1, 1_MiB);
    const auto file = rig.add_file(1_MiB, {{4097, 300'000}, {300'010, 300'011}, {700'001, 1_MiB}});
    rig.row(file, 4097, 300'000 - 4097, 0, 0);
    rig.row(file, 300'010, 1, 0, 300'000);
    rig.row(file, 700'001, 1_MiB - 700'001, 0, 300'032);
    const auto receipt = rig.run(chunks_of(128_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    for (const auto& piece : rig.files->pieces) {
        // Not the registrations, which are gone: the ring begins at a multiple of a block.
        EXPECT_EQ(piece.from_offset % 4096, piece.to_offset % 4096);
        EXPECT_EQ((piece.to_offset - piece.room_before) / 131072,
                  (piece.to_offset + piece.size + piece.room_after - 1) / 131072);
    }
}

TEST(Spread, PartsOfOneSlotDoNotReachIntoOneAnother) {
    SpreadRig rig({});
    rig.add_gpus(1, 1_MiB);
    const auto file = rig.add_file(1_MiB, {{0, 10'001}, {90'000, 100'000}, {190'001, 1_MiB}});
    rig.row(file, 0, 10'001, 0, 0);
    rig.row(file, 90'000, 10'000, 0, 20'000);
    rig.row(file, 190'001, 1_MiB - 190'001, 0, 40'000);
    const auto receipt = rig.run(chunks_of(256_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    ASSERT_GE(rig.files->pieces.size(), 3u);
    EXPECT_EQ(rig.files->pieces[0].room_after, 79'999u);
    EXPECT_EQ(rig.files->pieces[1].room_before, 79'999u);
    EXPECT_EQ(rig.files->pieces[2].room_before, 90'001u);
}

// The largest come first, whether they follow one another or lie anywhere among the others.
TEST(Spread, ManyFilesAreOpenOnlyAFewAtATime) {
    for (const Bytes apart : {1, 37}) {
        SpreadRig rig({.gpus = 2, .files = {.looks = 5}});
        rig.add_gpus(2, 300 * 1024);
        for (Bytes i = 0; i < 300; ++i) {
            const Bytes size = 100 + i * apart % 300 * 3;
            rig.row(rig.add_file(size, {{0, size}}), 0, size, every, i * 1024);
        }
        rig.add_file(0, {});
        CopyOptions options = chunks_of(4096);
        options.verify = apart > 1;
        const auto receipt = rig.run(options);
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(rig.arrived());
        EXPECT_LE(rig.files->max_open, 64);
        EXPECT_TRUE(rig.nothing_left());
    }
}

TEST(Spread, LargeFilesComeFirstAndSeveralAtOnce) {
    std::vector<transfer::SpreadFile> files{
        {"small", 0, {{0, 10}}}, {"large", 0, {{0, 5000}}}, {"none", 0, {}}, {"middle", 0, {{90, 1100}}}};
    transfer::SpreadCursor cursor(files, 1000);
    std::vector<std::size_t> order;
    Bytes sum = 0;
    while (!cursor.empty()) {
        const std::size_t next = cursor.next_files(1).front();
        const auto cell = cursor.take();
        EXPECT_EQ(cell.file, next);
        EXPECT_EQ(cell.begin % 1000, 0u);
        order.push_back(cell.file);
        sum += cell.bytes();
    }
    EXPECT_EQ(order, (std::vector<std::size_t>{1, 3, 0, 1, 3, 1, 1, 1}));
    EXPECT_EQ(sum, 5000u + 10 + 1010);
}

// Which memory each cell is for, by its middle byte; every cell once.
std::string walk(transfer::SpreadCursor cursor, const transfer::Placement& placement,
                 const transfer::SpreadFile& file) {
    std::string order;
    std::set<Bytes> begins;
    Bytes sum = 0;
    while (!cursor.empty()) {
        const auto cell = cursor.take();
        EXPECT_TRUE(begins.insert(cell.begin).second) << cell.begin;
        for (const auto& part : cell.parts) EXPECT_GT(part.end, part.begin);
        const auto& part = cell.parts[cell.parts.size() / 2];
        const auto memory = placement.memory_at(cell.file, part.begin + (part.end - part.begin) / 2);
        order += memory == every ? '*' : static_cast<char>('a' + memory);
        sum += cell.bytes();
    }
    EXPECT_EQ(sum, file.bytes());
    return order;
}

// Tensors of several cells each, which follow one another in the file.
TEST(Spread, PlacesOfAFileForSeveralMemoriesAreWalkedAtOnce) {
    const auto order = [](const std::vector<std::pair<Bytes, std::uint32_t>>& rows) {
        SpreadRig rig({});
        Bytes size = 0;
        for (const auto& row : rows) size += row.first;
        const auto file = rig.add_file(size, {{3, size}});
        Bytes at = 3;
        for (const auto& [bytes, memory] : rows) {
            rig.row(file, at, bytes - (at == 3 ? 3 : 0), memory, 0);
            at += bytes - (at == 3 ? 3 : 0);
        }
        const std::vector<transfer::SpreadFile> files{{"x", 0, {{3, size}}}};
        return walk(transfer::SpreadCursor(files, 1000, rig.table.get()), *rig.table, files[0]);
    };
    EXPECT_EQ(order({{4000, 0}, {4000, 1}}), "abababab");
    EXPECT_EQ(order({{2000, 0}, {2000, 1}, {2000, 0}, {2000, 1}}), "abababab");
    EXPECT_EQ(order({{6000, 0}, {2000, 1}, {2000, 2}}), "abcaaabcaa");  // all end together
    EXPECT_EQ(order({{3000, every}, {3000, 1}}), "b*b*b*");
    EXPECT_EQ(order({{300, 0}, {300, 1}, {400, 2}, {5000, 1}}), "bbbbbb");
    EXPECT_EQ(order({{3500, every}}), "****");
}

TEST(Spread, SharesOfOneFileReachAllGpusFromTheFirstChunksOn) {
    SpreadRig rig({.gpus = 4, .gpu = {.looks = 2}});
    rig.add_gpus(4, 1_MiB);
    const auto file = rig.add_file(4_MiB, {{0, 4_MiB}});
    for (std::uint32_t memory = 0; memory < 4; ++memory) rig.row(file, memory * 1_MiB, 1_MiB, memory, 0);
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    std::set<Bytes> firsts;
    for (std::size_t piece = 0; piece < 4; ++piece)
        firsts.insert(rig.files->pieces[piece].from_offset / 1_MiB);
    EXPECT_EQ(firsts.size(), 4u);
}

TEST(Spread, NothingIsAValidSpread) {
    SpreadRig rig({});
    const auto none = rig.run();
    ASSERT_TRUE(none) << none.error().to_string();
    EXPECT_EQ(none->bytes, 0u);
    ASSERT_TRUE(none->route);
    rig.add_gpus(1, 100);
    rig.add_file(0, {});
    rig.add_file(50, {});
    const auto empty = rig.run({.verify = true});
    ASSERT_TRUE(empty) << empty.error().to_string();
    EXPECT_TRUE(empty->verified);
    EXPECT_TRUE(rig.files->pieces.empty());
}

TEST(Spread, WhatCannotBeReadAgainIsNotVerified) {
    SpreadRig rig({.gpu = {.keeps = true}});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    const auto refused = rig.run({.verify = true});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(refused.error().message.find("gpu:0 cannot be read to verify: "), std::string::npos)
        << refused.error().to_string();
    EXPECT_TRUE(rig.files->pieces.empty());
    ASSERT_TRUE(rig.run());
}

TEST(Spread, StagingStaysWithinItsBound) {
    for (const Bytes max : {Bytes{4096}, 64_KiB, 200_KiB}) {
        SpreadRig rig({.files = {.looks = 3}, .gpu = {.looks = 3}});
        rig.add_gpus(1, 1_MiB);
        rig.replicate(1_MiB);
        const Bytes before = rig.fake->allocated;
        CopyOptions options;
        options.max_staging = max;
        const auto receipt = rig.run(options);
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        EXPECT_TRUE(rig.arrived());
        EXPECT_LE(rig.fake->allocated - before, std::max(max, 64_KiB));  // the pool's smallest piece
    }
    SpreadRig rig({});
    rig.add_gpus(1, 1_MiB);
    rig.replicate(1_MiB);
    CopyOptions options;
    options.max_staging = 4096;
    options.verify = true;
    const auto refused = rig.run(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(rig.nothing_left());
}

// Some slots are left to the copies out of them, however slow the files are.
TEST(Spread, NotAllSlotsAreFilledAtOnce) {
    std::size_t max = 0;
    SpreadRig rig({.files = {.looks = 40, .before = [&](auto& files, std::size_t) {
                                 max = std::max(max, files.in_flight() + 1);
                             }}});
    rig.add_gpus(1, 4_MiB);
    rig.replicate(4_MiB);
    CopyOptions options;
    options.chunk = 64_KiB;
    options.max_staging = 1_MiB;
    const auto receipt = rig.run(options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(max, 10u);  // five of eight
}

TEST(Spread, HostMemoryIsFedFromTheSameSlots) {
    SpreadRig rig({.gpus = 2});
    rig.add_gpus(2, 1_MiB);
    rig.add_memory(Place::host(), 1_MiB);
    rig.replicate(1_MiB);
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(rig.arrived());
    EXPECT_EQ(rig.files->bytes_read.load(), 1_MiB);
    EXPECT_EQ(receipt->route->lanes[2].hops.size(), 2u);
    EXPECT_EQ(receipt->stages[1].bytes, 2_MiB);
    EXPECT_EQ(receipt->stages[2].bytes, 1_MiB);
}

TEST(Spread, VerificationReadsEverythingAgain) {
    SpreadRig rig({.gpus = 3, .files = {.looks = 2}});
    rig.add_gpus(3, 1_MiB);
    rig.replicate(1_MiB);
    CopyOptions options = chunks_of(64_KiB);
    options.verify = true;
    const auto receipt = rig.run(options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(receipt->verified);
    EXPECT_EQ(rig.files->bytes_read.load(), 2_MiB);
    EXPECT_EQ(receipt->storage.page_cache, 1_MiB);
    EXPECT_EQ(receipt->stages.back().name, "verify");
    EXPECT_EQ(receipt->stages.back().bytes, 1_MiB);
    EXPECT_TRUE(rig.nothing_left());
}

TEST(Spread, EveryBlockIsLookedAtOnce) {
    SpreadRig rig({.gpus = 2});
    rig.add_gpus(2, 6_MiB);
    const auto file = rig.add_file(5_MiB, {{1000, 2_MiB + 10}, {2_MiB + 20, 5_MiB}});
    rig.row(file, 1000, 2_MiB + 10 - 1000, every, 0);
    rig.row(file, 2_MiB + 20, 3_MiB - 20, every, 2_MiB + 512);
    std::mutex mutex;
    std::vector<std::pair<Bytes, Bytes>> seen;
    const std::string& content = rig.files->files.at("/file0").bytes;
    bool equal = true;
    rig.spread.look = [&](std::size_t, Bytes offset, const void* data, Bytes size) -> Result<void> {
        std::lock_guard lock(mutex);
        seen.emplace_back(offset, offset + size);
        equal &= std::memcmp(content.data() + offset, data, size) == 0;
        return {};
    };
    ASSERT_TRUE(rig.run(chunks_of(64_KiB)));
    EXPECT_TRUE(rig.arrived());
    EXPECT_TRUE(equal);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, (std::vector<std::pair<Bytes, Bytes>>{{1000, 1_MiB},
                                                          {1_MiB, 2_MiB},
                                                          {2_MiB, 2_MiB + 10},
                                                          {2_MiB + 20, 3_MiB},
                                                          {3_MiB, 4_MiB},
                                                          {4_MiB, 5_MiB}}));
}

// Tables of any shape: stretches of several files for one memory or all, with gaps, in chunks of any size.
TEST(Spread, RandomPlansArriveWhole) {
    std::mt19937 random(20261121);
    const auto up_to = [&](Bytes max) { return Bytes{random() % (max + 1)}; };
    const test::DirectFiles::Reaches directs[] = {
        {}, [](const Place&) { return true; }, [](const Place& gpu) { return gpu != Place::gpu(1); }};
    for (int round = 0; round < 60; ++round) {
        const int gpus = 1 + static_cast<int>(up_to(4));
        SpreadRig rig({.gpus = gpus,
                       .nvlink = random() % 2 == 0,
                       .files = {.looks = static_cast<int>(up_to(3))},
                       .direct = directs[random() % 3],
                       .gpu = {.batches = random() % 2 == 0}});
        rig.fake->script.looks_of = [&](const backend::Piece&) { return static_cast<int>(up_to(4)); };
        std::vector<Bytes> next(static_cast<std::size_t>(gpus));
        for (Bytes files = up_to(5); files-- > 0;) {
            std::vector<transfer::FileRange> ranges;
            const std::size_t file = rig.spread.files.size();
            std::vector<test::Table::Row> rows;
            Bytes at = up_to(5000);
            for (Bytes stretches = up_to(40); stretches-- > 0;) {
                const Bytes size = 1 + up_to(random() % 4 == 0 ? 200'000 : 3000);
                const auto memory = random() % 3 == 0
                                        ? every
                                        : static_cast<std::uint32_t>(up_to(static_cast<Bytes>(gpus) - 1));
                Bytes offset = 0;
                if (memory == every)
                    offset = *std::max_element(next.begin(), next.end());
                else
                    offset = next[memory];
                rows.push_back({file, {at, size, memory, offset}, "tensor"});
                for (std::size_t m = 0; m < next.size(); ++m)
                    if (memory == every || memory == m) next[m] = offset + size + up_to(1) * 17;
                if (!ranges.empty() && ranges.back().end == at)
                    ranges.back().end = at + size;
                else
                    ranges.push_back({at, at + size});
                at += size + (random() % 2 == 0 ? 0 : 1 + up_to(70'000));
            }
            rig.add_file(at + up_to(100), ranges);
            rig.table->rows.insert(rig.table->rows.end(), rows.begin(), rows.end());
        }
        for (int gpu = 0; gpu < gpus; ++gpu)
            rig.add_memory(Place::gpu(gpu), next[static_cast<std::size_t>(gpu)] + 1);
        CopyOptions options = chunks_of(4096 * (1 + up_to(60)));
        options.verify = random() % 3 == 0;
        options.max_staging = 8192 + up_to(1_MiB);
        const auto receipt = rig.run(options);
        ASSERT_TRUE(receipt) << round << ": " << receipt.error().to_string();
        ASSERT_TRUE(rig.arrived()) << round;
        Bytes all = 0;
        for (const Bytes bytes : receipt->lane_bytes) all += bytes;
        EXPECT_EQ(all, receipt->bytes) << round;
        EXPECT_TRUE(rig.nothing_left()) << round;
    }
}

}  // namespace
}  // namespace sidestep
