#include "bench/child.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sidestep::bench {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds plenty{60'000};

Result<Ended> shell(const std::string& script, milliseconds limit = plenty) {
    return run_program("/bin/sh", {"-c", script}, limit);
}

TEST(Child, OutputsAndExitCode) {
    const auto ended = shell("echo out; echo wrong >&2; exit 3");
    ASSERT_TRUE(ended.ok()) << ended.error().to_string();
    EXPECT_EQ(ended->code, 3);
    EXPECT_EQ(ended->output, "out\n");
    EXPECT_EQ(ended->errors, "wrong\n");
}

TEST(Child, ASignalIsAnExitCodeToo) {
    const auto ended = shell("kill -9 $$");
    ASSERT_TRUE(ended.ok());
    EXPECT_EQ(ended->code, 128 + 9);
}

TEST(Child, ArgumentsReachItAsTheyAre) {
    const auto ended = run_program("/bin/echo", {"a b", "$HOME;", "'"}, plenty);
    ASSERT_TRUE(ended.ok());
    EXPECT_EQ(ended->output, "a b $HOME; '\n");
}

TEST(Child, GpusAreCountedByTheirPciAddresses) {
    const auto ended = shell("echo $CUDA_DEVICE_ORDER");
    ASSERT_TRUE(ended.ok());
    EXPECT_EQ(ended->output, "PCI_BUS_ID\n");
}

TEST(Child, AsMuchOutputIsKeptAsWasAskedFor) {
    const std::vector<std::string> words = {"-c", "head -c 5000000 /dev/zero; head -c 300 /dev/zero >&2"};
    for (const auto& [max, kept] : {std::pair<std::size_t, std::size_t>{100, 100}, {8 << 20, 5'000'000}}) {
        auto child = Child::start("/bin/sh", words);
        ASSERT_TRUE(child.ok());
        const auto ended = child->wait(plenty, max);
        ASSERT_TRUE(ended.ok());
        EXPECT_EQ(ended->code, 0);  // the rest was read, too
        EXPECT_EQ(ended->output.size(), kept);
        EXPECT_EQ(ended->errors.size(), std::min<std::size_t>(max, 300));
    }
}

TEST(Child, WhatTakesTooLongIsKilledWithItsChildren) {
    // The shell's child writes its number before it sleeps; were it alive at the end, the test would see it.
    // On a busy machine it may need another try, with more time, to come that far.
    std::string grandchild;
    for (int seconds = 1; grandchild.empty() && seconds < 100; seconds *= 4) {
        char name[] = "/tmp/sidestep-child-XXXXXX";
        const int file = mkstemp(name);
        ASSERT_GE(file, 0);
        const auto ended = shell(std::string("sh -c 'echo $$ >") + name + "; sleep 600'; true",
                                 std::chrono::seconds(seconds));
        ASSERT_FALSE(ended.ok());
        EXPECT_EQ(ended.error().code, ErrorCode::timed_out);
        char text[32] = {};
        if (read(file, text, sizeof text - 1) > 0) grandchild = std::to_string(std::atoi(text));
        close(file);
        unlink(name);
    }
    ASSERT_FALSE(grandchild.empty());
    // Killed, which takes a moment to be carried out; until whoever inherits it has reaped it, it is a
    // zombie, which /proc shows.
    const auto ended = [&] {
        const auto state = shell("cut -d' ' -f3 /proc/" + grandchild + "/stat 2>/dev/null || echo gone");
        return state.ok() && (state->output == "gone\n" || state->output == "Z\n" || state->output == "X\n");
    };
    for (int look = 0; look < 100 && !ended(); ++look)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(ended()) << "process " << grandchild << " is still there";
}

TEST(Child, WhatIsStoppedEndsAtOnce) {
    auto child = Child::start("/bin/sh", {"-c", "echo begun; sleep 600"});
    ASSERT_TRUE(child.ok());
    std::stop_source stop;
    std::thread stopper([&] {
        std::this_thread::sleep_for(milliseconds(50));
        stop.request_stop();
    });
    const auto start = std::chrono::steady_clock::now();
    const auto ended = child->wait(std::chrono::minutes(9), 100, stop.get_token());
    stopper.join();
    ASSERT_FALSE(ended.ok());
    EXPECT_EQ(ended.error().code, ErrorCode::cancelled);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
}

TEST(Child, EndlessOutputIsBounded) {
    const auto ended = shell("head -c 20000000 /dev/zero | tr '\\0' x");
    ASSERT_TRUE(ended.ok());
    EXPECT_EQ(ended->code, 0);
    EXPECT_EQ(ended->output.size(), std::size_t{4} << 20);
}

TEST(Child, AnOutputThatIsKeptOpenDoesNotHoldTheEndUp) {
    // The child that is left behind would keep the pipes for ten minutes.
    const auto ended = shell("sleep 600 & echo done", milliseconds(50'000));
    ASSERT_TRUE(ended.ok()) << ended.error().to_string();
    EXPECT_EQ(ended->output, "done\n");
}

TEST(Child, WhatIsNoProgramIsAnError) {
    EXPECT_FALSE(run_program("/no/such/program", {}, plenty).ok());
    EXPECT_FALSE(run_program("/", {}, plenty).ok());
}

TEST(FindProgram, OnThePathOrEmpty) {
    EXPECT_FALSE(find_program("sh").empty());
    EXPECT_TRUE(find_program("no-such-program-of-sidestep").empty());
}

}  // namespace
}  // namespace sidestep::bench
