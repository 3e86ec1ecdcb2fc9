// Ranks that try again without those that are gone; the test carries their messages, so that it decides what
// arrives when.
#include "collective/exchanges.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;
using Answered = Result<Exchanges::Answers>;

constexpr std::uint32_t without(std::initializer_list<unsigned> ranks) {
    std::uint32_t members = 0b1111;
    for (const unsigned rank : ranks) members &= ~(1u << rank);
    return members;
}

// Four ranks, of which 0 and 3 call.
class RetriedExchanges : public testing::Test {
protected:
    RetriedExchanges() {
        for (const unsigned rank : {0u, 3u})
            ranks_.at(rank) = std::make_unique<Exchanges>(Exchanges::Surroundings{
                rank, 4, [this, rank](unsigned to, Message message) { send(rank, to, std::move(message)); },
                [this, rank](unsigned other) { return (gone_.at(rank) >> other & 1) != 0; },
                [](unsigned other) { return fmt::format("rank {}", other); }, [] { return Result<void>(); }});
    }

    void hears_of_the_death(unsigned rank, unsigned other) {
        gone_.at(rank) |= 1u << other;
        ranks_.at(rank)->wake();
    }

    std::future<Answered> shrink(unsigned rank, std::uint32_t members) {
        return std::async(std::launch::async, [this, rank, members] {
            return ranks_.at(rank)->call(Exchanges::Kind::shrink, "", members,
                                         Clock::now() + std::chrono::seconds(20), {});
        });
    }

    void send(unsigned from, unsigned to, Message message) {
        if (ranks_.at(to) == nullptr) return;
        const std::lock_guard lock(mutex_);
        on_the_way_.at(from).push_back(std::move(message));
    }
    std::optional<Word> last_word(unsigned from) {
        const std::lock_guard lock(mutex_);
        const auto& messages = on_the_way_.at(from);
        return messages.empty() ? std::nullopt : std::optional(messages.back().word);
    }
    // All that the rank has sent.
    void deliver(unsigned from) {
        while (last_word(from)) {
            std::unique_lock lock(mutex_);
            const Message message = std::move(on_the_way_.at(from).front());
            on_the_way_.at(from).pop_front();
            lock.unlock();
            ranks_.at(3 - from)->handle(from, message);
        }
    }
    // The same once it has begun an exchange.
    void deliver_offer(unsigned from) {
        const auto until = Clock::now() + std::chrono::seconds(20);
        while (last_word(from) != Word::exchange && Clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASSERT_EQ(last_word(from), Word::exchange);
        deliver(from);
    }
    Answered end_of(std::future<Answered>& call) {
        while (call.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
            for (const unsigned rank : {0u, 3u}) deliver(rank);
        return call.get();
    }

private:
    std::array<std::unique_ptr<Exchanges>, 4> ranks_;
    std::array<std::atomic<std::uint32_t>, 4> gone_{};
    std::mutex mutex_;  // guards what follows
    std::array<std::deque<Message>, 4> on_the_way_;
};

// Rank 0 has given up once and has gone on when rank 3 begins its first try.
TEST_F(RetriedExchanges, MeetWhereOneIsBehind) {
    hears_of_the_death(0, 2);
    auto first = shrink(0, without({1}));
    ASSERT_FALSE(end_of(first).ok());
    deliver(0);
    auto second = shrink(0, without({1, 2}));
    auto late = shrink(3, without({1}));
    deliver_offer(3);  // an exchange that rank 0 is not in any more
    deliver_offer(0);
    const Answered missed = end_of(late);
    ASSERT_FALSE(missed.ok());
    auto last = shrink(3, without({1, 2}));
    for (auto* call : {&second, &last}) {
        const Answered answers = end_of(*call);
        EXPECT_TRUE(answers.ok()) << answers.error().to_string();
    }
}

// Whatever the others say of such an exchange, this is why it cannot be.
TEST_F(RetriedExchanges, FailForTheRankThatIsGone) {
    hears_of_the_death(0, 2);
    hears_of_the_death(3, 2);
    auto first = shrink(0, without({1}));
    ASSERT_FALSE(end_of(first).ok());
    auto second = shrink(0, without({1, 2}));
    deliver_offer(0);
    auto late = shrink(3, without({1}));
    const Answered missed = end_of(late);
    ASSERT_FALSE(missed.ok());
    EXPECT_EQ(missed.error().message, "rank 2 has died or left");
    auto last = shrink(3, without({1, 2}));
    EXPECT_TRUE(end_of(last).ok());
    EXPECT_TRUE(end_of(second).ok());
}

// Both have tried and failed together; then they want different things.
TEST_F(RetriedExchanges, StillNoticeThatRanksExcludeDifferentOnes) {
    auto first = shrink(0, without({1}));
    auto other = shrink(3, without({1}));
    deliver_offer(0);
    deliver_offer(3);
    hears_of_the_death(0, 2);
    hears_of_the_death(3, 2);
    EXPECT_FALSE(end_of(first).ok());
    EXPECT_FALSE(end_of(other).ok());
    auto second = shrink(0, without({1, 2}));
    auto again = shrink(3, without({2}));
    for (auto* call : {&second, &again}) {
        const Answered answers = end_of(*call);
        ASSERT_FALSE(answers.ok());
        EXPECT_NE(answers.error().message.find("excludes other ranks"), std::string::npos)
            << answers.error().to_string();
    }
}

}  // namespace
}  // namespace sidestep::collective
