// Copies from one node to another, past the machine that asks for them.
#include <chrono>
#include <functional>
#include <thread>
#include <tuple>

#include "tests/network/nodes.hpp"
#include "tests/network/proxy.hpp"
#include "tests/slower.hpp"

namespace sidestep {
namespace {

using test::Proxy;

// Nodes "a" and "b", each behind a proxy, and a machine that knows both.
class Passing : public test::Nodes {
protected:
    Passing() {
        serve_b(path("key"));
        know("a=" + to_a.address() + ",b=" + to_b->address());
    }
    ~Passing() override {
        here.reset();
        serving_b.reset();
    }

    void serve_b(const std::string& key_file) {
        ServeOptions options;
        options.listen = "127.0.0.1:0";
        options.allow = allow;
        options.key_file = key_file;
        options.name = "the-other";
        serving_b.reset();
        auto started = machine_b.serve(options);
        ASSERT_TRUE(started) << started.error().to_string();
        serving_b = std::make_unique<Serving>(std::move(*started));
        const std::string at = serving_b->addresses().front();
        to_b = std::make_unique<Proxy>(at.substr(at.rfind(':') + 1));
    }
    void know(const std::string& nodes) {
        ContextOptions options{"dgx-h100"};
        options.nodes = nodes;
        options.key_file = path("key");
        auto opened = Context::open(std::move(options));
        ASSERT_TRUE(opened) << opened.error().to_string();
        *here = std::move(*opened);
    }

    // A place of either node with these bytes, or so many that are something else.
    struct End {
        Allocation memory;
        Buffer buffer;
    };
    End make(const std::string& where, const std::string& name, const std::string& text) {
        const Place place = *Place::parse(where);
        if (place.is_file()) {
            test::put(path(name), text);
            return {{}, Buffer::file(path(name)).on(place.node())};
        }
        auto memory = here->allocate(place, text.size());
        if (!memory) ADD_FAILURE() << where << ": " << memory.error().to_string();
        End end{std::move(*memory), {}};
        end.buffer = end.memory.buffer();
        const auto done = here->copy(Buffer::host(text.data(), text.size()), end.buffer).wait();
        EXPECT_TRUE(done) << done.error().to_string();
        return end;
    }

    static bool has_note(const Receipt& receipt, const std::string& words) {
        return receipt.explain().find(words) != std::string::npos;
    }
    static constexpr const char* straight = "a sent them to b itself, by tcp";

