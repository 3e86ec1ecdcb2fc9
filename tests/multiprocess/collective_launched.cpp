#include "tests/multiprocess/collective_launched.hpp"

#include <signal.h>

#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include <sidestep/group.hpp>

namespace sidestep::multiprocess {
namespace {

class Launched {
public:
    Launched(Context context, Group group) : context_(std::move(context)), group_(std::move(group)) {}

    // Sums `count` numbers of every rank; what is wrong, empty for nothing.
    std::string sum(std::size_t count) {
        auto memory = context_.allocate(group_.place(), count * sizeof(int));
        if (!memory) return memory.error().to_string();
        auto* numbers = static_cast<int*>(memory->address());
        for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<int>(i) * (group_.rank() + 1);
        auto state = group_.all_reduce(numbers, numbers, count, Dtype::i32);
        if (state) state = group_.wait();
        if (!state) return state.error().message;
        const int factor = group_.ranks() * (group_.ranks() + 1) / 2;
        for (std::size_t i = 0; i < count; ++i)
            if (numbers[i] != static_cast<int>(i) * factor)
                return fmt::format("element {} of {} is {}, not {}", i, count, numbers[i],
                                   static_cast<int>(i) * factor);
        return "";
    }

    // What this rank has to say in the end.
    std::string work(int victim) {
        for (const std::size_t count : {10, 1000, 100'003})
            if (std::string wrong = sum(count); !wrong.empty()) return wrong;
        if (victim < 0)
            return fmt::format("rank {} of {} on {}: right", group_.rank(), group_.ranks(),
                               group_.place().to_string());
        if (group_.rank() == victim) ::raise(SIGKILL);
        for (;;)
            if (std::string wrong = sum(1000); !wrong.empty()) return wrong;
    }

private:
    Context context_;
    Group group_;
};

}  // namespace

int run_launched(const std::string& folder, int victim) {
    // Launchers end the ranks that are left: not before these have said what they saw.
    ::signal(SIGTERM, SIG_IGN);
    const auto fail = [](const Error& error) {
        fmt::print(stderr, "{}\n", error.to_string());
        return 1;
    };
    const auto seating = Seating::from_environment();
    if (!seating) return fail(seating.error());
    auto context = Context::open();
    if (!context) return fail(context.error());
    auto group = Group::join(*context, *seating);
    if (!group) return fail(group.error());
    Launched rank(std::move(*context), std::move(*group));
    // Whole or not at all: a launcher may kill it meanwhile.
    const std::string said = rank.work(victim);
    const std::string part = fmt::format("{}/part{}", folder, seating->rank);
    std::ofstream(part) << said << "\n";
    return std::rename(part.c_str(), fmt::format("{}/rank{}", folder, seating->rank).c_str()) == 0 ? 0 : 1;
}

}  // namespace sidestep::multiprocess
