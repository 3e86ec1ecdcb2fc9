// Processes that end while groups live, or have just been left: no seat is called once exit() is past this
// library.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "collective/departed_members.hpp"
#include "context/impl.hpp"
#include "tests/unit/group/ranks.hpp"
#include "tests/unit/group/seat_around.hpp"

namespace sidestep::groups {
namespace {

std::atomic<bool> taken_apart{false};

void check_alive() {
    if (taken_apart.load()) std::_Exit(99);
}

// An emulated seat whose every call ends the process with 99 where libraries have been taken apart already.
class StrictSeat final : public SeatAround {
public:
    using SeatAround::SeatAround;
    ~StrictSeat() override { check_alive(); }
    Result<bool> idle() override {
        check_alive();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // exit() finds some thread within
        return SeatAround::idle();
    }

private:
    void called() const override { check_alive(); }
};

// Never returns. Four ranks run an operation; then some are left, or none, and the process exits, or first a child
// that it forks.
[[noreturn]] void run_and_exit(int leaving, bool forks) {
    // Never freed, but always reachable.
    static Folder& folder = *new Folder;
    // Before the first seat, so it runs after this library's handler.
    std::atexit([] {
        taken_apart = true;
        std::error_code ignored;
        std::filesystem::remove_all(folder.path, ignored);
    });
    ContextOptions options;
    options.machine = "dgx-h100";
    options.peer_folder = folder.path;
    static Context& context = *new Context(std::move(Context::open(options)).value());
    static auto& registry = *new backend::Registry;
    registry.add(std::make_unique<SeatsAround>(
                     ContextAccess::impl(context).registry,
                     [](auto seat) { return std::make_unique<StrictSeat>(std::move(seat)); }),
                 context.topology());
    // Destroyed after main, as those of a program's static objects are.
    static collective::DepartedMembers departed;
    static std::vector<std::unique_ptr<collective::Member>> members(4);
    const GroupId id = *GroupId::create();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank)
        threads.emplace_back([&, rank] {
            collective::JoinRequest request{registry, true, folder.path, {id, rank, 4, Place::gpu(rank)},
                                            {},       {}};
            auto member = collective::Member::join(request);
            if (!member) std::_Exit(98);
            departed.joined();
            if (!(*member)->run({}, nullptr) || !(*member)->wait()) std::_Exit(97);
            members[static_cast<std::size_t>(rank)] = std::move(*member);
        });
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < leaving; ++rank)
        departed.take(std::move(members[static_cast<std::size_t>(rank)]));
    if (forks) {
        const pid_t child = ::fork();
        int status = 0;
        if (child != 0 && (::waitpid(child, &status, 0) != child || !WIFEXITED(status))) std::_Exit(96);
        if (WEXITSTATUS(status) == 99) std::_Exit(95);
        for (const auto& member : members)
            if (child != 0 && leaving == 0 && !member->run({}, nullptr)) std::_Exit(94);
    }
    std::exit(0);
}

class Exit : public testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(Exit, CallsNoSeatAfterwards) {
#if defined(__SANITIZE_ADDRESS__)
    if (GetParam().second)
        GTEST_SKIP() << "a forked child looks for leaks as it exits, and finds the address sanitizer's locks "
                        "as threads "
                        "of its parent held them";
#endif
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    for (int round = 0; round < 3; ++round)
        EXPECT_EXIT(run_and_exit(GetParam().first, GetParam().second), testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Leaving, Exit,
                         testing::Values(std::pair(0, false), std::pair(2, false), std::pair(4, false),
                                         std::pair(0, true), std::pair(2, true)));

}  // namespace
}  // namespace sidestep::groups
