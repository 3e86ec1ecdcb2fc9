// An owner of a link whose frames carry the bytes of one memory.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "backend/network.hpp"
#include "tests/contents.hpp"
#include "tests/network/link_rig.hpp"

namespace sidestep::wire::test {

// Puts what comes into its memory, at the frame's offset.
class Target final : public backend::LinkOwner {
public:
    static constexpr Bytes guard = 4096;
    explicit Target(Bytes size) : bytes_(size + 2 * guard, '#') {}

    Result<Landing> landing(const Frame& frame) override {
        if (frame.offset + frame.size > size()) return some_error();
        return Landing{Landing::Kind::here, data() + frame.offset};
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
    std::atomic<Bytes> came{0};
    std::atomic<std::uint64_t> frames{0};
    std::atomic<int> ends{0};
    Error why;

private:
    std::string bytes_;
};

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
