// An owner of a link whose frames carry the bytes of one memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "backend/network.hpp"
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"

namespace sidestep::wire::test {

constexpr Bytes one_mib = Bytes{1} << 20;

// Puts what comes into its memory, at the frame's offset.
class Target final : public backend::LinkOwner {
public:
    static constexpr Bytes guard = 4096;
    explicit Target(Bytes size) : bytes_(size + 2 * guard, '#') {}

    Result<Landing> landing(const Frame& frame) override {
        if (frame.offset + frame.size > size()) return some_error();
        return Landing{Landing::Kind::here, (instead != nullptr ? instead : data()) + frame.offset};
    }
    Result<void> arrived(const Frame& frame, Landing) override {
        if (ends > 0) ADD_FAILURE() << "a frame after the end";
        came.fetch_add(frame.size);
        ++frames;
        return arrives ? arrives(frame) : Result<void>();
    }
    void ended(Error error) override {
        why = std::move(error);
        ++ends;
    }

    char* data() { return bytes_.data() + guard; }
    Bytes size() const { return bytes_.size() - 2 * guard; }
    std::string text() const { return bytes_.substr(guard, size()); }
    const std::string& all() const { return bytes_; }
    bool whole() const {
        const std::string kept(guard, '#');
        return bytes_.starts_with(kept) && bytes_.ends_with(kept);
    }

    std::function<Result<void>(const Frame&)> arrives;
    char* instead = nullptr;  // memory of the same size that is written in place of its own
    std::atomic<Bytes> came{0};
    std::atomic<std::uint64_t> frames{0};
    std::atomic<int> ends{0};
    Error why;

private:
    std::string bytes_;
};

// Two ends of an engine that moves the bytes of large frames around the processor.
template <typename Engine>
class TwoEnds : public testing::Test {
protected:
    // Two ends with `size` bytes each.
    void join(Bytes size, std::size_t sockets = 1) {
        for (std::size_t i = 0; i < 2; ++i) {
            targets[i] = std::make_shared<Target>(size);
            links[i] = engine->link(targets[i]);
        }
        for (std::size_t i = 0; i < sockets; ++i) {
            Ends ends = connected();
            ASSERT_TRUE(links[0]->add(number_of(std::move(ends.one))).ok());
            ASSERT_TRUE(links[1]->add(number_of(std::move(ends.other))).ok());
        }
    }
    // In parts of `part` bytes, from whichever end `from` is.
    void push(std::size_t from, const std::string& bytes, Bytes part, std::atomic<std::uint64_t>& sent) {
        for (Bytes at = 0; at < bytes.size(); at += part) {
            const Bytes size = std::min(part, bytes.size() - at);
            links[from]->send({Frame::Kind::push, 1, 1, at, size}, bytes.data() + at, [&sent] { ++sent; });
        }
    }
    void end() {
        for (auto& link : links) link->end(some_error());
        for (const auto& target : targets) EXPECT_EQ(target->ends, 1);
    }
    std::array<std::uint64_t, 4> counts() const {
        const auto& all = engine->counts();
        return {all.direct_out, all.bounced_out, all.direct_in, all.bounced_in};
    }

    std::unique_ptr<Engine> engine;
    std::array<std::shared_ptr<Target>, 2> targets;
    std::array<std::shared_ptr<backend::Link>, 2> links;
};

// Large bytes stay the sender's until the engine has taken them.
inline void expect_told_when_gone(backend::NetworkEngine& engine) {
    constexpr Bytes large = Bytes{1} << 20;
    const auto owner = std::make_shared<FakeOwner>();
    std::atomic<bool> room{false};
    owner->lands = [&](const Frame&) -> std::optional<Result<Landing>> {
        if (!room) return Result<Landing>(Landing{Landing::Kind::later});
        return std::nullopt;
    };
    const auto sender = std::make_shared<Target>(large);
    const auto receiving = engine.link(owner), sending = engine.link(sender);
    Ends ends = connected();
    ASSERT_TRUE(receiving->add(number_of(std::move(ends.one))).ok());
    ASSERT_TRUE(sending->add(number_of(std::move(ends.other))).ok());
    std::string bytes = sidestep::test::text_of(large, 1);
    const std::string same = bytes;
    std::atomic<int> sent{0};
    sending->send({Frame::Kind::push, 1, 1, 0, large}, bytes.data(), [&] {
        std::memset(bytes.data(), 0, bytes.size());
        ++sent;
    });
    ASSERT_TRUE(comes([&] { return owner->asked > 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(sent, 0);
    room = true;
    receiving->resume(backend::Link::Resume::all);
    ASSERT_TRUE(comes([&] { return owner->count() == 1 && sent == 1; }));
    EXPECT_TRUE(owner->came().front().payload == same);
    sending->end(some_error());
    receiving->end(some_error());
}

// What waits for a place is asked for again when it is told to be, frames of every size.
inline void expect_asked_again(backend::NetworkEngine& engine) {
    const auto owner = std::make_shared<FakeOwner>();
    std::mutex mutex;
    int places = 3, waiting = 0;
    owner->lands = [&](const Frame&) -> std::optional<Result<Landing>> {
        std::lock_guard lock(mutex);
        if (places > 0) return --places, std::nullopt;
        ++waiting;
        return Result<Landing>(Landing{Landing::Kind::later});
    };
    const auto sender = std::make_shared<Target>(Bytes{1} << 20);
    const auto receiving = engine.link(owner), sending = engine.link(sender);
    for (int i = 0; i < 2; ++i) {
        Ends ends = connected();
        ASSERT_TRUE(receiving->add(number_of(std::move(ends.one))).ok());
        ASSERT_TRUE(sending->add(number_of(std::move(ends.other))).ok());
    }
    const std::string bytes = sidestep::test::text_of(64 << 10, 1);
    constexpr std::uint64_t frames = 600;
    for (std::uint64_t i = 0; i < frames; ++i)
        sending->send({Frame::Kind::push, i, 1, 0, i % 3 == 0 ? bytes.size() : i % 4096}, bytes.data(), {});
    std::uint64_t freed = 0;
    while (freed < frames) {
        ASSERT_TRUE(comes([&] { return owner->count() > freed; })) << freed;
        ++freed;
        bool tell = false;
        {
            std::lock_guard lock(mutex);
            ++places;
            tell = waiting > 0;
            if (tell) --waiting;
        }
        if (tell) receiving->resume(backend::Link::Resume::one);
    }
    std::vector<int> times(frames);
    for (const auto& one : owner->came()) {
        ASSERT_LT(one.frame.request, frames);
        ++times[one.frame.request];
        EXPECT_TRUE(one.payload == bytes.substr(0, one.frame.size));
    }
    EXPECT_EQ(times, std::vector<int>(frames, 1));
    sending->end(some_error());
    receiving->end(some_error());
}

}  // namespace sidestep::wire::test
