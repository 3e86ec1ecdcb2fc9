#include "tests/multiprocess/container.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/format.h>

extern char** environ;

namespace sidestep::multiprocess {

pid_t child_of(pid_t process) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < until) {
        pid_t child = -1;
        if (std::ifstream(fmt::format("/proc/{0}/task/{0}/children", process)) >> child) return child;
        siginfo_t ended{};
        if (::waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            ended.si_pid != 0)
            break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return -1;
}

int number_inside(pid_t process) {
    std::ifstream status(fmt::format("/proc/{}/status", process));
    for (std::string line; std::getline(status, line);) {
        if (!line.starts_with("NSpid:")) continue;
        std::istringstream numbers(line.substr(6));
        int number = 0;
        while (numbers >> number) {
        }
        return number;
    }
    return 0;
}

Container::Container(const std::vector<std::string>& options, const std::string& script) : options_(options) {
    int ends[2] = {-1, -1};
    int lives[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0 || ::pipe2(lives, O_CLOEXEC) != 0) return;
    alive_ = lives[1];
    std::vector<std::string> words{"unshare"};
    words.insert(words.end(), options.begin(), options.end());
    for (const char* word : {"--fork", "--kill-child", "sh", "-ec"}) words.emplace_back(word);
    words.push_back(script + "\necho ready\nexec cat");  // until this process ends
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, lives[0], 0);
    for (const int fd : {1, 2}) ::posix_spawn_file_actions_adddup2(&actions, ends[1], fd);
    if (::posix_spawnp(&unshare_, "unshare", &actions, nullptr, arguments.data(), environ) != 0)
        unshare_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    for (const int fd : {ends[1], lives[0]}) ::close(fd);
    std::string said;
    for (char next = 0; !said.ends_with("ready\n") && ::read(ends[0], &next, 1) == 1;) said += next;
    ::close(ends[0]);
    if (said != "ready\n") why_not_ = said.empty() ? "there is no unshare here" : said;
    if (why_not_.empty()) first_ = child_of(unshare_);
}

Container::~Container() {
    kill();
    ::close(alive_);
}

std::vector<std::string> Container::enter() const {
    // With --pid it starts a child, whichever namespace that is.
    std::vector<std::string> words{"nsenter", "--target", std::to_string(first_), "--preserve-credentials",
                                   "--pid"};
    for (const char* name : {"user", "mount", "uts", "ipc", "net", "cgroup", "time"}) {
        const std::string option = std::string("--") + name;
        // As --mount-proc is one of mounts too.
        const bool own = std::any_of(options_.begin(), options_.end(),
                                     [&](const std::string& one) { return one.starts_with(option); });
        if (own) words.push_back(option);
    }
    words.emplace_back("--");
    return words;
}

void Container::kill() {
    if (first_ > 0) ::kill(first_, SIGKILL);
    // Ends when its child has ended, or takes it along.
    if (unshare_ > 0 && first_ < 0) ::kill(unshare_, SIGKILL);
    if (unshare_ > 0) ::waitpid(unshare_, nullptr, 0);
    first_ = unshare_ = -1;
}

}  // namespace sidestep::multiprocess
