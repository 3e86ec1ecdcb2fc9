// What the backend says of the machine's peer-to-peer memory, and how it gives it out.
#include "p2pmem_test.hpp"

#include <sys/stat.h>
#include <unistd.h>

namespace sidestep::backends::p2pmem {
namespace {

constexpr const char* first = "0000:03:00.0";
constexpr const char* second = "0000:05:00.0";

TEST_F(P2pmemTest, ProbeNamesTheMemoryThatItFinds) {
    add_device(first, 64_MiB, 64_MiB);
    add_device(second, 1_MiB, 1_MiB);
    const auto support = open(create(options()));
    EXPECT_TRUE(support.usable);
    EXPECT_TRUE(says(support.reason, "p2pmem:0000:03:00.0 64 MiB, p2pmem:0000:05:00.0 1 MiB"))
        << support.reason;
}

TEST_F(P2pmemTest, ProbeSaysWhyThereIsNone) {
    auto support = open(create(options()));
    EXPECT_FALSE(support.usable);
    EXPECT_TRUE(says(support.reason, "no PCI device publishes")) << support.reason;
    EXPECT_NE(support.remedy, "");
    support = open(create(options()), {{"kernel_p2pdma", "no"}});
    EXPECT_TRUE(says(support.reason, "CONFIG_PCI_P2PDMA")) << support.reason;
}

TEST_F(P2pmemTest, ProbeSaysWhereTheProcessMayNotMapIt) {
    add_device(first, 64_MiB, 64_MiB);
    std::filesystem::remove(device_folder(first) + "/allocate");
    auto support = open(create(options()));
    EXPECT_FALSE(support.usable);
    EXPECT_TRUE(says(support.reason, "no program map it")) << support.reason;

    add_device(first, 64_MiB, 64_MiB);
    ASSERT_EQ(::chmod((device_folder(first) + "/allocate").c_str(), 0600), 0);
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    if (::geteuid() != 0) GTEST_SKIP() << "only root can take the rights of another user";
    ASSERT_EQ(::seteuid(65534), 0);
    support = open(create(options()));
    ASSERT_EQ(::seteuid(0), 0);
    EXPECT_FALSE(support.usable);
    EXPECT_TRUE(says(support.reason, "p2pmem:0000:03:00.0 64 MiB")) << support.reason;
    EXPECT_TRUE(says(support.remedy, "root")) << support.remedy;
}

TEST_F(P2pmemTest, AllocatesWholePagesAndKnowsThemUntilTheyAreFreed) {
    add_device(first, 64_MiB, 64_MiB);
    ASSERT_TRUE(open(create(options())).usable);
    const Place place = Place::p2pmem(first);
    auto memory = backend_->allocator()->allocate(place, 5000, MemoryKind::p2pmem);
    ASSERT_TRUE(memory.ok()) << memory.error().to_string();
    const Buffer buffer = memory->buffer();
    auto described = backend_->describe(buffer.slice(100, 200));
    ASSERT_TRUE(described.ok() && described->has_value());
    EXPECT_EQ((*described)->memory, MemoryKind::p2pmem);
    EXPECT_EQ((*described)->place, place);
    EXPECT_FALSE(backend_->describe(buffer.slice(0, 1_MiB)).ok()) << "more than was allocated";
    EXPECT_FALSE(backend_->describe(Buffer::memory(Place::p2pmem(second), buffer.address(), 1)).ok());
    EXPECT_FALSE((*backend_->describe(Buffer::host(buffer.address(), 1))).has_value());
    const auto identity = (*described)->identity;
    *memory = Allocation();
    EXPECT_FALSE(backend_->describe(buffer).ok());
    EXPECT_FALSE(attach(buffer, backend::Access::write).ok()) << "freed memory must not be written to";

    memory = backend_->allocator()->allocate(place, 5000, MemoryKind::p2pmem);
    ASSERT_TRUE(memory.ok());
    described = backend_->describe(memory->buffer());
    ASSERT_TRUE(described.ok() && described->has_value());
    EXPECT_NE((*described)->identity, identity);
}

TEST_F(P2pmemTest, MemoryThatIsNotFreeIsRefusedWithWhatThereIs) {
    add_device(first, 64_MiB, 1_MiB);
    ASSERT_TRUE(open(create(options())).usable);
    const auto memory = backend_->allocator()->allocate(Place::p2pmem(first), 2_MiB, MemoryKind::p2pmem);
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.error().code, ErrorCode::out_of_memory);
    EXPECT_TRUE(says(memory.error().message, "2 MiB were asked for, 1 MiB of 64 MiB are free"))
        << memory.error().message;
}

TEST_F(P2pmemTest, AnotherDeviceIsNotThereAndTheOnesThatAreAreNamed) {
    add_device(first, 64_MiB, 64_MiB);
    ASSERT_TRUE(open(create(options())).usable);
    const auto memory = backend_->allocator()->allocate(Place::p2pmem(second), 4_KiB, MemoryKind::p2pmem);
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.error().code, ErrorCode::not_found);
    EXPECT_TRUE(says(memory.error().hint, "p2pmem:0000:03:00.0")) << memory.error().hint;
}

// O_DIRECT succeeds on tmpfs since Linux 6.6, and the processor copies.
TEST_F(P2pmemTest, AFileSystemThatCopiesIsNoDirectPath) {
    add_device(first, 64_MiB, 64_MiB);
    P2pmemOptions strict = options();
    strict.any_file = false;
    ASSERT_TRUE(open(create(strict)).usable);
    const Buffer memory = Buffer::memory(Place::p2pmem(first), nullptr, 0);
    for (const Buffer& file : {Buffer::file("/proc/version"), Buffer::file("/proc/not-there-yet")}) {
        for (const auto& answer : {backend_->reaches(file, memory), backend_->reaches(memory, file)}) {
            EXPECT_FALSE(answer.usable);
            EXPECT_TRUE(says(answer.reason, "by the processor")) << answer.reason;
            EXPECT_TRUE(says(answer.remedy, "ext4")) << answer.remedy;
        }
    }
}

}  // namespace
}  // namespace sidestep::backends::p2pmem
