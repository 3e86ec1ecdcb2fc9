// What the file backend says about paths.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <limits>

#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Access;

class DescribeTest : public FileTest {
protected:
    backend::Description describe(const Buffer& buffer) {
        const auto description = backend_->describe(buffer);
        if (description && description->has_value()) return **description;
        ADD_FAILURE() << (description ? "the backend does not know it" : description.error().to_string());
        return {};
    }
    Error wrong(const Buffer& buffer) {
        const auto description = backend_->describe(buffer);
        EXPECT_FALSE(description.ok()) << buffer.to_string();
        return description ? Error{} : description.error();
    }
    Error unattachable(const Buffer& buffer, Access access) {
        const auto registration = attach(buffer, access);
        EXPECT_FALSE(registration.ok()) << buffer.to_string();
        return registration ? Error{} : registration.error();
    }
};

TEST_F(DescribeTest, KnowsFilesAndNothingElse) {
    put(folder_ / "x", "12345");
    const auto whole = describe(Buffer::file(folder_ / "x"));
    EXPECT_EQ(whole.size, 5u);
    EXPECT_EQ(whole.memory, MemoryKind::storage);
    EXPECT_EQ(whole.place, Place::file(folder_ / "x"));
    EXPECT_EQ(describe(Buffer::file(folder_ / "x", 2, 3)).size, 5u);
    char byte = 0;
    EXPECT_FALSE(backend_->describe(Buffer::host(&byte, 1))->has_value());
    EXPECT_FALSE(backend_->describe(Buffer::gpu(0, &byte, 1))->has_value());
    EXPECT_EQ(unattachable(Buffer::gpu(0, &byte, 1), Access::read).code, ErrorCode::unsupported);
}

TEST_F(DescribeTest, TellsFilesApartByWhatTheyAre) {
    put(folder_ / "x", "1");
    put(folder_ / "y", "1");
    std::filesystem::create_hard_link(folder_ / "x", folder_ / "hard");
    std::filesystem::create_symlink("x", folder_ / "soft");
    const auto x = describe(Buffer::file(folder_ / "x")).identity;
    EXPECT_NE(x, 0u);
    EXPECT_EQ(describe(Buffer::file(folder_ / "hard")).identity, x);
    EXPECT_EQ(describe(Buffer::file(folder_ / "soft", 0, 1)).identity, x);
    EXPECT_NE(describe(Buffer::file(folder_ / "y")).identity, x);
}

TEST_F(DescribeTest, AWholeFileThatIsNotThereIsATargetOnly) {
    const Buffer buffer = Buffer::file(folder_ / "new");
    EXPECT_EQ(describe(buffer).size, 0u);
    EXPECT_EQ(describe(buffer).identity, 0u);
    const Error error = unattachable(buffer, Access::read);
    EXPECT_EQ(error.code, ErrorCode::not_found);
    EXPECT_TRUE(says(error.message, folder_ / "new")) << error.message;
    EXPECT_TRUE(attach(buffer, Access::write).ok());
    EXPECT_EQ(wrong(Buffer::file(folder_ / "new", 0, 1)).code, ErrorCode::not_found);
    EXPECT_EQ(unattachable(Buffer::file(folder_ / "new", 0, 1), Access::write).code, ErrorCode::not_found);
    const Error deeper = wrong(Buffer::file(folder_ / "no/such/x"));
    EXPECT_EQ(deeper.code, ErrorCode::not_found);
    EXPECT_TRUE(says(deeper.message, folder_ / "no/such")) << deeper.message;
}

TEST_F(DescribeTest, RefusesWhatIsNoFile) {
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, (folder_ / "socket").c_str(), sizeof name.sun_path - 1);
    ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    ::close(socket);
    const std::pair<std::string, std::string> cases[] = {{folder_.path(), "directory"},
                                                         {folder_ / "pipe", "pipe"},
                                                         {folder_ / "socket", "socket"},
                                                         {"/dev/null", "character device"}};
    for (const auto& [path, word] : cases) {
        for (const Buffer& buffer : {Buffer::file(path), Buffer::file(path, 0, 1)}) {
            const Error error = wrong(buffer);
            EXPECT_EQ(error.code, ErrorCode::invalid_argument) << error.to_string();
            EXPECT_TRUE(says(error.message, word)) << error.message;
            EXPECT_NE(error.hint, "");
            EXPECT_EQ(unattachable(buffer, Access::write).code, ErrorCode::invalid_argument);
        }
    }
}

