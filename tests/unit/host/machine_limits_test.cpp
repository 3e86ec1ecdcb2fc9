// What the host backend asks the system: processors and free memory, read from recorded trees.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "driver/cpus.hpp"
#include "driver/memory_limits.hpp"

namespace sidestep::driver {
namespace {

class Tree {
public:
    Tree() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-tree-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        root_ = name;
    }
    ~Tree() { std::filesystem::remove_all(root_); }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;

    void write(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
        std::ofstream(root_ + path) << text;
    }
    const std::string& root() const { return root_; }

private:
    std::string root_;
};

TEST(Cpus, ReadsListsOfProcessors) {
    EXPECT_EQ(*parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
    EXPECT_EQ(*parse_cpu_list("5"), std::vector<int>{5});
    EXPECT_EQ(*parse_cpu_list("2,1,1-2"), (std::vector<int>{1, 2}));
    EXPECT_EQ(*parse_cpu_list(""), std::vector<int>{});  // a node with memory alone
    for (const char* text : {"x", "1-", "-1", "3-2", "1,", ",1", "1 2", "0-99999999999", "0-70000"}) {
        EXPECT_FALSE(parse_cpu_list(text).ok()) << text;
    }
}

TEST(Cpus, AControlGroupsQuotaCounts) {
    const int allowed = static_cast<int>(allowed_cpus().size());
    const Tree tree;
    EXPECT_EQ(usable_cpu_count(tree.root()), allowed);
    tree.write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    EXPECT_EQ(usable_cpu_count(tree.root()), 1);
    tree.write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    EXPECT_EQ(usable_cpu_count(tree.root()), std::min(2, allowed));
    tree.write("/sys/fs/cgroup/cpu.max", "max 100000\n");
    EXPECT_EQ(usable_cpu_count(tree.root()), allowed);
    const Tree old;
    old.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    old.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(usable_cpu_count(old.root()), 1);
    old.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(usable_cpu_count(old.root()), allowed);
}

TEST(Cpus, ANodeThatIsNotThereIsNotFound) {
    const auto cpus = node_cpus(4321);
    ASSERT_FALSE(cpus.ok());
    EXPECT_EQ(cpus.error().code, ErrorCode::not_found);
    EXPECT_NE(cpus.error().message.find("4321"), std::string::npos);
}

TEST(MemoryLimits, TheLeastCounts) {
    const Tree tree;
    EXPECT_FALSE(available_memory(-1, tree.root()));
    tree.write("/proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n");
    auto available = available_memory(-1, tree.root());
    ASSERT_TRUE(available);
    EXPECT_EQ(available->bytes, Bytes{8000000} * 1024);
    EXPECT_EQ(available->source, "MemAvailable");

    // Version 2, the limit two folders up; 100 MiB of what is used can be dropped.
    tree.write("/proc/self/cgroup", "0::/pod/box\n");
    tree.write("/sys/fs/cgroup/pod/memory.max", std::to_string(1_GiB));
    tree.write("/sys/fs/cgroup/pod/memory.current", std::to_string(700_MiB));
    tree.write("/sys/fs/cgroup/pod/memory.stat",
               "anon 1\ninactive_file " + std::to_string(100_MiB) + "\nx 2\n");
    tree.write("/sys/fs/cgroup/pod/box/memory.max", "max\n");
    tree.write("/sys/fs/cgroup/pod/box/memory.current", "5\n");
    available = available_memory(-1, tree.root());
    EXPECT_EQ(available->bytes, 424_MiB);
    EXPECT_NE(available->source.find("control group"), std::string::npos);

    tree.write("/sys/devices/system/node/node1/meminfo",
               "Node 1 MemTotal: 4096 kB\nNode 1 MemFree:  1024 kB\nNode 1 Inactive(file): 1024 kB\n");
    available = available_memory(1, tree.root());
    EXPECT_EQ(available->bytes, 2_MiB);
    EXPECT_EQ(available->source, "NUMA node 1");
}

TEST(MemoryLimits, ReadsTheOldControlGroupsToo) {
    const Tree tree;
    tree.write("/proc/self/cgroup", "9:cpu:/x\n4:memory:/box\n0::/\n");
    tree.write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(10_MiB));
    tree.write("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", std::to_string(12_MiB));
    const auto available = available_memory(-1, tree.root());
    ASSERT_TRUE(available);
    EXPECT_EQ(available->bytes, 0u);  // over the limit is no negative room
}

TEST(MemoryLimits, CountsThePagesOfThisProcess) {
    const Bytes before = resident_private_bytes();
    EXPECT_GT(before, 0u);
    const std::vector<char> touched(64_MiB, 'x');
    EXPECT_GE(resident_private_bytes(), before + 60_MiB) << touched.size();
}

}  // namespace
}  // namespace sidestep::driver