    Context machine_b = *Context::open({"dgx-h100"});
    std::unique_ptr<Serving> serving_b;
    Proxy to_a{port()};
    std::unique_ptr<Proxy> to_b;
};

class EndsOfPassing : public Passing,
                      public testing::WithParamInterface<std::tuple<const char*, const char*, Bytes>> {};

TEST_P(EndsOfPassing, BytesGoStraight) {
    const auto [from, to, bytes] = GetParam();
    const std::string text = test::text_of(bytes, 9);
    const End source = make(from, "in/source", text);
    const End target = make(to, "out/target", std::string(bytes, 'x'));
    const auto before_a = serving->counts();
    const auto before_b = serving_b->counts();
    const auto done = here->copy(source.buffer, target.buffer).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(done->bytes, bytes);
    EXPECT_TRUE(has_note(*done, straight)) << done->explain();
    EXPECT_EQ(serving->counts().sent, before_a.sent) << "to clients, as this machine is";
    EXPECT_EQ(serving_b->counts().received, before_b.received + bytes);
    EXPECT_EQ(serving_b->counts().sent, before_b.sent);
    EXPECT_TRUE(holds(target.buffer, text));
    // The next copy to the same place is told for itself.
    const auto other = here->copy(Buffer::host(text.data(), bytes), target.buffer).wait();
    ASSERT_TRUE(other) << other.error().to_string();
    EXPECT_FALSE(has_note(*other, straight)) << other->explain();
}

INSTANTIATE_TEST_SUITE_P(Kinds, EndsOfPassing,
                         testing::Combine(testing::Values("a/host", "a/gpu:1", "a/file:/f"),
                                          testing::Values("b/host", "b/gpu:2", "b/file:/f"),
                                          testing::Values(Bytes{1}, Bytes{9'000'001})));

TEST_F(Passing, WhatIsVerifiedIsReadAgain) {
    const std::string text = test::text_of(5'000'000, 3);
    const End source = make("a/file:/f", "in/source", text);
    const End target = make("b/file:/f", "out/target", "before");
    CopyOptions verify;
    verify.verify = true;
    const auto done = here->copy(source.buffer, target.buffer, verify).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(done->verified);
    EXPECT_TRUE(has_note(*done, straight)) << done->explain();
    EXPECT_TRUE(holds(target.buffer, text));
}

TEST_F(Passing, ManyPartsAtATime) {
    constexpr Bytes part = 300'000;
    constexpr std::size_t count = 40;
    const std::string text = test::text_of(part * count, 4);
    const End source = make("a/gpu:0", "", text);
    const End target = make("b/gpu:0", "", std::string(text.size(), 'x'));
    std::vector<Transfer> copies;
    // Each part to another place than it has.
    for (std::size_t i = 0; i < count; ++i)
        copies.push_back(here->copy(source.buffer.slice(i * part, part),
                                    target.buffer.slice((count - 1 - i) * part, part)));
    std::string expected;
    for (std::size_t i = count; i > 0; --i) expected += text.substr((i - 1) * part, part);
    for (Transfer& copy : copies) {
        const auto done = copy.wait();
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_TRUE(has_note(*done, straight)) << done->explain();
    }
    EXPECT_TRUE(holds(target.buffer, expected));
}

// Of one allocation to another, and of several to several, scattered.
TEST_F(Passing, ABatchOfThousands) {
    for (const Bytes part : {Bytes{1}, Bytes{4096}, Bytes{16'384}})
        for (const auto& [from, to] :
             std::vector<std::pair<std::string, std::string>>{{"a/host", "b/host"},
                                                              {"a/host", "b/gpu:2"},
                                                              {"a/gpu:1", "b/host"},
                                                              {"a/gpu:1", "b/gpu:0"},
                                                              {"a/host", "a/gpu:0"}}) {
            // Of the largest, more than may be on the way at a time, once: 94 MiB.
            const std::size_t count = part == 1 || (part == 16'384 && to == "b/gpu:0") ? 3000
                                      : part == 4096                                   ? 3000 / slower_by
                                                                                       : 500;
            const std::string text = test::text_of(part * count, 4);
            std::vector<End> sources, targets;
            for (int i = 0; i < 2; ++i) {
                sources.push_back(make(from, "", text));
                targets.push_back(make(to, "", std::string(text.size(), 'x')));
            }
            std::vector<BatchItem> items;
            std::string expected[2];
            for (auto& one : expected) one.resize(text.size());
            for (std::size_t i = 0; i < count * 2; ++i) {
                const std::size_t at = i / 2 * 7919 % count;
                items.push_back({sources[i % 2].buffer.slice(i / 2 * part, part),
                                 targets[(i + i / 64) % 2].buffer.slice(at * part, part)});
                expected[(i + i / 64) % 2].replace(at * part, part, text, i / 2 * part, part);
            }
            const auto before = serving->counts();
            const auto done = here->copy_batch(items).wait();
            ASSERT_TRUE(done) << from << " to " << to << ": " << done.error().to_string();
            EXPECT_EQ(done->bytes, 2 * text.size());
            EXPECT_TRUE(has_note(*done, "a sent them to")) << done->explain();
            EXPECT_EQ(serving->counts().sent, before.sent) << "to clients, as this machine is";
            for (int i = 0; i < 2; ++i)
                EXPECT_TRUE(holds(targets[i].buffer, expected[i])) << from << " to " << to;
        }
}

TEST_F(Passing, ABatchWhereOneNodeDoesNotReachTheOther) {
    const std::string text = test::text_of(1'000'000, 6);
    const End source = make("a/gpu:0", "", text);
    const End target = make("b/host", "", std::string(text.size(), 'x'));
    to_b->refuse();
    std::vector<BatchItem> items;
    for (Bytes at = 0; at < text.size(); at += 1000)
        items.push_back({source.buffer.slice(at, 1000), target.buffer.slice(at, 1000)});
    const auto done = here->copy_batch(items).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(has_note(*done, "a does not reach b")) << done->explain();
    EXPECT_TRUE(holds(target.buffer, text));
}

TEST_F(Passing, BetweenTwoPlacesOfOneNode) {
    const std::string text = test::text_of(5'000'000, 5);
    const End source = make("a/file:/f", "in/source", text);
    const End target = make("a/gpu:3", "", std::string(text.size(), 'x'));
    const auto before = serving->counts();
    const auto done = here->copy(source.buffer, target.buffer).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(has_note(*done, "a sent them to a itself")) << done->explain();
    EXPECT_EQ(serving->counts().received, before.received + text.size()) << "by itself";
    EXPECT_TRUE(holds(target.buffer, text));
}

// All of it goes through this machine then, and the receipt says why.
TEST_F(Passing, WhereOneNodeDoesNotReachTheOther) {
    const std::string text = test::text_of(3'000'000, 6);
    const End source = make("a/file:/f", "in/source", text);
    const End target = make("b/host", "", std::string(text.size(), 'x'));
    to_b->refuse();  // this machine is there already
    for (int times = 0; times < 2; ++times) {
        const auto done = here->copy(source.buffer, target.buffer).wait();
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_FALSE(has_note(*done, "itself")) << done->explain();
        EXPECT_TRUE(has_note(*done, "a does not reach b")) << done->explain();
        EXPECT_TRUE(holds(target.buffer, text));
    }
}

constexpr Bytes large = slower_by > 1 ? 24_MiB : 96_MiB;

class PassingFaults : public Passing {
protected:
    // Some of it has gone.
    static void wait_for_some(Transfer& copy) {
        const Bytes before = copy.bytes_done();
        while (!copy.poll() && copy.bytes_done() < before + (large >> 5)) std::this_thread::yield();
    }
    // One that cannot come to its end before the way to b is let go again.
    Transfer held_midway(const Buffer& from, const Buffer& to, const CopyOptions& options = {}) {
        return held_midway([&] { return here->copy(from, to, options); });
    }
    Transfer held_midway(const std::function<Transfer()>& begin) {
        for (int tries = 0;; ++tries) {
            const std::size_t before = to_b->bytes_passed();
            Transfer copy = begin();
            wait_for_some(copy);
            to_b->stall(true);
            if (!copy.poll() && to_b->bytes_passed() - before < large / 4 * 3) return copy;
            to_b->stall(false);
            EXPECT_TRUE(copy.wait());
            if (tries < 20) continue;
            ADD_FAILURE() << "no copy was held midway";
            return copy;
        }
    }
    // The other way round in the target, in pieces of 1 KiB, and some of 2 MiB.
    static std::vector<BatchItem> pieces(const Buffer& from, const Buffer& to) {
        std::vector<BatchItem> items;
        for (Bytes at = 0; at < large; at += items.back().from.size()) {
            const Bytes size = at / 2_MiB % 8 == 3 ? 2_MiB : 1_KiB;
            items.push_back({from.slice(at, size), to.slice(large - at - size, size)});
        }
        return items;
    }
    static std::string moved(const std::string& text, const std::vector<BatchItem>& items) {
        std::string moved;
        Bytes end = text.size();
        for (auto item = items.rbegin(); item != items.rend(); ++item)
            moved += text.substr(end -= item->from.size(), item->from.size());
        return moved;
    }
    // The nodes lose each other for good, with the connections that there are but for the first ones.
    void lose(int ours) {
        to_b->refuse();
        to_b->cut(ours);
        to_b->stall(false);
    }
    const std::string text = test::text_of(large, 8);
};

// Those from here to either node, and those between the two.
TEST_F(PassingFaults, CutConnectionsAreMadeAnew) {
    const End source = make("a/gpu:1", "", text);
    int midway = 0;
    for (const char* where : {"b/gpu:1", "b/file:/f"})
        for (Proxy* way : {&to_a, to_b.get()}) {
            const End target = make(where, "out/target", std::string(large, 'x'));
            Transfer copy = here->copy(source.buffer, target.buffer);
            for (int times = 0; times < 2; ++times) {
                wait_for_some(copy);
                midway += copy.poll() ? 0 : 1;
                way->cut();
            }
            const auto done = copy.wait();
            ASSERT_TRUE(done) << where << ": " << done.error().to_string();
            EXPECT_TRUE(has_note(*done, straight)) << done->explain();
            EXPECT_TRUE(holds(target.buffer, text)) << where;
        }
    EXPECT_GT(midway, 0) << "not one of eight cuts came midway";
}

// What is left goes through this machine, which is still connected to both.
TEST_F(PassingFaults, TheNodesLoseEachOtherForGood) {
    const End source = make("a/gpu:1", "", text);
    const End target = make("b/gpu:1", "", std::string(large, 'x'));
    const End file = make("b/file:/f", "out/target", std::string(large, 'x'));
    const int ours = to_b->connections();  // all that copies of this size use
    Transfer copy = held_midway(source.buffer, target.buffer);
    lose(ours);
    const auto done = copy.wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(done->bytes, large);
    EXPECT_TRUE(has_note(*done, "a does not reach b")) << done->explain();
    EXPECT_TRUE(has_note(*done, "had gone past this machine")) << done->explain();
    EXPECT_EQ(done->route->lanes[0].hops.size(), 2u) << done->explain();
    EXPECT_LT(done->lane_bytes.at(0), large) << done->explain();
    EXPECT_TRUE(holds(target.buffer, text));
    // The next one goes that way from the beginning.
    const auto next = here->copy(source.buffer, file.buffer).wait();
    ASSERT_TRUE(next) << next.error().to_string();
    EXPECT_FALSE(has_note(*next, "itself")) << next->explain();
    EXPECT_TRUE(holds(file.buffer, text));
}

// A copy that needs one hop fails.
TEST_F(PassingFaults, NotWhereOnlyTheDirectWayWillDo) {
    const End source = make("a/gpu:1", "", text);
    const End target = make("b/gpu:1", "", text);
    const int ours = to_b->connections();
    CopyOptions direct;
    direct.require = Require::direct;
    Transfer copy = held_midway(source.buffer, target.buffer, direct);
    lose(ours);
    EXPECT_FALSE(copy.wait());
}

// Of a batch too, and what goes other ways goes on.
TEST_F(PassingFaults, TheNodesLoseEachOtherDuringABatch) {
    const End source = make("a/gpu:1", "", text);
    const End target = make("b/gpu:1", "", std::string(large, 'x'));
    std::string mine(large, '?');
    auto items = pieces(source.buffer, target.buffer);
    const std::string expected = moved(text, items);
    for (const BatchItem& item : pieces(source.buffer, Buffer::host(mine.data(), large)))
        items.push_back(item);
    const int ours = to_b->connections();
    Transfer copy = held_midway([&] { return here->copy_batch(items); });
    lose(ours);
    const auto done = copy.wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(done->bytes, 2 * large);
    EXPECT_TRUE(has_note(*done, "a does not reach b")) << done->explain();
    EXPECT_TRUE(has_note(*done, "had gone past this machine")) << done->explain();
    EXPECT_TRUE(holds(target.buffer, expected));
    EXPECT_TRUE(mine == expected);
}

// Nor does a batch go on that needs one hop, or whose other node has gone itself.
TEST_F(PassingFaults, BatchesThatCannotGoOn) {
    for (const bool gone : {false, true}) {
        know("a=" + to_a.address() + ",b=" + to_b->address());
        const End source = make("a/gpu:1", "", text);
        const End target = make("b/gpu:1", "", text);
        const auto items = pieces(source.buffer, target.buffer);
        const int ours = to_b->connections();
        CopyOptions options;
        if (!gone) options.require = Require::direct;
        Transfer copy = held_midway([&] { return here->copy_batch(items, options); });
        if (gone) serving_b.reset();
        lose(ours);
        const auto done = copy.wait();
        ASSERT_FALSE(done) << done->explain();
        EXPECT_NE(done.error().to_string().find("of the batch: "), std::string::npos)
            << done.error().to_string();
        EXPECT_TRUE(holds(source.buffer, text)) << "the first node serves on";
        if (!gone) serve_b(path("key"));
    }
}

TEST_F(PassingFaults, TheOtherNodeGoesMidway) {
    const End source = make("a/gpu:1", "", text);
    const End target = make("b/host", "", std::string(large, 'x'));
    Transfer copy = held_midway(source.buffer, target.buffer);
    serving_b.reset();
    to_b->stall(false);
    const auto done = copy.wait();
    ASSERT_FALSE(done);
    EXPECT_FALSE(done.error().message.empty());
    EXPECT_TRUE(holds(source.buffer, text)) << "the first node serves on";
}

TEST_F(PassingFaults, WhoAskedGoesMidway) {
    const End source = make("a/gpu:1", "", text);
    const Buffer target = Buffer::file(path("out/target")).on("b");
    Transfer copy = held_midway([&] {
        std::filesystem::remove(path("out/target"));  // of a copy that came to its end
        return here->copy(source.buffer, target);
    });
    copy.cancel();
    to_b->stall(false);
    static_cast<void>(copy.wait());
    here.reset();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const auto trace = [&] { return !std::filesystem::is_empty(path("out")); };
    while (trace() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_FALSE(trace()) << "what was not finished leaves nothing";
    here = std::make_unique<Context>(*client());
    EXPECT_TRUE(here->allocate(*Place::parse("n/host"), 4096)) << "the first node serves on";
}

}  // namespace
}  // namespace sidestep