TEST_F(DescribeTest, RefusesPathsAndRangesThatMakeNoSense) {
    EXPECT_EQ(wrong(Buffer::file("")).code, ErrorCode::invalid_argument);
    put(folder_ / "x", "12345");
    const Error below = wrong(Buffer::file(folder_ / "x/y"));
    EXPECT_EQ(below.code, ErrorCode::not_found) << below.to_string();
    EXPECT_TRUE(says(below.message, "x is a regular file")) << below.message;
    EXPECT_EQ(wrong(Buffer::file(folder_ / "x", 1, Bytes{1} << 63)).code, ErrorCode::invalid_argument);
    EXPECT_EQ(wrong(Buffer::file(folder_ / "x", Buffer::whole - 1, 5)).code, ErrorCode::invalid_argument);
    std::filesystem::create_symlink("loop", folder_ / "loop");
    EXPECT_FALSE(backend_->describe(Buffer::file(folder_ / "loop")).ok());
    EXPECT_EQ(wrong(Buffer::file(folder_ / std::string(300, 'n'))).code, ErrorCode::invalid_argument);
}

TEST_F(DescribeTest, ARangeMustLieInTheFile) {
    put(folder_ / "x", "12345");
    const Error beyond = wrong(Buffer::file(folder_ / "x", 6, 1));
    EXPECT_EQ(beyond.code, ErrorCode::end_of_file);
    EXPECT_TRUE(says(beyond.message, "5 bytes")) << beyond.message;
    const Error longer = unattachable(Buffer::file(folder_ / "x", 3, 3), Access::read);
    EXPECT_EQ(longer.code, ErrorCode::end_of_file);
    EXPECT_TRUE(says(longer.message, "5 bytes")) << longer.message;
    EXPECT_TRUE(attach(Buffer::file(folder_ / "x", 3, 2), Access::read).ok());
    EXPECT_TRUE(attach(Buffer::file(folder_ / "x", 5, 0), Access::read).ok());
}

TEST_F(DescribeTest, PermissionsAreHeeded) {
    put(folder_ / "secret", "12345");
    ASSERT_EQ(::chmod((folder_ / "secret").c_str(), 0), 0);
    put(folder_ / "written", "12345");
    ASSERT_EQ(::chmod((folder_ / "written").c_str(), 0222), 0);
    std::filesystem::create_directory(folder_ / "closed");
    put(folder_ / "closed/x", "1");
    ASSERT_EQ(::chmod((folder_ / "closed").c_str(), 0), 0);
    {
        const Unprivileged nobody;
        EXPECT_EQ(unattachable(Buffer::file(folder_ / "secret", 0, 5), Access::read).code,
                  ErrorCode::permission_denied);
        EXPECT_EQ(unattachable(Buffer::file(folder_ / "secret", 0, 5), Access::write).code,
                  ErrorCode::permission_denied);
        EXPECT_EQ(unattachable(Buffer::file(folder_ / "secret"), Access::write).code,
                  ErrorCode::permission_denied);
        // Refused before a byte is written where it will be read back.
        EXPECT_EQ(unattachable(Buffer::file(folder_ / "written", 0, 5), Access::write).code,
                  ErrorCode::permission_denied);
        backend::AttachOptions never_read;
        never_read.never_read = true;
        EXPECT_TRUE(attach(Buffer::file(folder_ / "written", 0, 5), Access::write, never_read).ok());
        EXPECT_EQ(wrong(Buffer::file(folder_ / "closed/x")).code, ErrorCode::permission_denied);
    }
    ASSERT_EQ(::chmod((folder_ / "closed").c_str(), 0700), 0);
}

TEST_F(DescribeTest, AFileThatHidesItsSizeIsNotCopiedAsEmpty) {
    const Error error = unattachable(Buffer::file("/proc/self/status", 0, 0), Access::read);
    EXPECT_EQ(error.code, ErrorCode::unsupported);
    put(folder_ / "empty", "");
    EXPECT_TRUE(attach(Buffer::file(folder_ / "empty", 0, 0), Access::read).ok());
}

}  // namespace
}  // namespace sidestep::backends::file
