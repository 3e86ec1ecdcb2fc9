// Two processes that publish, read and write each other's memory, through the public API alone.
#include <sys/stat.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multiprocess/process.hpp"

namespace sidestep::multiprocess {
namespace {

class Sharing : public testing::Test {
protected:
    // Reads a name into fresh memory of another GPU, verified, and compares.
    void expect_read(const Buffer& shared, Bytes bytes, unsigned seed, Bytes first = 0) {
        auto memory = context.allocate(Place::gpu(2), bytes);
        ASSERT_TRUE(memory) << memory.error().to_string();
        CopyOptions options;
        options.verify = true;
        auto done = context.copy(shared, memory->buffer(), options).wait();
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_EQ(done->bytes, bytes);
        EXPECT_TRUE(done->verified);
        EXPECT_EQ(differs(memory->buffer(), seed, first), "");
    }

    TestFolder folder;
    Context context = open_context(folder);
};

TEST_F(Sharing, GpuMemoryIsReadAndWritten) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", 9_MiB)), "ok");
    expect_read(Buffer::shared("kv"), 9_MiB, 1);
    expect_read(Buffer::shared("kv", 4097, 1_MiB), 1_MiB, 1, 4097);

    auto memory = context.allocate(Place::gpu(3), 9_MiB);
    ASSERT_TRUE(memory) << memory.error().to_string();
    fill(memory->buffer(), 2);
    CopyOptions options;
    options.verify = true;
    auto done = context.copy(memory->buffer(), Buffer::shared("kv"), options).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(peer.tell("check kv 2"), "ok");
    EXPECT_EQ(peer.tell("check kv 1").substr(0, 4), "byte");  // the check itself can tell
}

TEST_F(Sharing, HostMemoryIsReadAndWritten) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish text host {} 5", 3_MiB + 17)), "ok");
    expect_read(Buffer::shared("text"), 3_MiB + 17, 5);
    ASSERT_EQ(peer.tell("fill text 6"), "ok");
    expect_read(Buffer::shared("text"), 3_MiB + 17, 6);
}

TEST_F(Sharing, TheRouteIsThatOfTheRealPlace) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:0 {} 1", 1_MiB)), "ok");
    auto route = context.route(Place::shared("kv"), Place::gpu(2), 1_MiB);
    ASSERT_TRUE(route) << route.error().to_string();
    ASSERT_EQ(route->lanes.size(), 1u);
    ASSERT_EQ(route->lanes[0].hops.size(), 1u);
    EXPECT_EQ(route->lanes[0].hops[0].from, Place::gpu(0));
    EXPECT_EQ(route->lanes[0].hops[0].to, Place::gpu(2));
}

TEST_F(Sharing, BothWaysAtOnceByTwoProcesses) {
    auto memory = context.allocate(Place::gpu(4), 2_MiB);
    ASSERT_TRUE(memory) << memory.error().to_string();
    fill(memory->buffer(), 3);
    auto publication = context.publish("mine", *memory);
    ASSERT_TRUE(publication) << publication.error().to_string();
    EXPECT_EQ(publication->name(), "mine");
    Peer peer(folder);
    EXPECT_EQ(peer.tell(fmt::format("read mine 3 {}", 2_MiB)), "ok");
    EXPECT_EQ(peer.tell(fmt::format("write mine 4 {}", 2_MiB)), "ok");
    EXPECT_EQ(differs(memory->buffer(), 4), "");
    ASSERT_EQ(peer.tell(fmt::format("publish theirs gpu:0 {} 9", 2_MiB)), "ok");
    expect_read(Buffer::shared("theirs"), 2_MiB, 9);
}

// Without a mapping: in CUDA there could be none.
TEST_F(Sharing, WithinOneProcess) {
    auto memory = context.allocate(Place::gpu(0), 1_MiB);
    ASSERT_TRUE(memory) << memory.error().to_string();
    fill(memory->buffer(), 7);
    auto publication = context.publish("own", *memory);
    ASSERT_TRUE(publication) << publication.error().to_string();
    expect_read(Buffer::shared("own"), 1_MiB, 7);
    // The same memory under both names overlaps, so it is known to be the same.
    auto done = context.copy(Buffer::shared("own"), memory->buffer()).wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::invalid_argument) << done.error().to_string();
    // Another Context of this process does not know the first one's emulated memory, and maps it.
    Context other = open_context(folder);
    auto copy = other.allocate(Place::gpu(5), 1_MiB);
    ASSERT_TRUE(copy) << copy.error().to_string();
    auto across = other.copy(Buffer::shared("own"), copy->buffer()).wait();
    ASSERT_TRUE(across) << across.error().to_string();
    EXPECT_EQ(differs(copy->buffer(), 7), "");
}

TEST_F(Sharing, PartsOfOneAllocationUnderManyNames) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish arena gpu:0 {} 1", 4_MiB)), "ok");
    for (int i = 0; i < 100; ++i)
        ASSERT_EQ(peer.tell(fmt::format("part p{} arena {} {}", i, i * 4096, 8192)), "ok");
    for (int i = 0; i < 100; ++i)
        expect_read(Buffer::shared(fmt::format("p{}", i)), 8192, 1, static_cast<Bytes>(i) * 4096);
}

