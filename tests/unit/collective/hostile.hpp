// Two ranks that keep to the rules, processes of their own, and one of this process that does not.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/multiprocess/process.hpp"
#include "tests/unit/collective/fake_rank.hpp"

namespace sidestep::collective {

// Whom the errors have to name. Where a rank tells one of the others this and the next one that, it is `anybody`: each
// of them sees no more than that the other one does not keep to what it has heard itself.
enum class Names { liar, anybody };

struct Lying {
    std::string name;
    Lie lie = {};
    Names names = Names::liar;
    std::string says = {};  // a part of the errors
};

struct Act {
    std::string name;
    std::function<void(FakeRank&)> act;
    Names names = Names::liar;
    std::string enqueued = "run all_reduce 100 i32";  // what the others are in meanwhile
    std::string says = {};
};

// Runs one case after the other.
class Bench {
public:
    static constexpr unsigned ranks = 3;
    explicit Bench(const multiprocess::TestFolder& folder);

    // Joins and lies; then the others run an operation, and this one hangs up. They all end with an error that names whom
    // it should, before their deadline.
    void expect_lie_is_found(unsigned liar, const Lying& lying);
    // The same of what it does once it has joined as it should.
    void expect_act_is_survived(unsigned liar, const Act& act);

    FakeRank& fake() { return *fake_; }
    // To both of the others at once; 0 and 1.
    std::vector<std::string> tell(const std::string& command) const {
        return tell([&](unsigned) { return command; });
    }
    std::vector<std::string> tell(const std::function<std::string(unsigned)>& command) const;

private:
    std::vector<std::string> join_all(unsigned liar, const Lie& lie);
    void expect_end(unsigned liar, const std::vector<std::string>& joined, Names names,
                    const std::string& says);

    const multiprocess::TestFolder& folder_;
    std::vector<std::unique_ptr<multiprocess::Peer>> peers_;
    std::optional<FakeRank> fake_;
    bool met_ = false;
};

class Hostile : public testing::Test {
protected:
    static constexpr unsigned ranks = Bench::ranks;
    using Case = std::function<void(Bench&)>;

    // Several at a time, since most of their time they wait.
    void run(const std::vector<Case>& cases) const;
    // By chance, each with a seed of its own. Ends with the first that fails.
    void run_seeds(std::uint64_t usual, const std::function<void(Bench&, std::uint64_t seed)>& one) const;

    multiprocess::TestFolder folder;
};

}  // namespace sidestep::collective
