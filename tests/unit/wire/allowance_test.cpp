// The list of what a node lets others reach: how it is read, and what it says of memory.
#include "wire/allowance.hpp"

#include <gtest/gtest.h>

namespace sidestep::wire {
namespace {

using namespace std::string_literals;

// Nothing allowed where the list is wrong.
Allowances allowing(const std::string& list) {
    auto allowances = Allowances::parse(list);
    EXPECT_TRUE(allowances.ok()) << allowances.error().to_string();
    return allowances.ok() ? *allowances : Allowances();
}

const std::vector<std::string> bad_memory_entries = {
    ",",       "gpu:0,",  ",gpu:0",   "gpu:0,,host",   " gpu:0",   "gpu:0, host", "gpu",
    "gpu:",    "gpu:-1",  "gpu:00",   "gpu:x",         "gpu:**",   "gpu:*:1",     "gpu:0=",
    "gpu:0=0", "gpu:0=x", "gpu:0=rw", "gpu:0=8GiB=rw", "gpu:0=-1", "gpu:*=",      "host:1",
    "host:",   "host=",   "host=0",   "hosts",         "*",        "all",         "p2pmem:0000:03:00.0",
    "a/gpu:0", "a/host"};
const std::vector<std::string> bad_path_entries = {
    "/tmp",           "file",           "file:",          "file:tmp",     "file:.",       "file:~",
    "file:=rw",       "file:/tmp=",     "file:/tmp=r",    "file:/tmp=w",  "file:/tmp=RW", "file:/tmp=rw=rw",
    "file:/tmp=rw ",  "file:/tmp%",     "file:/tmp%2",    "file:/tmp%zz", "file:/tmp%00", "file:%00/tmp",
    "file:/dev/null", "file:/dev/zero", "file:/tmp/=x/y", "file:/tmp\0"s};
const std::vector<std::string> bad_shared_entries = {"shared:",     "shared",     "shared:a b", "shared:a/b",
                                                     "shared:**",   "shared:a*",  "shared:..",  "shared:.a",
                                                     "shared:a=rw", "shared:a\0"s};
// Which of two bounds or rights would hold nobody knows.
const std::vector<std::string> entries_there_twice = {
    "gpu:0,gpu:0",       "gpu:0,gpu:0=8GiB",       "gpu:*,gpu:*=1",
    "host,host=8GiB",    "file:/tmp,file:/tmp=rw", "file:/tmp,file:/tmp/",
    "shared:a,shared:a", "shared:*,shared:*"};

TEST(WireAllowance, RefusesWhatIsNoEntry) {
    std::vector<std::string> bad;
    for (const auto& some : {bad_memory_entries, bad_path_entries, bad_shared_entries, entries_there_twice})
        bad.insert(bad.end(), some.begin(), some.end());
    for (const auto& list : bad) {
        const auto refused = Allowances::parse(list);
        ASSERT_FALSE(refused.ok()) << list;
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument) << refused.error().to_string();
        EXPECT_FALSE(refused.error().hint.empty()) << list;
    }
    for (const char* list : {"file:/nowhere/at/all", "host,file:/nowhere,gpu:0", "file:/tmp/%2Cnone"}) {
        const auto refused = Allowances::parse(list);
        ASSERT_FALSE(refused.ok()) << list;
        EXPECT_EQ(refused.error().code, ErrorCode::not_found) << refused.error().to_string();
        EXPECT_NE(refused.error().message.find("'file:/"), std::string::npos) << refused.error().to_string();
    }
    EXPECT_NE(Allowances::parse("host,gpu:x,gpu:0").error().message.find("'gpu:x'"), std::string::npos);
}

TEST(WireAllowance, NothingIsAllowedByEmptyText) {
    const Allowances none = allowing("");
    EXPECT_TRUE(none.lines().empty());
    EXPECT_EQ(none.file("/etc/passwd", Permission::read).error().code, ErrorCode::permission_denied);
    EXPECT_EQ(none.file("/nowhere/at/all", Permission::read).error().code, ErrorCode::permission_denied);
    EXPECT_EQ(none.shared("kv").error().code, ErrorCode::permission_denied);
    for (const Place& place : {Place::host(), Place::gpu(0)}) {
        EXPECT_EQ(none.memory(place, 0, 0).error().code, ErrorCode::permission_denied);
        EXPECT_EQ(none.account(place), "");
    }
}

TEST(WireAllowance, MemoryIsLentUpToItsBound) {
    constexpr Bytes most = ~Bytes{0};
    struct Case {
        std::string list;
        Place place;
        Bytes bytes;
        Bytes held;
        std::string account;  // empty: not allowed
        bool fits;
    };
    const std::vector<Case> cases = {
        {"gpu:0", Place::gpu(0), most, most, "gpu:0", true},
        {"gpu:0", Place::gpu(1), 1, 0, "", false},
        {"gpu:1", Place::gpu(11), 1, 0, "", false},
        {"gpu:0", Place::host(), 1, 0, "", false},
        {"gpu:*", Place::gpu(0), most, 0, "gpu:*", true},
        {"gpu:*", Place::gpu(999), 1, 0, "gpu:*", true},
        {"gpu:*", Place::host(), 1, 0, "", false},
        {"host", Place::host(), most, 7, "host", true},
        {"host", Place::host(1), 1, 0, "host", true},
        {"host", Place::gpu(0), 1, 0, "", false},
        {"host,gpu:*,shared:*,file:/", Place::file("/tmp/x"), 0, 0, "", false},
        {"host,gpu:*,shared:*,file:/", Place::shared("kv"), 0, 0, "", false},
        {"host,gpu:*,shared:*,file:/", Place::p2pmem("0000:03:00.0"), 0, 0, "", false},
        {"host=8KiB", Place::host(), 8192, 0, "host", true},
        {"host=8KiB", Place::host(), 8193, 0, "host", false},
        {"host=8KiB", Place::host(), 0, 8192, "host", true},
        {"host=8KiB", Place::host(), 1, 8191, "host", true},
        {"host=8KiB", Place::host(), 2, 8191, "host", false},
        {"host=8KiB", Place::host(), most, 8192, "host", false},
        {"host=8KiB", Place::host(), most, 1, "host", false},
        {"host=8KiB", Place::host(), 0, 8193, "host", false},
        {"host=8KiB", Place::host(), 1, most, "host", false},
        // The entry that names the GPU counts, wherever it stands.
        {"gpu:*=8KiB,gpu:1=1KiB", Place::gpu(1), 1025, 0, "gpu:1", false},
        {"gpu:1=1KiB,gpu:*=8KiB", Place::gpu(1), 1025, 0, "gpu:1", false},
        {"gpu:1=16KiB,gpu:*=8KiB", Place::gpu(1), 16384, 0, "gpu:1", true},
        {"gpu:1=16KiB,gpu:*=8KiB", Place::gpu(2), 16384, 0, "gpu:*", false},
        {"gpu:1=16KiB,gpu:*=8KiB", Place::gpu(2), 8192, 0, "gpu:*", true},
    };
    for (const Case& one : cases) {
        const Allowances allowances = allowing(one.list);
        const std::string what = one.list + " " + one.place.to_string() + " " + std::to_string(one.bytes);
        EXPECT_EQ(allowances.account(one.place), one.account) << what;
        const auto lent = allowances.memory(one.place, one.bytes, one.held);
        ASSERT_EQ(lent.ok(), one.fits) << what;
        if (one.fits) continue;
        EXPECT_EQ(lent.error().code,
                  one.account.empty() ? ErrorCode::permission_denied : ErrorCode::out_of_memory)
            << what;
        EXPECT_FALSE(lent.error().hint.empty()) << what;
    }
    const std::string said = allowing("gpu:*=8GiB").memory(Place::gpu(3), 2_GiB, 7_GiB).error().message;
    for (const char* part : {"8 GiB of gpu:*", "7 GiB", "2 GiB"})
        EXPECT_NE(said.find(part), std::string::npos) << said;
}

TEST(WireAllowance, PublishedMemoryIsReachedByItsName) {
    struct Case {
        std::string list;
        std::string name;
        bool good;
    };
    for (const auto& [list, name, good] : std::vector<Case>{{"shared:kv", "kv", true},
                                                            {"shared:kv", "kv2", false},
                                                            {"shared:kv", "k", false},
                                                            {"shared:kv", "KV", false},
                                                            {"shared:kv", "", false},
                                                            {"shared:kv", "*", false},
                                                            {"shared:kv,shared:a.b", "a.b", true},
                                                            {"shared:*", "anything", true},
                                                            {"shared:*", "", false},
                                                            {"shared:*", "*", false},
                                                            {"shared:*", "..", false},
                                                            {"shared:*", ".hidden", false},
                                                            {"shared:*", "a/b", false},
                                                            {"shared:*", "../a", false},
                                                            {"shared:*", "a\0"s, false},
                                                            {"shared:*", "a\nb", false},
                                                            {"host,gpu:*,file:/", "kv", false}}) {
        const auto reached = allowing(list).shared(name);
        ASSERT_EQ(reached.ok(), good) << list << " " << name;
        if (good) continue;
        EXPECT_EQ(reached.error().code, ErrorCode::permission_denied);
        EXPECT_EQ(reached.error().message.find('\n'), std::string::npos);
        EXPECT_FALSE(reached.error().hint.empty());
    }
}

}  // namespace
}  // namespace sidestep::wire