TEST_F(Sharing, ManyNamesCostNoDescriptorsOnEitherSide) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell(fmt::format("publish arena gpu:0 {} 1", 1_MiB)), "ok");
    ASSERT_EQ(peer.tell("part p0 arena 0 8192"), "ok");
    expect_read(Buffer::shared("p0"), 8192, 1);
    const std::size_t here = open_descriptors();
    const std::size_t there = open_descriptors(peer.process());
    for (int i = 1; i < 64; ++i)
        ASSERT_EQ(peer.tell(fmt::format("part p{} arena {} 8192", i, i * 4096)), "ok");
    EXPECT_LE(open_descriptors(peer.process()), there + 2) << "names";
    for (int i = 1; i < 64; ++i)
        expect_read(Buffer::shared(fmt::format("p{}", i)), 8192, 1, static_cast<Bytes>(i) * 4096);
    EXPECT_LE(open_descriptors(), here + 2) << "imports, of the importer";
    EXPECT_LE(open_descriptors(peer.process()), there + 2) << "imports, of the publisher";
}

TEST_F(Sharing, RepublishedMemoryIsTheNewOne) {
    Peer peer(folder);
    for (unsigned seed = 1; seed <= 20; ++seed) {
        ASSERT_EQ(peer.tell(fmt::format("publish kv gpu:{} {} {}", seed % 2, 1_MiB + seed, seed)), "ok");
        expect_read(Buffer::shared("kv"), 1_MiB + seed, seed);
        expect_read(Buffer::shared("kv"), 1_MiB + seed, seed);
        ASSERT_EQ(peer.tell("withdraw kv"), "ok");
    }
}

TEST_F(Sharing, ManyImportsOfManyNames) {
    Peer peer(folder);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(peer.tell(fmt::format("publish n{} gpu:0 4096 {}", i, i)), "ok");
    for (int round = 0; round < 2; ++round)
        for (int i = 0; i < 300; ++i)
            expect_read(Buffer::shared(fmt::format("n{}", i)), 4096, static_cast<unsigned>(i));
}

TEST_F(Sharing, SizesAreThoseOfThePublisher) {
    Peer peer(folder);
    ASSERT_EQ(peer.tell("publish kv gpu:0 4096 1"), "ok");
    auto memory = context.allocate(Place::gpu(0), 8192);
    ASSERT_TRUE(memory) << memory.error().to_string();
    for (const Buffer& wrong : {Buffer::shared("kv"), Buffer::shared("kv", 0, 8192),
                                Buffer::shared("kv", 4095, 2), Buffer::shared("kv", Buffer::whole - 1, 4)}) {
        auto done = context.copy(wrong, memory->buffer()).wait();
        ASSERT_FALSE(done) << wrong.to_string();
        EXPECT_EQ(done.error().code, ErrorCode::invalid_argument) << done.error().to_string();
    }
    auto tail = context.copy(Buffer::shared("kv", 4000, Buffer::whole), memory->buffer().slice(0, 96)).wait();
    ASSERT_TRUE(tail) << tail.error().to_string();
    EXPECT_EQ(differs(memory->buffer().slice(0, 96), 1, 4000), "");
}

TEST_F(Sharing, WhatCannotBePublished) {
    std::vector<char> own(4096);
    auto of_malloc = context.publish("kv", Buffer::host(own.data(), own.size()));
    ASSERT_FALSE(of_malloc);
    EXPECT_EQ(of_malloc.error().code, ErrorCode::unsupported);
    EXPECT_NE(of_malloc.error().hint.find("Context::allocate"), std::string::npos);
    auto memory = context.allocate(Place::gpu(0), 4096);
    ASSERT_TRUE(memory) << memory.error().to_string();
    for (const char* name : {"", ".hidden", "..", "a/b", "a b",
                             "sixty-five-characters-are-more-than-a-name-may-have-sixty-five-ch"}) {
        auto published = context.publish(name, *memory);
        ASSERT_FALSE(published) << name;
        EXPECT_EQ(published.error().code, ErrorCode::invalid_argument) << name;
    }
    for (const Buffer& wrong :
         {Buffer::file("/tmp/x"), Buffer::shared("kv"), Buffer::gpu(0, memory->address(), 0),
          Buffer::gpu(0, static_cast<const void*>(memory->address()), 4096)}) {
        auto published = context.publish("kv", wrong);
        ASSERT_FALSE(published) << wrong.to_string();
        EXPECT_EQ(published.error().code, ErrorCode::invalid_argument) << published.error().to_string();
    }
    auto past = context.publish("kv", Buffer::gpu(0, memory->address(), 1_GiB));
    ASSERT_FALSE(past);
    EXPECT_EQ(past.error().code, ErrorCode::invalid_argument) << past.error().to_string();
}

TEST_F(Sharing, ContentsSurviveTheFirstPublication) {
    auto memory = context.allocate(Place::host(), 5_MiB + 3, MemoryKind::pageable);
    ASSERT_TRUE(memory) << memory.error().to_string();
    fill(memory->buffer(), 11);
    void* const before = memory->address();
    auto publication = context.publish("host", *memory);
    ASSERT_TRUE(publication) << publication.error().to_string();
    EXPECT_EQ(memory->address(), before);
    EXPECT_EQ(differs(memory->buffer(), 11), "");
    Peer peer(folder);
    EXPECT_EQ(peer.tell(fmt::format("read host 11 {}", 5_MiB + 3)), "ok");
    EXPECT_EQ(peer.tell(fmt::format("write host 12 {}", 5_MiB + 3)), "ok");
    EXPECT_EQ(differs(memory->buffer(), 12), "");
}

TEST_F(Sharing, NobodyElseMayUseTheFolder) {
    auto memory = context.allocate(Place::gpu(0), 4096);
    ASSERT_TRUE(memory) << memory.error().to_string();
    ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
    auto published = context.publish("kv", *memory);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code, ErrorCode::permission_denied) << published.error().to_string();
    auto copied = context.copy(Buffer::shared("kv"), memory->buffer()).wait();
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code, ErrorCode::permission_denied) << copied.error().to_string();
}

}  // namespace
}  // namespace sidestep::multiprocess
