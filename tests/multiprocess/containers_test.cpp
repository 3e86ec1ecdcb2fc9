// Groups whose ranks are in containers that share the peer folder: other numbers of processes, other clocks, other mounts,
// other users. Where this user may make no namespaces the tests are skipped.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <regex>

#include "tests/multiprocess/collective_groups.hpp"
#include "tests/multiprocess/container.hpp"

namespace sidestep::multiprocess {
namespace {

using Options = std::vector<std::string>;
const Options whole{"--pid", "--mount-proc", "--net", "--ipc", "--uts", "--cgroup"};

constexpr const char* hide_proc = "mount -t tmpfs none /proc";
// Where a rank's number is one that nobody else has.
constexpr const char* count_and_hide_proc =
    "for i in 1 2 3 4 5 6 7 8 9; do sleep 0; done; mount -t tmpfs none /proc";

// Of the two ranks of a group: where each sits. Without options: in no container.
struct Setting {
    const char* name;
    std::array<Options, 2> options;
    const char* script = "";  // of both
    const char* folder = "";  // what the folder is called for rank 1; empty: as for all
};
void PrintTo(const Setting& setting, std::ostream* out) {
    *out << setting.name;
}

class Containers : public Groups {
protected:
    // Nobody is in a container any more when it goes.
    void TearDown() override { peers.clear(); }

    // Puts one more rank into a container of its own; where that cannot be had here `why_not` says why.
    void add(const Options& options, const std::string& script = "", const std::string& where = "") {
        if (options.empty()) {
            containers.emplace_back();
            peers.push_back(std::make_unique<Peer>(folder));
            return;
        }
        containers.push_back(std::make_unique<Container>(options, script));
        why_not += containers.back()->why_not();
        if (why_not.empty())
            peers.push_back(std::make_unique<Peer>(folder, containers.back()->enter(), where));
    }
    std::string tell_one(std::size_t peer, const std::string& command) { return peers[peer]->tell(command); }
    void join_both(int timeout = long_timeout) {
        const auto joined = tell([&](int rank) { return fmt::format("join {} {} 2 {}", id, rank, timeout); });
        ASSERT_EQ(joined, (std::vector<std::string>{"ok", "ok"}));
    }
    // As one of the others knows it: those outside number it as this process does, and those in other containers know no
    // more than what it says of itself.
    std::string named(std::size_t rank) const {
        const pid_t process = peers[rank]->process();
        return fmt::format("rank {} \\(process ({}|{}), gpu:{}\\)", rank, process, number_inside(process),
                           rank);
    }
    // Of `sidestep ps`, also in containers where all numbers and clocks are others, or nothing tells whose numbers these
    // are.
    void expect_listed(const std::string& wanted) {
        for (const std::vector<std::string>& launcher :
             {elsewhere.enter(), blind.enter(), std::vector<std::string>()}) {
            Peer observer(folder, launcher);
            const auto start = Clock::now();
            std::string listed;
            while (listed != wanted && Clock::now() - start < soon)
                listed = observer.tell("ps " + folder.path());
            EXPECT_EQ(listed, wanted);
        }
    }
    void expect_died(std::size_t rank, const std::string& expected, const std::string& said) const {
        EXPECT_TRUE(std::regex_search(said, std::regex(expected + " died")))
            << "of rank " << rank << ": " << said;
    }

