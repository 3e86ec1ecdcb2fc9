#include "tests/multiprocess/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/contents.hpp"
#include "tests/multiprocess/container.hpp"

extern char** environ;

namespace sidestep::multiprocess {

TestFolder::TestFolder() {
    std::string name = "/tmp/sidestep-test-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
    EXPECT_FALSE(path_.empty());
}

TestFolder::~TestFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Context open_context(const TestFolder& folder) {
    ContextOptions options;
    options.machine = machine_name;
    options.peer_folder = folder.path();
    return std::move(Context::open(options)).value();
}

Peer::Peer(const TestFolder& folder, const std::vector<std::string>& launcher, const std::string& where) {
    int commands[2] = {-1, -1};
    int answers[2] = {-1, -1};
    if (::pipe2(commands, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, commands[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, answers[1], 1);
    std::vector<std::string> words = launcher;
    words.push_back(std::filesystem::read_symlink("/proc/self/exe"));
    words.emplace_back("--peer");
    words.push_back(where.empty() ? folder.path() : where);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawnp(&started_, arguments[0], &actions, nullptr, arguments.data(), environ), 0);
    process_ = launcher.empty() ? started_ : child_of(started_);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(commands[0]);
    ::close(answers[1]);
    to_ = commands[1];
    from_ = answers[0];
}

Peer::~Peer() {
    kill();
    ::close(to_);
    ::close(from_);
}

std::string Peer::tell(const std::string& command) {
    const std::string line = fmt::format("{}\n", command);
    if (::write(to_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return "";
    std::string answer;
    for (;;) {
        pollfd entry{from_, POLLIN, 0};
        char next = 0;
        if (::poll(&entry, 1, 110'000) != 1 || ::read(from_, &next, 1) != 1) return "";
        if (next == '\n') return answer;
        answer += next;
    }
}

void Peer::stop() const {
    ::kill(process_, SIGSTOP);
    ::waitpid(process_, nullptr, WUNTRACED);
}

void Peer::go_on() const {
    ::kill(process_, SIGCONT);
}

void Peer::kill() {
    if (const pid_t one = process_ > 0 ? process_ : started_; one > 0) ::kill(one, SIGKILL);
    if (started_ > 0) ::waitpid(started_, nullptr, 0);
    started_ = process_ = -1;
}

void fill(const Buffer& memory, unsigned seed) {
    test::fill(memory.address(), memory.size(), seed);
}

std::string differs(const Buffer& memory, unsigned seed, Bytes first) {
    const auto* bytes = static_cast<const unsigned char*>(memory.address());
    std::vector<unsigned char> expected(memory.size());
    test::fill(expected.data(), expected.size(), seed, first);
    if (std::memcmp(bytes, expected.data(), expected.size()) == 0) return "";
    const auto [found, wanted] = std::mismatch(bytes, bytes + expected.size(), expected.begin());
    return fmt::format("byte {} is {} where {} was expected", found - bytes, *found, *wanted);
}

std::size_t open_descriptors(pid_t process) {
    std::size_t count = 0;
    const std::string folder = process == 0 ? "/proc/self/fd" : fmt::format("/proc/{}/fd", process);
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
    return count;
}

bool soon_has_descriptors(std::size_t most) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (open_descriptors() > most && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return open_descriptors() <= most;
}

}  // namespace sidestep::multiprocess
