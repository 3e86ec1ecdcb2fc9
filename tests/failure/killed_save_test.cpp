// A process that is killed at every call by which a save over an earlier checkpoint changes its folder: what is there is one of the
// two, whole, and repair() leaves nothing else.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <sidestep/sidestep.hpp>
#include "tests/contents.hpp"
#include "tests/failure/calls.hpp"
#include "tests/mounted.hpp"

namespace sidestep::failure {
namespace {

namespace fs = std::filesystem;

constexpr const char* variable = "SIDESTEP_TEST_KILLED_SAVE";
// Between two of these the folder does not change.
const std::set<std::string> changing{"open",      "openat",   "write",  "pwrite",   "linkat",
                                     "rename",    "renameat", "unlink", "unlinkat", "ftruncate",
                                     "fallocate", "fsync",    "flock",  "fchmod"};

Result<void> save(const std::string& folder, char content, SaveOptions options = {}) {
    const auto context = Context::open({"dgx-h100"});
    if (!context) return context.error();
    const std::string bytes(3 * 5000, content);
    std::vector<TensorToSave> tensors;
    for (std::size_t i = 0; i < 3; ++i)
        tensors.push_back(
            {fmt::format("t{}", i), Dtype::u8, {5000}, Buffer::host(bytes.data() + i * 5000, 5000)});
    options.shard_bytes = 5000;
    options.manifest = true;
    const auto saved = context->save(tensors, folder, options).wait();
    if (!saved) return saved.error();
    return {};
}

// The byte that all tensors consist of; else what is wrong.
std::string content_of(const std::string& folder) {
    const auto checkpoint = Checkpoint::open(folder);
    if (!checkpoint) return checkpoint.error().to_string();
    std::string all;
    for (const TensorInfo& tensor : checkpoint->tensors())
        all += test::get(checkpoint->files()[tensor.file].path).substr(tensor.offset, tensor.bytes);
    return all == std::string(15000, all.empty() ? ' ' : all.front()) ? all.substr(0, 1) : "a mixture";
}

std::set<std::string> entries_in(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& each : fs::directory_iterator(folder)) names.insert(each.path().filename().string());
    return names;
}

// Where a save is killed: a file system of tests/mounted.hpp, the folder for temporary files, or the folder that a variable
// of the environment names.
struct Where {
    const char* name;
    const char* variable = nullptr;
};

// At which calls: every one, or every n-th where each kill takes many seconds, as in an emulated machine.
unsigned kill_every() {
    const char* const text = std::getenv("SIDESTEP_TEST_KILL_EVERY");
    return text == nullptr ? 1 : static_cast<unsigned>(std::stoul(text));
}

class KilledSave : public testing::TestWithParam<Where> {
protected:
    void SetUp() override {
        std::string parent = "/tmp";
        if (const char* const named = GetParam().variable; named != nullptr) {
            if (std::getenv(named) == nullptr)
                GTEST_SKIP() << named << " names no folder on " << GetParam().name;
            parent = std::getenv(named);
        } else if (GetParam().name != std::string("tmp")) {
            mounted_.emplace(GetParam().name);
            if (!mounted_->why_not().empty()) GTEST_SKIP() << mounted_->why_not();
            parent = mounted_->path();
        }
        top_ = parent + "/sidestep-killed-XXXXXX";
        ASSERT_NE(::mkdtemp(top_.data()), nullptr) << top_;
    }
    ~KilledSave() override {
        std::error_code ignored;
        if (!top_.empty()) fs::remove_all(top_, ignored);
    }

