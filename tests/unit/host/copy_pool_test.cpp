#include "backends/host/copy_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/blocking_pieces.hpp"

namespace sidestep::backends::host {
namespace {

TEST(CopyPool, FinishesWhatIsQueuedBeforeItEnds) {
    struct Owner final : backend::PieceOwner {
        ~Owner() override { close(); }
        void ended() override { ++times; }
        std::atomic<std::size_t> times{0};
    } owner;
    const std::vector<char> source(9'000'001, 'x');
    std::vector<std::vector<char>> targets(20, std::vector<char>(source.size()));
    std::deque<backend::Flight> flights;
    {
        CopyPool pool(3, {});
        for (auto& target : targets) {
            const CopySpan whole{target.data(), source.data(), source.size()};
            ASSERT_TRUE(pool.copy({whole}, source.size(), flights.emplace_back(owner)).ok());
        }
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
        EXPECT_TRUE(flights[i].over() && flights[i].result());
        EXPECT_EQ(targets[i], source);
    }
    EXPECT_EQ(owner.times, targets.size()) << "each end is told once";
}

// Holds the thread that tells it of an end.
class Holder final : public backend::PieceOwner {
public:
    ~Holder() override { close(); }
    void ended() override {
        std::unique_lock lock(mutex_);
        held_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return released_; });
    }
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return held_; });
    }
    void release() {
        const std::lock_guard lock(mutex_);
        released_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool held_ = false, released_ = false;
};

// `start` begins a piece of one thread; the second is withdrawn while the first holds it.
template <typename Start>
void expect_withdrawn(Start start) {
    Holder owner;
    backend::Flight first(owner);
    std::optional<backend::Flight> second(owner);
    bool never = false, done = false;
    start(done, first);
    owner.wait();
    EXPECT_FALSE(first.withdraw()) << "it is over";
    start(never, *second);
    EXPECT_TRUE(second->withdraw());
    EXPECT_FALSE(second->withdraw());
    EXPECT_FALSE(second->over());
    second.reset();
    owner.release();
    backend::Flight last(owner);
    start(done, last);
    while (!last.over()) std::this_thread::yield();
    EXPECT_TRUE(last.result());
    EXPECT_TRUE(done);
    EXPECT_FALSE(never) << "it was begun after its end";
}

TEST(CopyPool, BeginsNothingThatWasWithdrawn) {
    CopyPool pool(1, {});
    const bool yes = true;
    expect_withdrawn([&](bool& to, backend::Flight& flight) {
        EXPECT_TRUE(pool.copy({{&to, &yes, 1}}, 1, flight));
    });
}

TEST(BlockingPieces, BeginNothingThatWasWithdrawn) {
    backend::BlockingPieces pieces(1, "test");
    expect_withdrawn([&](bool& to, backend::Flight& flight) {
        EXPECT_TRUE(pieces.start(
            [&to]() -> Result<void> {
                to = true;
                return {};
            },
            flight));
    });
    EXPECT_TRUE(pieces.end());
}

// Of several calls the one that is being made ends the piece, with an error.
TEST(BlockingPieces, EndWhenWhatWasBegunHas) {
    backend::BlockingPieces pieces(1, "test");
    Holder owner, call;
    int made = 0;
    const auto hangs = [&]() -> Result<void> {
        ++made;
        call.ended();
        return {};
    };
    owner.release();
    backend::Flight flight(owner);
    EXPECT_TRUE(pieces.start(std::vector<backend::BlockingPieces::Call>(3, hangs), flight));
    call.wait();
    EXPECT_FALSE(flight.withdraw());
    call.release();
    while (!flight.over()) std::this_thread::yield();
    EXPECT_EQ(flight.result().error().code, ErrorCode::cancelled);
    EXPECT_TRUE(pieces.end());
    EXPECT_EQ(made, 1);
}

// What nobody has begun when they end is told of too.
TEST(BlockingPieces, EndWhatIsDropped) {
    backend::BlockingPieces pieces(1, "test");
    Holder owner, call;
    const auto hangs = [&call]() -> Result<void> {
        call.ended();
        return {};
    };
    owner.release();
    backend::Flight first(owner), second(owner);
    EXPECT_TRUE(pieces.start(hangs, first));
    EXPECT_TRUE(pieces.start(hangs, second));
    call.wait();
    EXPECT_FALSE(pieces.end()) << "the first hangs";
    EXPECT_FALSE(first.over());
    EXPECT_TRUE(second.over());
    EXPECT_EQ(second.over() ? second.result().error().code : ErrorCode::internal, ErrorCode::cancelled);
    call.release();
    while (!first.over()) std::this_thread::yield();
    EXPECT_TRUE(first.result());
}

TEST(CopyPool, EndsWithoutEverHavingBeenUsed) {
    const CopyPool pool(4, {0});
}

}  // namespace
}  // namespace sidestep::backends::host
