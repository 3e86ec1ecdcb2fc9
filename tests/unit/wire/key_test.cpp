// The key's file: who may have it, what it holds, and how it is made.
#include "wire/key.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include "driver/random.hpp"

namespace sidestep::wire {
namespace {

const std::string example_digits = "00ff7f80123456789abcdefABCDEF00000000000000000000000000000000a0b";

class WireKey : public testing::Test {
protected:
    WireKey() {
        std::string name = "/tmp/sidestep-key-XXXXXX";
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder = name;
        path = folder + "/key";
    }
    ~WireKey() override { std::filesystem::remove_all(folder); }

    void put(const std::string& text, mode_t mode = 0600) const {
        std::ofstream(path, std::ios::binary) << text;
        ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    }

    static mode_t mode_of(const std::string& file) {
        struct stat status {};
        return ::stat(file.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
    }

    static std::vector<std::string> names_in(const std::string& where) {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(where))
            names.push_back(entry.path().filename());
        return names;
    }

    std::string folder;
    std::string path;
};

// Sets a variable as long as it lives; null takes it away.
class KeyVariable {
public:
    KeyVariable(const char* name, const char* value) : name_(name) {
        if (const char* old = std::getenv(name)) old_ = old;
        set(value);
    }
    KeyVariable(const KeyVariable&) = delete;
    KeyVariable& operator=(const KeyVariable&) = delete;
    ~KeyVariable() { set(old_ ? old_->c_str() : nullptr); }

private:
    void set(const char* value) const {
        if (value != nullptr)
            ::setenv(name_, value, 1);
        else
            ::unsetenv(name_);
    }
    const char* name_;
    std::optional<std::string> old_;
};

TEST_F(WireKey, LiesWhereItIsSaid) {
    struct Case {
        const char* given;
        const char* config;
        const char* home;
        const char* path;  // null: none
    };
    const std::vector<Case> cases = {
        {"/x/k", "/c", "/h", "/x/k"},
        {"k", nullptr, nullptr, "k"},
        {"", "/c", "/h", "/c/sidestep/key"},
        {"", nullptr, "/h", "/h/.config/sidestep/key"},
        {"", "", "/h", "/h/.config/sidestep/key"},
        {"", "c", "/h", "/h/.config/sidestep/key"},  // the standard has relative ones passed over
        {"", nullptr, nullptr, nullptr},
        {"", "", "", nullptr},
        {"", "c", "h", nullptr},
    };
    for (const auto& [given, config, home, expected] : cases) {
        const KeyVariable first("XDG_CONFIG_HOME", config), second("HOME", home);
        const auto found = key_path(given);
        ASSERT_EQ(found.ok(), expected != nullptr) << given;
        if (expected != nullptr) {
            EXPECT_EQ(*found, expected);
        } else {
            EXPECT_EQ(found.error().code, ErrorCode::not_found);
            EXPECT_FALSE(found.error().hint.empty());
        }
    }
}

TEST_F(WireKey, IsReadFromItsDigits) {
    for (const char* end : {"", "\n", "\r\n"}) {
        put(example_digits + end);
        const auto key = read_key(path);
        ASSERT_TRUE(key.ok()) << key.error().to_string();
        ASSERT_EQ(key->size(), key_bytes);
        EXPECT_EQ(key->substr(0, 4), std::string("\x00\xff\x7f\x80", 4));
        EXPECT_EQ(key->substr(30), "\x0a\x0b");
    }
    const std::string link = folder + "/link";
    ASSERT_EQ(::symlink("key", link.c_str()), 0);
    EXPECT_EQ(*read_key(link), *read_key(path));
}

TEST_F(WireKey, OtherContentsAreRefusedAndNotShown) {
    const std::string& digits = example_digits;
    const std::vector<std::string> bad = {"",
                                          "\n",
                                          digits.substr(1),
                                          digits + "0",
                                          digits.substr(1) + "\n",
                                          "\n" + digits,
                                          digits + " ",
                                          digits + "\n\n",
                                          digits + "\n\r",
                                          "0x" + digits.substr(2),
                                          "g" + digits.substr(1),
                                          " " + digits.substr(1),
                                          digits.substr(1) + std::string(1, '\0'),
                                          digits + "\nmore",
                                          std::string(100'000, 'a'),
                                          std::string(32, '\x07')};
    for (const auto& text : bad) {
        put(text);
        for (const bool make : {false, true}) {
            const auto key = make ? read_or_make_key(path) : read_key(path);
            ASSERT_FALSE(key.ok()) << text;
            EXPECT_EQ(key.error().code, ErrorCode::invalid_argument) << text;
            const std::string said = key.error().to_string();
            EXPECT_NE(said.find(path), std::string::npos) << said;
            EXPECT_FALSE(key.error().hint.empty());
            EXPECT_EQ(said.find("123456789"), std::string::npos) << said;
            EXPECT_EQ(said.find("aaaa"), std::string::npos) << said;
        }
        std::string kept(text.size() + 1, '?');
        kept.resize(static_cast<std::size_t>(std::ifstream(path).read(kept.data(), 200'000).gcount()));
        EXPECT_EQ(kept, text) << "a file that is there stays";
    }
}

TEST_F(WireKey, IsOfNoUseWhereOthersMayReachIt) {
    const std::vector<std::pair<mode_t, bool>> cases = {
        {0600, true},  {0400, true},  {0700, true},  {0711, true},  {0640, false}, {0620, false},
        {0604, false}, {0602, false}, {0666, false}, {0644, false}, {0660, false}};
    for (const auto& [mode, good] : cases) {
        put(example_digits, mode);
        for (const bool make : {false, true}) {
            const auto key = make ? read_or_make_key(path) : read_key(path);
            ASSERT_EQ(key.ok(), good) << std::oct << mode;
            if (good) continue;
            EXPECT_EQ(key.error().code, ErrorCode::permission_denied);
            EXPECT_NE(key.error().hint.find("chmod 600 " + path), std::string::npos)
                << key.error().to_string();
            EXPECT_EQ(mode_of(path), mode) << "it is left as it is";
        }
    }
}

TEST_F(WireKey, OfAnotherUserIsRefused) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file of another user";
    put(example_digits);
    ASSERT_EQ(::chown(path.c_str(), 4711, 0), 0);
    for (const bool make : {false, true}) {
        const auto key = make ? read_or_make_key(path) : read_key(path);
        ASSERT_FALSE(key.ok());
        EXPECT_EQ(key.error().code, ErrorCode::permission_denied) << key.error().to_string();
        EXPECT_NE(key.error().message.find("4711"), std::string::npos) << key.error().to_string();
        EXPECT_NE(key.error().message.find(path), std::string::npos) << key.error().to_string();
    }
}

// Runs `body` as another user, in a thread of its own: the kernel's calls change the user of one thread, unlike those
// of the library.
void as_user(unsigned user, const std::function<void()>& body) {
    std::thread([&] {
        ASSERT_EQ(::syscall(SYS_setresuid, -1, user, -1), 0);
        body();
    }).join();
}

TEST_F(WireKey, OfRootMayBeReadByWhomItIsLentTo) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    put(example_digits);
    ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
    as_user(4711, [&] {
        // The owner is no obstacle, but the system is, and says so.
        const auto key = read_key(path);
        ASSERT_FALSE(key.ok());
        EXPECT_EQ(key.error().code, ErrorCode::permission_denied);
        EXPECT_NE(key.error().message.find("cannot open"), std::string::npos) << key.error().to_string();
        EXPECT_NE(key.error().message.find(path), std::string::npos) << key.error().to_string();
        EXPECT_EQ(key.error().to_string().find("belongs"), std::string::npos) << key.error().to_string();
    });
    ASSERT_EQ(::chown(path.c_str(), 4711, 0), 0);
    as_user(4711, [&] { EXPECT_TRUE(read_key(path).ok()); });
    as_user(4712, [&] {
        const auto key = read_key(path);
        ASSERT_FALSE(key.ok());
        EXPECT_NE(key.error().message.find("belongs to user 4711"), std::string::npos)
            << key.error().to_string();
    });
}

TEST_F(WireKey, IsNoFolderPipeOrDevice) {
    const std::string pipe = folder + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    // Hangs where it opens the pipe. Devices are only read: root would be able to replace them.
    for (const std::string& what : {folder, pipe, std::string("/dev/null"), std::string("/dev/zero")}) {
        const auto key = what.starts_with("/dev") ? read_key(what) : read_or_make_key(what);
        ASSERT_FALSE(key.ok()) << what;
        EXPECT_EQ(key.error().code, ErrorCode::invalid_argument) << key.error().to_string();
        EXPECT_NE(key.error().message.find(what), std::string::npos) << key.error().to_string();
    }
    put(example_digits);
    EXPECT_EQ(read_key(path + std::string("\0x", 2)).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(read_or_make_key(path + std::string("\0x", 2)).error().code, ErrorCode::invalid_argument);
}

TEST_F(WireKey, ThatIsMissingIsSaidToBe) {
    const auto key = read_key(path);
    ASSERT_FALSE(key.ok());
    EXPECT_EQ(key.error().code, ErrorCode::not_found);
    EXPECT_NE(key.error().message.find(path), std::string::npos);
    EXPECT_FALSE(key.error().hint.empty());
    EXPECT_TRUE(names_in(folder).empty());
}

TEST_F(WireKey, IsMadeWithItsFoldersForThisUserAlone) {
    const mode_t old = ::umask(0);
    path = folder + "/config//sidestep/key";
    const auto key = read_or_make_key(path);
    ::umask(0777 & ~0700);
    const auto other = read_or_make_key(folder + "/other/key");
    ::umask(old);
    ASSERT_TRUE(key.ok()) << key.error().to_string();
    ASSERT_TRUE(other.ok()) << other.error().to_string();
    EXPECT_EQ(key->size(), key_bytes);
    EXPECT_NE(*key, *other);
    EXPECT_EQ(*read_key(path), *key);
    EXPECT_EQ(*read_or_make_key(path), *key) << "one that is there stays";
    for (const char* made : {"/config", "/config/sidestep", "/other"})
        EXPECT_EQ(mode_of(folder + made), 0700u) << made;
    for (const char* made : {"/config/sidestep/key", "/other/key"})
        EXPECT_EQ(mode_of(folder + made), 0600u) << made;
    EXPECT_EQ(names_in(folder + "/config/sidestep"), std::vector<std::string>{"key"})
        << "nothing else is left";
    EXPECT_EQ(std::filesystem::file_size(path), 65u) << "digits and the line's end";
}

TEST_F(WireKey, HasItsModeWhateverTheUmask) {
    const mode_t old = ::umask(0777);
    const auto key = read_or_make_key(path);
    ::umask(old);
    ASSERT_TRUE(key.ok()) << key.error().to_string();
    EXPECT_EQ(mode_of(path), 0600u);
}

TEST_F(WireKey, IsTheSameForAllThatMakeOneAtATime) {
    for (int round = 0; round < 50; ++round) {
        const std::string where = folder + "/" + std::to_string(round);
        std::vector<std::future<Result<std::string>>> makers;
        std::promise<void> start;
        auto started = start.get_future().share();
        for (int i = 0; i < 6; ++i)
            makers.push_back(std::async(std::launch::async, [&, started] {
                started.wait();
                return read_or_make_key(where + "/key");
            }));
        start.set_value();
        std::set<std::string> keys;
        for (auto& maker : makers) {
            const auto key = maker.get();
            EXPECT_TRUE(key.ok()) << key.error().to_string();
            if (key) keys.insert(*key);
        }
        ASSERT_EQ(keys.size(), 1u) << round;
        EXPECT_EQ(names_in(where), std::vector<std::string>{"key"});
    }
}

TEST_F(WireKey, IsNotMadeThroughALinkThatLeadsNowhere) {
    ASSERT_EQ(::symlink((folder + "/elsewhere").c_str(), path.c_str()), 0);
    const auto key = read_or_make_key(path);
    ASSERT_FALSE(key.ok());
    EXPECT_EQ(key.error().code, ErrorCode::not_found);
    EXPECT_NE(key.error().message.find("link"), std::string::npos) << key.error().to_string();
    EXPECT_EQ(names_in(folder), std::vector<std::string>{"key"});
}

TEST_F(WireKey, ThatCannotBeMadeSaysWhy) {
    put("x");
    for (const std::string& bad :
         {folder + "/none/", folder + "/none/.", folder + "/none/..", path + "/below/key", path + "/key",
          std::string("/proc/none/key"), folder + "/" + std::string(300, 'a'), std::string(5000, 'a')}) {
        const auto key = read_or_make_key(bad);
        ASSERT_FALSE(key.ok()) << bad;
        EXPECT_NE(key.error().message.find(bad.substr(0, 10)), std::string::npos) << key.error().to_string();
    }
    EXPECT_EQ(names_in(folder), std::vector<std::string>{"key"}) << "no folder and no part of a key is left";
}

// Lets this thread's getrandom fail, as old kernels and strict containers do.
bool forbid_getrandom() {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{sizeof code / sizeof code[0], code};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Every byte of the middle took many values, and nothing past it was written.
void expect_random_bytes() {
    constexpr std::size_t size = 31, edge = 8;
    std::array<std::set<unsigned>, size> seen;
    for (int i = 0; i < 64; ++i) {
        std::array<unsigned char, size + 2 * edge> bytes{};
        ASSERT_TRUE(driver::fill_random(bytes.data() + edge, size));
        for (std::size_t k = 0; k < edge; ++k) ASSERT_EQ(bytes[k] + bytes[size + edge + k], 0);
        for (std::size_t k = 0; k < size; ++k) seen[k].insert(bytes[edge + k]);
    }
    for (const auto& values : seen) EXPECT_GT(values.size(), 32u);  // 57 on average
}

TEST_F(WireKey, IsOfRandomBytesFromTheKernel) {
    expect_random_bytes();
    std::string skip;
    std::thread([&] {
        if (!forbid_getrandom()) {
            skip = "seccomp is not to be had";
            return;
        }
        char byte = 0;
        ASSERT_EQ(::syscall(SYS_getrandom, &byte, 1, 0), -1);
        expect_random_bytes();
        const auto key = read_or_make_key(path);
        EXPECT_TRUE(key.ok()) << key.error().to_string();
    }).join();
    if (!skip.empty()) GTEST_SKIP() << skip;
}

}  // namespace
}  // namespace sidestep::wire
