// Copies between this machine and a node, of every kind of place.
#include <unistd.h>

#include <cstdlib>
#include <tuple>
#include <vector>

#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

using test::Nodes;

// One end of a copy: memory that is filled or read through its own machine, or a file.
struct End {
    Allocation memory;
    Buffer buffer;
};

class Copies : public Nodes, public testing::WithParamInterface<std::tuple<const char*, const char*, Bytes>> {
protected:
    End make(const std::string& where, Bytes bytes, const std::string& name) {
        const Place place = *Place::parse(where);
        End end;
        if (place.is_file()) {
            const std::string file = path(name);
            end.buffer = Buffer::file(file).on(place.node());
            return end;
        }
        auto memory = here->allocate(place, std::max<Bytes>(bytes, 1));
        if (!memory) ADD_FAILURE() << where << ": " << memory.error().to_string();
        end.buffer = memory->buffer().slice(0, bytes);
        end.memory = std::move(*memory);
        return end;
    }

    // Through ordinary host memory of this process.
    void write(const End& end, const std::string& text) {
        if (end.buffer.place().is_file()) return test::put(end.buffer.place().path(), text);
        auto done = here->copy(Buffer::host(text.data(), text.size()), end.buffer).wait();
        EXPECT_TRUE(done) << done.error().to_string();
    }
};

TEST_P(Copies, BringEveryByte) {
    const auto [from, to, bytes] = GetParam();
    const End source = make(from, bytes, "in/source");
    const End target = make(to, bytes, "out/target");
    const std::string text = test::text_of(bytes, bytes + 1);
    write(source, text);
    if (!target.buffer.place().is_file()) write(target, std::string(bytes, 'x'));
    CopyOptions verify;
    verify.verify = true;
    const auto done = here->copy(source.buffer, target.buffer, verify).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(done->bytes, bytes);
    EXPECT_TRUE(done->verified);
    EXPECT_TRUE(holds(target.buffer, text));
    bool over_tcp = false;
    for (const Lane& lane : done->route->lanes)
        for (const Hop& hop : lane.hops) over_tcp |= hop.backend == "tcp";
    EXPECT_TRUE(over_tcp) << done->explain();
}

INSTANTIATE_TEST_SUITE_P(Ends, Copies,
                         testing::Combine(testing::Values("host", "gpu:0", "file:/f"),
                                          testing::Values("n/host", "n/gpu:1", "n/file:/f"),
                                          testing::Values(Bytes{0}, Bytes{1}, Bytes{4097},
                                                          Bytes{9'000'001})));
INSTANTIATE_TEST_SUITE_P(Back, Copies,
                         testing::Combine(testing::Values("n/host", "n/gpu:1", "n/file:/f"),
                                          testing::Values("host", "gpu:0", "file:/f"),
                                          testing::Values(Bytes{0}, Bytes{1}, Bytes{4097},
                                                          Bytes{9'000'001})));

INSTANTIATE_TEST_SUITE_P(Between, Copies,
                         testing::Combine(testing::Values("n/host", "n/gpu:1", "n/file:/f"),
                                          testing::Values("m/host", "m/gpu:2", "m/file:/f", "n/gpu:3"),
                                          testing::Values(Bytes{0}, Bytes{4097}, Bytes{9'000'001})));

class Network : public Nodes {
protected:
    std::string text = test::text_of(3'000'000, 7);
    Buffer source() const { return Buffer::host(text.data(), text.size()); }
};

