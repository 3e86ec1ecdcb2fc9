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

// As another rank may number them: its kind, its members, and how manieth of those it is.
Message offer(std::uint64_t kind, std::uint64_t members, std::uint64_t count, Word word = Word::exchange) {
    return {.word = word, .slot = 1, .number = kind << 48 | members << 32 | count, .blob = "blob"};
}

// A rank that begins more than anybody keeps takes no other one's room.
TEST(HostileExchanges, OneThatOffersWithoutEndKeepsNobodyOut) {
    Exchanges exchanges({0, 3, [](unsigned, const Message&) {}, [](unsigned) { return false; },
                         [](unsigned rank) { return fmt::format("rank {}", rank); },
                         [] { return Result<void>(); }});
    constexpr auto kind = static_cast<std::uint64_t>(Exchanges::Kind::split);
    exchanges.handle(1, offer(kind, 0b111, 1));
    for (std::uint64_t count = 2; count < 6'000; ++count) exchanges.handle(1, offer(kind, 0b111, count));
    exchanges.handle(2, offer(kind, 0b111, 1));
    const auto answers = exchanges.call(Exchanges::Kind::split, "own", 0b111,
                                        Clock::now() + std::chrono::milliseconds(200), {});
    ASSERT_TRUE(answers.ok()) << answers.error().to_string();
    EXPECT_EQ(answers->blobs, (std::vector<std::string>{"own", "blob", "blob"}));
}

// Nothing is kept of exchanges that there cannot be, and nothing said.
TEST(HostileExchanges, OfNoKindOrRanksThatThereAre) {
    int said = 0;
    Exchanges exchanges({0, 3, [&](unsigned, const Message&) { ++said; }, [](unsigned) { return false; },
                         [](unsigned rank) { return fmt::format("rank {}", rank); },
                         [] { return Result<void>(); }});
    for (const auto& [kind, members] : {std::pair(0u, 0b1011u), std::pair(0u, 0xffffu), std::pair(2u, 0b111u),
                                        std::pair(0xffffu, 0b111u), std::pair(0x100u, 0b111u)})
        exchanges.handle(1, offer(kind, members, 1, Word::withdraw));
    EXPECT_EQ(said, 0);
    exchanges.handle(1, offer(0, 0b111, 1, Word::withdraw));
    EXPECT_EQ(said, 1);
}

}  // namespace
}  // namespace sidestep::collective
