// Groups whose ranks are processes that a test tells what to do: see collective_peer.cpp.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sidestep/group.hpp>

#include "tests/multiprocess/process.hpp"
#include "tests/slower.hpp"

namespace sidestep::multiprocess {

using Clock = std::chrono::steady_clock;

// Far more than anything here should take, far less than the timeouts that are not to be waited for.
constexpr std::chrono::seconds soon{20};
constexpr int long_timeout = 120'000;
constexpr int short_timeout = 3'000;  // within which all have to be able to join
// Elements of each rank's block, of a reduction that is no small one.
constexpr int many_floats = slower_by > 1 ? 13'009 : 40'013;

class Groups : public testing::Test {
protected:
    void start(int ranks) {
        for (int rank = 0; rank < ranks; ++rank) peers.push_back(std::make_unique<Peer>(folder));
    }

    // The same command to all ranks but `except` at once; their answers, by rank.
    std::vector<std::string> tell(const std::function<std::string(int)>& command, int except = -1) {
        std::vector<std::future<std::string>> asked(peers.size());
        for (std::size_t rank = 0; rank < peers.size(); ++rank)
            if (static_cast<int>(rank) != except)
                asked[rank] = std::async(std::launch::async, [&, rank] {
                    return peers[rank]->tell(command(static_cast<int>(rank)));
                });
        std::vector<std::string> answers(peers.size());
        for (std::size_t rank = 0; rank < peers.size(); ++rank)
            if (asked[rank].valid()) answers[rank] = asked[rank].get();
        return answers;
    }
    std::vector<std::string> tell(const std::string& command, int except = -1) {
        return tell([&](int) { return command; }, except);
    }
    void expect_all(const std::string& command, const std::string& answer, int except = -1) {
        const auto answers = tell(command, except);
        for (std::size_t rank = 0; rank < answers.size(); ++rank)
            EXPECT_EQ(answers[rank], static_cast<int>(rank) == except ? "" : answer)
                << "rank " << rank << ", " << command;
    }
    void join(int ranks, int timeout) {
        start(ranks);
        const auto answers =
            tell([&](int rank) { return fmt::format("join {} {} {} {}", id, rank, ranks, timeout); });
        for (const std::string& answer : answers) ASSERT_EQ(answer, "ok");
    }
    // Every rank but `except` says so with all of `parts`.
    void expect_error(const std::vector<std::string>& answers, const std::vector<std::string>& parts,
                      int except = -1) {
        for (std::size_t rank = 0; rank < answers.size(); ++rank) {
            if (static_cast<int>(rank) == except) continue;
            for (const std::string& part : parts)
                EXPECT_NE(answers[rank].find(part), std::string::npos)
                    << "rank " << rank << " says: " << answers[rank] << "\nand not: " << part;
        }
    }
    // Until every rank has run an operation.
    void await_operations() const {
        const auto start = Clock::now();
        const auto begun = [&] {
            const auto groups = running_groups(folder.path()).value();
            if (groups.size() != 1) return false;
            for (const RunningRank& rank : groups[0].ranks)
                if (rank.done == 0) return false;
            return true;
        };
        while (!begun() && Clock::now() - start < soon)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_TRUE(begun());
    }
    // Until nobody's file is left.
    void expect_no_entries() const {
        const auto start = Clock::now();
        while (entries() > 0 && Clock::now() - start < soon)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_EQ(entries(), 0u);
    }
    std::size_t entries() const {
        std::size_t count = 0;
        for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
            if (!entry.path().filename().string().starts_with('.')) ++count;
        return count;
    }
    std::string process(int rank) const {
        return fmt::format("process {}", peers[static_cast<std::size_t>(rank)]->process());
    }

    TestFolder folder;
    const std::string id = GroupId::create()->to_string();
    std::vector<std::unique_ptr<Peer>> peers;
};

}  // namespace sidestep::multiprocess
