#include "tests/unit/collective/hostile.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Of joining and of operations: within it all of them can join.
constexpr std::chrono::milliseconds deadline{2'000 * slower_by};
// For what comes beside it, on a busy machine.
constexpr std::chrono::seconds more{20};
constexpr std::size_t at_a_time = 6;

// With its process, as far as anybody can know that.
bool names_liar(const std::string& said, unsigned liar) {
    const std::regex found(fmt::format(
        R"(process {0}\b|two processes are rank .*\b{0}\b|rank {1} did not come)", ::getpid(), liar));
    return std::regex_search(said, found);
}
bool names_anybody(const std::string& said) {
    static const std::regex found(
        R"(rank \d+ \(process \d+|process \d+: |rank [0-2] did not come|two processes are rank)");
    return std::regex_search(said, found);
}

}  // namespace

Bench::Bench(const multiprocess::TestFolder& folder) : folder_(folder) {
    ::signal(SIGPIPE, SIG_IGN);  // a rank that has crashed cannot be told anything
    for (unsigned i = 0; i + 1 < ranks; ++i) peers_.push_back(std::make_unique<multiprocess::Peer>(folder));
}

std::vector<std::string> Bench::tell(const std::function<std::string(unsigned)>& command) const {
    auto second = std::async(std::launch::async, [&] { return peers_[1]->tell(command(1)); });
    std::string first = peers_[0]->tell(command(0));
    return {std::move(first), second.get()};
}

std::vector<std::string> Bench::join_all(unsigned liar, const Lie& lie) {
    const GroupId group = *GroupId::create();
    fake_.emplace(folder_.path(), group, liar, ranks);
    auto met = std::async(std::launch::async, [&] { return fake_->join(lie); });
    const auto joined = tell([&](unsigned peer) {
        return fmt::format("join {} {} {} {}", group.to_string(), peer + (peer >= liar ? 1 : 0), ranks,
                           deadline.count());
    });
    fake_->give_up();
    met_ = met.get();
    return joined;
}

void Bench::expect_lie_is_found(unsigned liar, const Lying& lying) {
    SCOPED_TRACE(fmt::format("{}, by rank {}", lying.name, liar));
    const auto began = Clock::now();
    expect_end(liar, join_all(liar, lying.lie), lying.names, lying.says);
    EXPECT_LT(Clock::now() - began, 2 * deadline + more);
}

void Bench::expect_act_is_survived(unsigned liar, const Act& act) {
    SCOPED_TRACE(fmt::format("{}, by rank {}", act.name, liar));
    const auto joined = join_all(liar, {});
    if (!met_ || joined != std::vector<std::string>(ranks - 1, "ok")) {
        ADD_FAILURE() << fmt::format("they did not join: {}", fmt::join(joined, "; "));
        return;
    }
    const auto began = Clock::now();
    (void)tell(act.enqueued);
    act.act(*fake_);
    expect_end(liar, joined, act.names, act.says);
    EXPECT_LT(Clock::now() - began, deadline + more);
}

void Bench::expect_end(unsigned liar, const std::vector<std::string>& joined, Names names,
                       const std::string& says) {
    (void)tell("run all_reduce 100 i32");
    fake_->hang_up();
    const auto waited = tell("wait");
    for (std::size_t i = 0; i < joined.size(); ++i) {
        const std::string& said = joined[i] == "ok" ? waited[i] : joined[i];
        EXPECT_NE(said.find(says), std::string::npos) << "one says: " << said << "\nand not: " << says;
        EXPECT_TRUE(names == Names::anybody ? names_anybody(said) : names_liar(said, liar))
            << "one says: " << (said.empty() ? "nothing any more" : said);
    }
    const auto left = tell("leave");
    for (std::size_t i = 0; i < left.size(); ++i)
        if (left[i].empty()) peers_[i] = std::make_unique<multiprocess::Peer>(folder_);
    fake_.reset();
}

void Hostile::run(const std::vector<Case>& cases) const {
    std::atomic<std::size_t> next{0};
    std::vector<std::future<void>> benches;
    for (std::size_t i = 0; i < std::min(at_a_time, cases.size()); ++i)
        benches.push_back(std::async(std::launch::async, [&] {
            Bench bench(folder);
            for (std::size_t number = next++; number < cases.size(); number = next++) cases[number](bench);
        }));
    for (auto& bench : benches) bench.get();
}

void Hostile::run_seeds(std::uint64_t usual,
                        const std::function<void(Bench&, std::uint64_t seed)>& one) const {
    std::vector<Case> cases;
    for (const std::uint64_t seed : seeds(usual))
        cases.emplace_back([&one, seed](Bench& bench) {
            if (!HasFailure()) one(bench, seed);
        });
    run(cases);
}

}  // namespace sidestep::collective
