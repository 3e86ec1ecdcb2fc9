// Every call of the operating system that an activity makes, in turn: it fails, it ends short, it hangs. Whatever the
// activity makes of that, it says so truly, and leaves nothing behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <optional>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "tests/failure/calls.hpp"
#include "tests/failure/driver_calls.hpp"
#include "tests/failure/works.hpp"

namespace sidestep::failure {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::size_t entries_of(const char* folder) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
    return count;
}
std::size_t descriptors() {
    return entries_of("/proc/self/fd");
}
std::string open_files() {
    std::string all;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        all += " " + std::filesystem::read_symlink(entry.path(), ignored).string();
    return all;
}
std::size_t threads() {
    return entries_of("/proc/self/task");
}
template <typename Condition>
bool within(Clock::duration limit, Condition condition) {
    for (const auto until = Clock::now() + limit; !condition(); std::this_thread::sleep_for(1ms))
        if (Clock::now() > until) return false;
    return true;
}

// How files are read and written, and whose GPUs: emulated ones, or those that CUDA's driver has, of which some calls go wrong too.
struct By {
    const char* name;
    const char* file_io;
    const char* machine = "dgx-h100";
};
void PrintTo(const By& by, std::ostream* out) {
    *out << by.name;
}

class Failure : public testing::TestWithParam<std::tuple<Kind, By>> {
protected:
    void SetUp() override {
        ::setenv("SIDESTEP_FILE_IO", std::get<By>(GetParam()).file_io, 1);
        const char* const machine = std::get<By>(GetParam()).machine;
        auto context = Context::open({machine});
        ASSERT_TRUE(context) << context.error().to_string();
        if (context->topology().gpu_count() == 0) GTEST_SKIP() << "there is no GPU, nor a stand-in for one";
        context_.emplace(std::move(*context));
    }

    std::unique_ptr<Work> prepared() const {
        auto work = std::get<Kind>(GetParam()).make(*context_);
        work->prepare();
        return work;
    }

    // How often each call is made when all goes well.
    std::map<Call, unsigned> calls() {
        std::map<Call, unsigned> most;
        for (int i = 0; i < 2; ++i) {
            const auto work = prepared();
            Watch watch;
            const auto done = work->run({});
            EXPECT_TRUE(done) << done.error().to_string();
            if (!done) return {};
            most = watch.made();
            EXPECT_EQ(work->wrong_bytes(), "");
            // What is kept from one to the next.
            descriptors_ = descriptors() + work->kept_descriptors();
            threads_ = threads() + lazy_threads;
        }
        return most;
    }

    // Whether it is like the second one from its place. The first one and the last one may find another state.
    static bool repeats(const Call& call, unsigned number, unsigned times) {
        return call.site != 0 && number > 2 && number < times;
    }

    // Calls `each` with every fault that there can be.
    template <typename Each>
    void every_fault(How how, Each each) {
        const auto made = calls();
        unsigned tried = 0;
        unsigned left_out = 0;
        for (const auto& [call, times] : made) {
            if (!can(call.name, how)) continue;
            for (unsigned number = 1; number <= times; ++number) {
                if (repeats(call, number, times)) {
                    ++left_out;
                    continue;
                }
                each(Fault{call, number, how});
                ++tried;
            }
        }
        if (how != How::ends_short) {
            EXPECT_EQ(tried > 0, how == How::fails || std::get<Kind>(GetParam()).asks_files_or_others);
        }
        // How often some are made is a matter of time.
        EXPECT_GE(struck_, tried / 2);
        fmt::print(
            "{} calls: one after the other {}, {} in all; {} left out that repeat one from the same place\n",
            tried, to_string(how), struck_, left_out);
        expect_all_well("after all of them");
    }

    void expect_all_well(const std::string& when) const {
        const auto work = prepared();
        const auto done = work->run({});
        EXPECT_TRUE(done) << when << ": " << done.error().to_string();
        if (done) {
            EXPECT_EQ(work->wrong_bytes(), "") << when;
        }
    }

    // After a run and whatever hung in it.
    void expect_nothing_left(Work& work, const Result<void>& done, const Fault& fault) const {
        if (done) {
            EXPECT_EQ(work.wrong_bytes(), "") << to_string(fault);
        } else if (!fault.call.name.starts_with("unlink")) {
            std::string left;
            EXPECT_TRUE(within(5s, [&] { return (left = work.left_over()).empty(); }))
                << to_string(fault) << ": " << left << " after " << done.error().to_string();
        }
        EXPECT_TRUE(within(5s, [&] { return descriptors() <= descriptors_; }))
            << to_string(fault) << ": " << descriptors() << " descriptors, before " << descriptors_ << ":"
            << open_files();
        EXPECT_TRUE(within(5s, [&] { return threads() <= threads_; }))
            << to_string(fault) << ": " << threads() << " threads, before " << threads_;
    }