    Container elsewhere{{"--pid", "--mount-proc", "--time", "--boottime", "100000", "--monotonic", "100000"}};
    Container blind{{"--pid", "--mount"}, hide_proc};
    std::vector<std::unique_ptr<Container>> containers;
    std::string why_not = elsewhere.why_not() + blind.why_not();
};

class Settings : public Containers, public testing::WithParamInterface<Setting> {
protected:
    void SetUp() override {
        for (const std::size_t rank : {0u, 1u}) {
            std::string script = GetParam().script;
            if (const auto at = script.find("FOLDER"); at != std::string::npos)
                script.replace(at, 6, folder.path());
            add(GetParam().options[rank], script, rank == 1 ? GetParam().folder : "");
        }
        if (!why_not.empty()) GTEST_SKIP() << why_not;
    }
};

TEST_P(Settings, WorkTogether) {
    join_both();
    expect_all("checked 5 2", "ok");
    expect_all("checked 100003 3", "ok");
    expect_listed("1 groups, rank 0 lives, rank 1 lives");
    expect_all("checked 100 1", "ok");
    expect_all("leave", "ok");
    expect_no_entries();
}

TEST_P(Settings, WhoIsKilledIsNamed) {
    join_both();
    expect_all("spin", "ok");
    await_operations();
    const std::string gone = named(1);
    peers[1]->kill();
    const auto start = Clock::now();
    expect_died(1, gone, tell_one(0, "status"));
    EXPECT_LT(Clock::now() - start, soon);
    expect_listed("1 groups, rank 0 lives, rank 1 is dead");
    // Nobody is left to do it.
    peers[0]->kill();
    expect_listed("0 groups");
    EXPECT_EQ(entries(), 0u);
}

// The first process of a container is killed, and with it every other one there.
class KilledContainers : public Settings {};

TEST_P(KilledContainers, EndWithAllInThem) {
    join_both();
    EXPECT_EQ(tell_one(0, "run all_reduce 100 i32"), "ok");
    const std::string gone = named(1);
    containers[1]->kill();
    const auto start = Clock::now();
    expect_died(1, gone, tell_one(0, "wait"));
    EXPECT_LT(Clock::now() - start, soon);
    EXPECT_EQ(tell_one(0, "leave"), "ok");
    EXPECT_EQ(tell_one(0, "ps " + folder.path()), "0 groups");
    EXPECT_EQ(entries(), 0u);
}

const Setting settings[] = {
    {"containers side by side", {whole, whole}},
    {"one outside", {Options{}, whole}},
    {"the first one inside", {whole, Options{}}},
    {"without a proc of their own", {Options{"--pid"}, Options{"--pid"}}},
    {"without any proc", {Options{"--pid", "--mount"}, Options{"--pid", "--mount"}}, count_and_hide_proc},
    {"other clocks",
     {Options{"--pid", "--mount-proc", "--time", "--boottime", "500000", "--monotonic", "500000"},
      Options{"--pid", "--mount-proc", "--time", "--boottime", "7", "--monotonic", "7"}}},
    {"clocks alone", {Options{}, Options{"--time", "--boottime", "500000", "--monotonic", "500000"}}},
    {"users of their own",
     {Options{"--user", "--map-root-user", "--pid", "--mount-proc"},
      Options{"--user", "--map-root-user", "--pid", "--mount-proc"}}},
    {"the folder is called something else",
     {Options{}, Options{"--mount"}},
     "mount --bind FOLDER /mnt",
     "/mnt"}};

// Those in which all of rank 1's namespace ends with its first process.
std::vector<Setting> that_can_be_killed() {
    std::vector<Setting> found;
    for (const Setting& setting : settings)
        if (const Options& options = setting.options[1];
            std::find(options.begin(), options.end(), "--pid") != options.end())
            found.push_back(setting);
    return found;
}

INSTANTIATE_TEST_SUITE_P(Of, Settings, testing::ValuesIn(settings));
INSTANTIATE_TEST_SUITE_P(Of, KilledContainers, testing::ValuesIn(that_can_be_killed()));

// The number of rank 0 is that of somebody else where rank 1 is.
TEST_F(Containers, AnUnrelatedProcessWithTheNumberOfARankEnds) {
    add(whole);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    containers.push_back(std::make_unique<Container>(whole));
    Peer unrelated(folder, containers[1]->enter());
    peers.push_back(std::make_unique<Peer>(folder, containers[1]->enter()));
    ASSERT_EQ(number_inside(unrelated.process()), number_inside(peers[0]->process()));
    join_both();
    expect_all("checked 100 1", "ok");
    unrelated.kill();
    expect_all("checked 100003 3", "ok");
    expect_listed("1 groups, rank 0 lives, rank 1 lives");
}

// What it has left in the folder takes nobody's place.
TEST_F(Containers, AContainerIsKilledWhileItsRankJoins) {
    add(Options{});
    add(whole);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    auto joining = std::async(std::launch::async,
                              [&] { return tell_one(1, fmt::format("join {} 1 3 {}", id, long_timeout)); });
    const auto start = Clock::now();
    while (entries() == 0 && Clock::now() - start < soon)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    containers[1]->kill();
    EXPECT_EQ(joining.get(), "");
    EXPECT_EQ(entries(), 1u);
    expect_listed("0 groups");
    EXPECT_EQ(entries(), 0u);
}

// How long it has waited is told by its own clock.
TEST_F(Containers, WhoWaitsUnderAnotherClock) {
    const Options shifted{"--time", "--boottime", "500000", "--monotonic", "500000"};
    add(shifted);
    add(Options{});
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    join_both();
    EXPECT_EQ(tell_one(0, "run all_reduce 100 i32"), "ok");
    Peer observer(folder);
    const auto start = Clock::now();
    std::string listed;
    while (listed.find("waits for") == std::string::npos && Clock::now() - start < soon) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        listed = observer.tell("ps " + folder.path());
    }
    const std::regex wait("rank 0 waits for rank 1 .* since [0-9]{1,2} s, in operation 1");
    EXPECT_TRUE(std::regex_search(listed, wait)) << listed;
    EXPECT_EQ(tell_one(1, "run all_reduce 100 i32"), "ok");
    expect_all("wait", "ok");
}

// Each sees a folder of its own under that name.
TEST_F(Containers, AFolderThatIsNotTheSame) {
    add(Options{});
    add({"--mount"}, fmt::format("mount -t tmpfs -o mode=700 none {}", folder.path()));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    const auto joined = tell([&](int rank) { return fmt::format("join {} {} 2 1000", id, rank); });
    EXPECT_NE(joined[0].find("rank 1 did not come"), std::string::npos) << joined[0];
    EXPECT_NE(joined[1].find("rank 0 did not come"), std::string::npos) << joined[1];
}

// A rank that cannot use the folder says so at once, and the place is free for one that can.
class Folders : public Containers {
protected:
    void expect_refused(const std::string& why) {
        const auto start = Clock::now();
        const std::string said = tell_one(1, fmt::format("join {} 1 2 {}", id, long_timeout));
        EXPECT_NE(said.find(folder.path()), std::string::npos) << said;
        EXPECT_NE(said.find(why), std::string::npos) << said;
        EXPECT_LT(Clock::now() - start, soon);
        peers[1] = std::make_unique<Peer>(folder);
        join_both();
        expect_all("checked 100 1", "ok");
    }
};

TEST_F(Folders, ThatCannotBeWrittenTo) {
    add(Options{});
    add({"--mount"}, fmt::format("mount --bind {0} {0}; mount -o remount,bind,ro {0}", folder.path()));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    expect_refused("Read-only file system");
}

TEST_F(Folders, OfAnotherUser) {
    for (const auto& [mode, why] :
         {std::pair(0700, "Permission denied"), std::pair(0755, "belongs to user 0, not to 65534")}) {
        peers.clear();
        start(2);
        ASSERT_EQ(::chmod(folder.path().c_str(), static_cast<mode_t>(mode)), 0);
        if (tell_one(1, "user 65534") != "ok") GTEST_SKIP() << "only root can become another user";
        expect_refused(why);
        expect_all("leave", "ok");
    }
}

}  // namespace
}  // namespace sidestep::multiprocess