TEST_F(Network, PartsOfAFile) {
    test::put(path("in/parts"), text);
    std::string part(1'000'000, '\0');
    const auto read = here->copy(Buffer::file(path("in/parts"), 123'457, part.size()).on("n"),
                                 Buffer::host(part.data(), part.size()))
                          .wait();
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_TRUE(part == text.substr(123'457, part.size()));
    EXPECT_EQ(read->storage.total(), part.size());

    test::put(path("out/parts"), std::string(text.size(), '-'));
    const auto written = here->copy(Buffer::host(part.data(), part.size()),
                                    Buffer::file(path("out/parts"), 1001, part.size()).on("n"))
                             .wait();
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_TRUE(test::get(path("out/parts")).substr(1001, part.size()) == part);
    EXPECT_EQ(test::get(path("out/parts"))[1000], '-');
}

TEST_F(Network, PartsOfMemory) {
    auto memory = here->allocate(Place::gpu(2).on("n"), text.size());
    ASSERT_TRUE(memory) << memory.error().to_string();
    EXPECT_EQ(memory->place().to_string(), "n/gpu:2");
    const auto done = here->copy(source(), memory->buffer()).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    // Another says that they were encrypted, where they were.
    ASSERT_EQ(done->notes.size(), std::getenv("SIDESTEP_NETWORK_ENCRYPTION") != nullptr ? 2u : 1u);
    EXPECT_EQ(done->notes[0].find("n moved them by pinned memory and its host-emulated copy engine"), 0u)
        << done->notes[0];
    std::string part(70'001, '\0');
    const auto read =
        here->copy(memory->buffer().slice(999'999, part.size()), Buffer::host(part.data(), part.size()))
            .wait();
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_TRUE(part == text.substr(999'999, part.size()));
    auto beyond = memory->buffer().slice(text.size() - 1, 2);
    const auto refused = here->copy(beyond, Buffer::host(part.data(), 2)).wait();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::not_found) << refused.error().to_string();
}

TEST_F(Network, PublishedMemory) {
    auto memory = machine.allocate(Place::gpu(3), text.size());
    ASSERT_TRUE(memory);
    const std::string name = "network-test-" + std::to_string(::getpid());
    auto published = machine.publish(name, *memory);
    ASSERT_TRUE(published) << published.error().to_string();
    const auto size = here->size(Buffer::shared(name).on("n"));
    ASSERT_TRUE(size) << size.error().to_string();
    EXPECT_EQ(*size, text.size());
    const auto put = here->copy(source(), Buffer::shared(name).on("n")).wait();
    ASSERT_TRUE(put) << put.error().to_string();
    std::string back(text.size(), '\0');
    const auto got = here->copy(Buffer::shared(name).on("n"), Buffer::host(back.data(), back.size())).wait();
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_TRUE(back == text);
}

// The node is asked about an allocation once for each direction, not about each part of it.
TEST_F(Network, ABatch) {
    constexpr std::size_t count = 500, bytes = 1000;
    const auto attached = [&] {
        const std::string told = serving->metrics();
        const std::string line = R"(sidestep_requests_total{word="attach",outcome="ok"} )";
        return std::stoul(told.substr(told.find(line) + line.size()));
    };
    for (const char* where : {"n/host", "n/gpu:1"}) {
        constexpr Bytes before_all = 640;  // they are not at the allocation's beginning
        auto memory = here->allocate(*Place::parse(where), before_all + count * bytes);
        ASSERT_TRUE(memory) << memory.error().to_string();
        std::string back(count * bytes, '\0');
        std::vector<BatchItem> there, again;
        for (std::size_t i = 0; i < count; ++i) {
            const Buffer part = memory->buffer().slice(before_all + (count - 1 - i) * bytes, bytes);
            there.push_back({Buffer::host(text.data() + i * bytes, bytes), part});
            again.push_back({part, Buffer::host(back.data() + i * bytes, bytes)});
        }
        const unsigned long before = attached();
        const auto done = here->copy_batch(there).wait();
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_EQ(done->bytes, count * bytes);
        ASSERT_TRUE(here->copy_batch(again).wait());
        EXPECT_TRUE(back == text.substr(0, count * bytes)) << where;
        std::string last(bytes, '\0');
        ASSERT_TRUE(
            here->copy(memory->buffer().slice(before_all, bytes), Buffer::host(last.data(), bytes)).wait());
        EXPECT_TRUE(last == text.substr((count - 1) * bytes, bytes)) << where;
        EXPECT_EQ(attached(), before + 2) << where;
        // Copies of parts do without as well.
        ASSERT_TRUE(here->copy(again[7].from, again[8].to).wait());
        EXPECT_EQ(back.substr(8 * bytes, bytes), text.substr(7 * bytes, bytes));
        EXPECT_EQ(attached(), before + 2) << where;
    }
}

// Pieces of several allocations in turn: those of one are together only as far as they are neighbours.
TEST_F(Network, ABatchOfSeveralAllocations) {
    constexpr std::size_t count = 600, bytes = 900;
    for (const char* where : {"n/host", "n/gpu:1"}) {
        std::vector<Allocation> memory;
        for (int i = 0; i < 3; ++i) memory.push_back(*here->allocate(*Place::parse(where), count * bytes));
        std::string back(count * bytes, '\0');
        std::vector<BatchItem> there, again;
        for (std::size_t i = 0; i < count; ++i) {
            const Buffer part = memory[i / 2 % 3].buffer().slice(i * bytes, bytes);
            there.push_back({Buffer::host(text.data() + i * bytes, bytes), part});
            again.push_back({part, Buffer::host(back.data() + i * bytes, bytes)});
        }
        ASSERT_TRUE(here->copy_batch(there).wait());
        ASSERT_TRUE(here->copy_batch(again).wait());
        EXPECT_TRUE(back == text.substr(0, count * bytes)) << where;
    }
}

// GPU to GPU of the node: both hops take many pieces at a time, with staging memory between them. Large ones go by themselves.
TEST_F(Network, ABatchByStaging) {
    const std::string all = test::text_of(Bytes{40} << 20, 5);
    auto mine = here->allocate(Place::gpu(0), all.size());
    auto theirs = here->allocate(Place::gpu(1).on("n"), all.size());
    ASSERT_TRUE(mine && theirs);
    ASSERT_TRUE(here->copy(Buffer::host(all.data(), all.size()), mine->buffer()).wait());
    std::vector<BatchItem> there, back;
    Bytes at = 0;
    for (std::size_t i = 0; at < all.size(); ++i) {
        const Bytes wanted = i == 700 ? Bytes{5} << 20 : i % 3 == 0 ? 777 : 40'000;
        const Bytes size = std::min(wanted, all.size() - at);
        there.push_back(
            {mine->buffer().slice(at, size), theirs->buffer().slice(all.size() - at - size, size)});
        back.push_back({there.back().to, there.back().from});
        at += size;
    }
    for (const Bytes staging : {Bytes{1} << 30, Bytes{20} << 20, Bytes{3} << 20, Bytes{1} << 19}) {
        std::string other(all.size(), '#');
        CopyOptions options;
        options.max_staging = staging;
        const auto pushed = here->copy_batch(there, options).wait();
        ASSERT_TRUE(pushed) << pushed.error().to_string();
        EXPECT_EQ(pushed->bytes, all.size());
        EXPECT_EQ(pushed->route->lanes[0].hops.size(), 2u);
        ASSERT_TRUE(here->copy(Buffer::host(other.data(), other.size()), mine->buffer()).wait());
        const auto pulled = here->copy_batch(back, options).wait();
        ASSERT_TRUE(pulled) << pulled.error().to_string();
        ASSERT_TRUE(here->copy(mine->buffer(), Buffer::host(other.data(), other.size())).wait());
        EXPECT_TRUE(other == all) << staging;
    }
    serving.reset();
    EXPECT_FALSE(here->copy_batch(there).wait());
    EXPECT_FALSE(here->copy_batch(back).wait());
}

TEST_F(Network, ABatchWhoseNodeGoes) {
    auto memory = here->allocate(Place::host().on("n"), text.size());
    ASSERT_TRUE(memory) << memory.error().to_string();
    std::vector<BatchItem> items;
    for (std::size_t i = 0; i < 300; ++i)
        items.push_back({source().slice(i * 10'000, 10'000), memory->buffer().slice(i * 10'000, 10'000)});
    ASSERT_TRUE(here->copy_batch(items).wait());
    serving.reset();
    const auto done = here->copy_batch(items).wait();
    ASSERT_FALSE(done);
    EXPECT_FALSE(done.error().message.empty());
}

TEST_F(Network, TheSizeOfAFile) {
    test::put(path("in/sized"), text);
    EXPECT_EQ(*here->size(Buffer::file(path("in/sized")).on("n")), text.size());
    const auto absent = here->size(Buffer::file(path("in/absent")).on("n"));
    ASSERT_FALSE(absent);
    EXPECT_EQ(absent.error().code, ErrorCode::not_found) << absent.error().to_string();
}

TEST_F(Network, ManyCopiesAtATime) {
    auto memory = here->allocate(Place::gpu(1).on("n"), 64 * 100'000);
    ASSERT_TRUE(memory) << memory.error().to_string();
    std::vector<Transfer> copies;
    const std::string all = test::text_of(64 * 100'000, 3);
    for (std::size_t i = 0; i < 64; ++i)
        copies.push_back(here->copy(Buffer::host(all.data() + i * 100'000, 100'000),
                                    memory->buffer().slice(i * 100'000, 100'000)));
    for (Transfer& copy : copies) {
        const auto done = copy.wait();
        ASSERT_TRUE(done) << done.error().to_string();
    }
    std::string back(all.size(), '\0');
    ASSERT_TRUE(here->copy(memory->buffer(), Buffer::host(back.data(), back.size())).wait());
    EXPECT_TRUE(back == all);
}

TEST_F(Network, MoreThanTheSlotsHold) {
    const std::string all = test::text_of(Bytes{100} << 20, 9);
    auto memory = here->allocate(Place::gpu(1).on("n"), all.size());
    ASSERT_TRUE(memory) << memory.error().to_string();
    CopyOptions many;
    many.chunk = 1 << 20;
    const auto there = here->copy(Buffer::host(all.data(), all.size()), memory->buffer(), many).wait();
    ASSERT_TRUE(there) << there.error().to_string();
    std::string back(all.size(), '\0');
    const auto done = here->copy(memory->buffer(), Buffer::host(back.data(), back.size()), many).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(back == all);
}

TEST_F(Network, TheRouteTellsOfTheEngine) {
    const auto route = here->route(Place::gpu(0), Place::gpu(3).on("n"), 1 << 20);
    ASSERT_TRUE(route) << route.error().to_string();
    ASSERT_EQ(route->lanes.size(), 1u);
    ASSERT_EQ(route->lanes[0].hops.size(), 2u);
    EXPECT_EQ(route->lanes[0].hops[1].backend, "tcp");
    CopyOptions direct;
    direct.require = Require::direct;
    EXPECT_FALSE(here->route(Place::gpu(0), Place::gpu(3).on("n"), 1 << 20, direct));
    EXPECT_TRUE(here->route(Place::host(), Place::gpu(3).on("n"), 1 << 20, direct));
}

}  // namespace
}  // namespace sidestep