    // This program once more, which saves '2' into the folder and is killed at that call; without one it writes down
    // how often it made each. Answers whether it was killed.
    bool child_is_killed(const std::string& folder, const std::string& call, unsigned number) const {
        const std::string what = fmt::format("{} {} {} {}", folder, top_ + "/calls", call, number);
        const pid_t child = ::fork();
        if (child == 0) {
            ::setenv(variable, what.c_str(), 1);
            ::execl("/proc/self/exe", "failure_tests", "--gtest_filter=KilledSaveChild.Saves", nullptr);
            ::_exit(1);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << what << ": " << status;
        return killed;
    }

    // What a killed process had asked of a server may still happen, and a file that was removed while it was open has
    // another name for a moment.
    static int tries() { return GetParam().name == std::string("nfs") ? 50 : 1; }

    std::optional<test::Mounted> mounted_;
    std::string top_;
};

INSTANTIATE_TEST_SUITE_P(On, KilledSave,
                         testing::Values(Where{"tmp"}, Where{"ext4"}, Where{"xfs"}, Where{"btrfs"},
                                         Where{"tmpfs"}, Where{"bindfs"}, Where{"nfs", "SIDESTEP_TEST_NFS"}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(KilledSaveChild, Saves) {
    const char* const what = std::getenv(variable);
    if (what == nullptr) GTEST_SKIP() << "the child of KilledSave alone runs it";
    std::istringstream words(what);
    std::string folder, calls;
    Fault fault;
    fault.how = How::kills;
    words >> folder >> calls >> fault.call.name >> fault.number;
    const Watch watch(fault);
    const auto saved = save(folder, '2');
    ASSERT_TRUE(saved) << saved.error().to_string();
    std::ofstream list(calls);
    for (const auto& [call, times] : watch.made()) list << call.name << " " << times << "\n";
}

TEST_P(KilledSave, LeavesOneOfTwoCheckpointsAtEveryCall) {
    const std::string earlier = top_ + "/earlier", folder = top_ + "/saved";
    fs::create_directory(earlier);
    const auto saved = save(earlier, '1');
    ASSERT_TRUE(saved) << saved.error().to_string();
    const auto again = [&] {
        fs::remove_all(folder);
        fs::copy(earlier, folder);
    };
    again();
    ASSERT_FALSE(child_is_killed(folder, "none", 0));
    ASSERT_EQ(content_of(folder), "2");
    const std::set<std::string> whole = entries_in(earlier);
    ASSERT_EQ(whole.size(), 4u) << "the index and three files";
    ASSERT_EQ(entries_in(folder), whole);
    std::ifstream list(top_ + "/calls");
    std::string call;
    unsigned times = 0, killed = 0, seen = 0;
    const unsigned every = kill_every();
    std::set<std::string> contents;
    while (list >> call >> times)
        for (unsigned number = 1; changing.contains(call) && number <= times; ++number) {
            if (seen++ % every != 0) continue;
            SCOPED_TRACE(fmt::format("killed at call {} of {}", number, call));
            again();
            killed += child_is_killed(folder, call, number) ? 1 : 0;
            const std::string before = content_of(folder);
            ASSERT_TRUE(before == "1" || before == "2") << before;
            for (int left = tries(); left > 0; --left) {
                const auto repaired = repair(folder);
                ASSERT_TRUE(repaired) << repaired.error().to_string();
                ASSERT_EQ(content_of(folder), before);
                if (entries_in(folder) == whole) break;
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
            }
            ASSERT_EQ(entries_in(folder), whole);
            contents.insert(before);
        }
    fmt::print("killed at {} of {} calls\n", killed, seen);
    EXPECT_GT(killed, 20u / every);
    if (every == 1) {
        EXPECT_EQ(contents, (std::set<std::string>{"1", "2"}));
    }
}

TEST_P(KilledSave, ASaveOverAnEarlierOneFlushes) {
    const std::string folder = top_ + "/saved";
    fs::create_directory(folder);
    struct Case {
        const char* what;
        bool sync_file, sync_replaced, flushes;
    };
    const Case cases[] = {{"the first save", false, true, false},
                          {"asked to", true, false, true},
                          {"over an earlier one", false, true, true},
                          {"over an earlier one, left out", false, false, false}};
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        const Watch watch;
        SaveOptions options;
        options.sync_file = each.sync_file;
        options.sync_replaced = each.sync_replaced;
        const auto saved = save(folder, '1', options);
        ASSERT_TRUE(saved) << saved.error().to_string();
        unsigned flushes = 0;
        for (const auto& [call, times] : watch.made()) flushes += call.name == "fsync" ? times : 0;
        // Three files, the index and the manifest, each with its folder, and the index in between.
        EXPECT_TRUE(each.flushes ? flushes >= 10 : flushes == 0) << flushes;
    }
}

}  // namespace
}  // namespace sidestep::failure
