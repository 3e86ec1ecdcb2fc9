// Threads that carry out entries of batches: how many, in which order, and what can be taken back.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include "shims/cufile/task_threads.hpp"

namespace sidestep::cufile {
namespace {

// What tasks note, and what holds them.
class Notes {
public:
    void enter(int number) {
        std::unique_lock lock(mutex_);
        begun_.push_back(number);
        ++inside_;
        most_inside_ = std::max(most_inside_, inside_);
        changed_.notify_all();
        changed_.wait(lock, [this] { return open_; });
        --inside_;
        ++ended_;
        changed_.notify_all();
    }
    void open() {
        const std::lock_guard guard(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void wait_until_begun(std::size_t tasks) {
        wait([&] { return begun_.size() >= tasks; });
    }
    void wait_until_ended(std::size_t tasks) {
        wait([&] { return ended_ >= tasks; });
    }
    std::vector<int> begun() {
        const std::lock_guard guard(mutex_);
        return begun_;
    }
    std::size_t most_inside() {
        const std::lock_guard guard(mutex_);
        return most_inside_;
    }

private:
    template <typename Condition>
    void wait(Condition&& condition) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, condition);
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<int> begun_;
    std::size_t inside_ = 0, most_inside_ = 0, ended_ = 0;
    bool open_ = false;
};

class Noting final : public Task {
public:
    Noting(Notes& notes, int its_number, const void* owner)
        : Task(owner), number(its_number), notes_(notes) {}
    void carry_out() noexcept override { notes_.enter(number); }
    const int number;

private:
    Notes& notes_;
};

// They have threads that never end.
TaskThreads& threads_of(std::size_t most) {
    return *new TaskThreads(most);
}

TEST(CufileTaskThreads, NoMoreAtATimeThanAllowed) {
    TaskThreads& threads = threads_of(3);
    ASSERT_TRUE(threads.ready());
    Notes& notes = *new Notes;  // a thread may still leave it when all is noted
    std::vector<std::unique_ptr<Noting>> tasks;
    for (int i = 0; i < 20; ++i) {
        tasks.push_back(std::make_unique<Noting>(notes, i, nullptr));
        threads.run(*tasks.back());
    }
    notes.wait_until_begun(3);
    notes.open();
    notes.wait_until_ended(20);
    EXPECT_EQ(notes.most_inside(), 3U);
}

TEST(CufileTaskThreads, WhatNoThreadHasBegunCanBeTakenBack) {
    TaskThreads& threads = threads_of(1);
    ASSERT_TRUE(threads.ready());
    Notes& notes = *new Notes;  // a thread may still leave it when all is noted
    int one = 0, other = 0;
    std::vector<std::unique_ptr<Noting>> tasks;
    for (int i = 0; i < 9; ++i)
        tasks.push_back(std::make_unique<Noting>(notes, i, i % 2 == 0 ? &one : &other));
    for (const auto& task : tasks) threads.run(*task);
    notes.wait_until_begun(1);  // by the only thread, which is held
    std::vector<int> returned;
    const auto note = [&](Task& task) { returned.push_back(static_cast<Noting&>(task).number); };
    threads.take_back(&one, note);
    EXPECT_EQ(returned, (std::vector<int>{2, 4, 6, 8}));
    Noting behind(notes, 9, &one);  // the end of the list was taken back
    threads.run(behind);
    threads.take_back(&other, note);
    threads.take_back(&one, note);
    EXPECT_EQ(returned, (std::vector<int>{2, 4, 6, 8, 1, 3, 5, 7, 9}));
    Noting last(notes, 10, &one);  // all of the list was taken back
    threads.run(last);
    notes.open();
    notes.wait_until_ended(2);
    EXPECT_EQ(notes.begun(), (std::vector<int>{0, 10}));
}

}  // namespace
}  // namespace sidestep::cufile