    void goes_wrong(const Fault& fault) {
        const auto work = prepared();
        const void* const current = current_context();
        Result<void> done = Error{};
        {
            Watch watch(fault);
            done = work->run({});
            if (!watch.struck()) return;
            ++struck_;
        }
        EXPECT_EQ(current_context(), current) << to_string(fault) << ": another context of CUDA is current";
        if (!done) {
            const std::string text = done.error().to_string();
            EXPECT_NE(done.error().code, ErrorCode::internal) << to_string(fault) << ": " << text;
            std::vector<std::string> words = work->words();
            words.push_back(fault.call.name.substr(0, fault.call.name.rfind("_v")));
            const bool names = std::ranges::any_of(
                words, [&](const std::string& word) { return text.find(word) != std::string::npos; });
            EXPECT_TRUE(names) << to_string(fault) << ": neither file, place nor call in: " << text;
        }
        expect_nothing_left(*work, done, fault);
    }

    // Empty: as it should be.
    std::string hangs(const Fault& fault) {
        const auto work = prepared();
        std::string wrong;
        Result<void> done = Error{};
        {
            Watch watch(fault);
            const auto begin = Clock::now();
            auto ended = std::async(std::launch::async, [&] { return work->run(deadline); });
            within(deadline,
                   [&] { return watch.hangs() || ended.wait_for(0s) == std::future_status::ready; });
            if (watch.hangs()) wrong += unrelated();
            const bool held_up = watch.hangs() && work->held_up();
            held_up_ += held_up ? 1 : 0;
            const bool in_time = held_up || within(begin + deadline + 100ms - Clock::now(), [&] {
                                     return work->told() || ended.wait_for(0s) == std::future_status::ready;
                                 });
            const bool hung = watch.hangs();
            struck_ += watch.struck() ? 1 : 0;
            watch.release();
            done = ended.get();
            if (hung && !in_time)
                wrong += fmt::format(" over after {:.0f} ms: {}",
                                     std::chrono::duration<double, std::milli>(Clock::now() - begin).count(),
                                     done ? "done" : done.error().to_string());
        }
        if (wrong.empty()) expect_nothing_left(*work, done, fault);
        return wrong;
    }

    // A copy that has nothing to do with what hangs.
    std::string unrelated() const {
        const std::string from(64 << 10, 'u');
        std::string to(from.size(), 'o');
        CopyOptions options;
        options.deadline = 1s;
        const auto begin = Clock::now();
        const auto copied =
            context_
                ->copy(Buffer::host(from.data(), from.size()), Buffer::host(to.data(), to.size()), options)
                .wait();
        const auto took = Clock::now() - begin;
        if (!copied) return " another copy: " + copied.error().to_string();
        if (to != from) return " another copy: wrong bytes";
        return took < 100ms ? ""
                            : fmt::format(" another copy took {:.0f} ms",
                                          std::chrono::duration<double, std::milli>(took).count());
    }

    static constexpr auto deadline = 150ms;
    // Pools start a thread when there is more to do than before.
    static constexpr std::size_t lazy_threads = 16;
    std::optional<Context> context_;
    std::size_t descriptors_ = 0;
    std::size_t threads_ = 0;
    unsigned struck_ = 0;
    unsigned held_up_ = 0;
};

TEST_P(Failure, OfEveryCallIsTold) {
    every_fault(How::fails, [this](const Fault& fault) { goes_wrong(fault); });
}

TEST_P(Failure, OfEveryCallThatEndsShortHarmsNothing) {
    every_fault(How::ends_short, [this](const Fault& fault) { goes_wrong(fault); });
}

// On a busy machine one may be late.
TEST_P(Failure, OfEveryCallToComeBackHoldsNobodyUp) {
    every_fault(How::hangs, [this](const Fault& fault) {
        std::string wrong = hangs(fault);
        for (int again = 0; again < 2 && !wrong.empty(); ++again) wrong = hangs(fault);
        EXPECT_EQ(wrong, "") << to_string(fault);
    });
    const Kind& kind = std::get<Kind>(GetParam());
    if (held_up_ > 0) fmt::print("{} of them held up the caller: {}\n", held_up_, kind.holds_up);
    EXPECT_EQ(held_up_ > 0, *kind.holds_up != '\0');
}

const By over_driver{"Driver", "threads", "live"};

std::string name_of(const testing::TestParamInfo<std::tuple<Kind, By>>& one) {
    return std::string(std::get<Kind>(one.param).name) + std::get<By>(one.param).name;
}

INSTANTIATE_TEST_SUITE_P(Of, Failure,
                         testing::Combine(testing::ValuesIn(kinds()),
                                          testing::Values(By{"Ring", "auto"}, By{"Threads", "threads"},
                                                          over_driver)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(OnStream, Failure,
                         testing::Combine(testing::ValuesIn(kinds_on_stream()), testing::Values(over_driver)),
                         name_of);

}  // namespace
}  // namespace sidestep::failure
