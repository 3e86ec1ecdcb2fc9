#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

#include "driver/local_socket.hpp"

namespace sidestep::driver {
namespace {

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

ino_t inode_of(int fd) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

// Pipes, since each end of each tells itself from all others.
std::vector<Fd> make_pipes(std::size_t count) {
    std::vector<Fd> made;
    while (made.size() < count) {
        std::array<int, 2> ends{};
        if (::pipe2(ends.data(), O_CLOEXEC) != 0) break;
        made.emplace_back(ends[0]);
        ::close(ends[1]);
    }
    return made;
}

TEST(DescriptorBundle, GivesTheSameOnesInOrderAgainAndAgain) {
    for (const std::size_t count : {1u, 2u, 250u, 251u, 400u}) {
        const std::size_t before = open_descriptors();
        std::vector<ino_t> inodes;
        Fd bundle;
        {
            const auto pipes = make_pipes(count);
            ASSERT_EQ(pipes.size(), count) << "this process may not open that many files";
            std::vector<int> numbers;
            for (const Fd& pipe : pipes) {
                numbers.push_back(pipe.get());
                inodes.push_back(inode_of(pipe.get()));
            }
            auto made = bundle_descriptors(numbers);
            ASSERT_TRUE(made) << made.error().to_string();
            bundle = std::move(*made);
        }
        EXPECT_EQ(open_descriptors(), before + 1) << "the bundle alone keeps the pipes open";
        for (int again = 0; again < 3; ++again) {
            auto opened = open_bundle(bundle.get(), 1000);
            ASSERT_TRUE(opened) << opened.error().to_string();
            ASSERT_EQ(opened->size(), count);
            for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(inode_of((*opened)[i].get()), inodes[i]) << i;
        }
        EXPECT_FALSE(open_bundle(bundle.get(), count - 1));
        EXPECT_EQ(open_descriptors(), before + 1);
        bundle = {};
        EXPECT_EQ(open_descriptors(), before);
    }
}

TEST(DescriptorBundle, NothingElseIsABundle) {
    const auto pipes = make_pipes(1);
    EXPECT_FALSE(open_bundle(pipes[0].get(), 10));
    EXPECT_FALSE(open_bundle(-1, 10));
    EXPECT_FALSE(bundle_descriptors({}));
}

}  // namespace
}  // namespace sidestep::driver
