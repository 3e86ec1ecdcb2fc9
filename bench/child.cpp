#include "bench/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/leftovers.hpp"

extern char** environ;

namespace sidestep::bench {
namespace {

// How often an end is looked for once the output is closed, or while it is kept open by nobody.
constexpr std::chrono::milliseconds between_looks{20};

void close_if_open(int& descriptor) {
    if (descriptor >= 0) close(descriptor);
    descriptor = -1;
}

// A pipe whose both ends are closed at exec; {read, write}, or -1 for both.
std::pair<int, int> make_pipe() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) return {-1, -1};
    return {ends[0], ends[1]};
}

// The environment, with GPUs counted in the order of their PCI addresses, as the library does.
std::vector<char*> environment() {
    static char order[] = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
    std::vector<char*> list = {order};  // the first of a name counts
    for (char** entry = environ; *entry != nullptr; ++entry) list.push_back(*entry);
    list.push_back(nullptr);
    return list;
}

// The descriptors of a child: nothing to read, and its two outputs into pipes.
class Actions {
public:
    Actions(int output, int errors) {
        posix_spawn_file_actions_init(&actions_);
        posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&actions_, output, 1);
        posix_spawn_file_actions_adddup2(&actions_, errors, 2);
        posix_spawnattr_init(&attributes_);
        // The command blocks signals on its threads; a child starts with none blocked.
        sigset_t none;
        sigemptyset(&none);
        posix_spawnattr_setsigmask(&attributes_, &none);
        posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    }
    ~Actions() {
        posix_spawn_file_actions_destroy(&actions_);
        posix_spawnattr_destroy(&attributes_);
    }
    Actions(const Actions&) = delete;
    Actions& operator=(const Actions&) = delete;
    int spawn(pid_t& process, const std::string& program, char** arguments) {
        return posix_spawn(&process, program.c_str(), &actions_, &attributes_, arguments,
                           environment().data());
    }

private:
    posix_spawn_file_actions_t actions_{};
    posix_spawnattr_t attributes_{};
};

bool has_ended(pid_t process) {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == process;
}

// Takes what has arrived; false once the pipe has ended. What exceeds the bound is read and dropped, so that
// the child never waits for room.
bool drain(int descriptor, std::string& text, std::size_t max) {
    char block[1 << 14];
    const ssize_t got = read(descriptor, block, sizeof block);
    if (got < 0) return errno == EINTR;
    if (got == 0) return false;
    const std::size_t room = max - std::min(max, text.size());
    text.append(block, std::min(room, static_cast<std::size_t>(got)));
    return true;
}

// Takes the whole lines out of the text.
void hand_out_lines(std::string& text, const std::function<void(const std::string&)>& line) {
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
        line(text.substr(begin, end - begin));
    text.erase(0, begin);
}

}  // namespace

std::string find_program(const std::string& name) {
    const char* path = std::getenv("PATH");
    std::string folders = path ? path : "";
    folders += ':';
    for (std::size_t begin = 0; begin < folders.size();) {
        const std::size_t end = folders.find(':', begin);
        const std::string file = folders.substr(begin, end - begin) + "/" + name;
        if (end > begin && access(file.c_str(), X_OK) == 0) return file;
        begin = end + 1;
    }
    return {};
}

Result<Child> Child::start(const std::string& program, const std::vector<std::string>& arguments) {
    Child child;
    child.program_ = program;
    auto [output, output_end] = make_pipe();
    auto [errors, errors_end] = make_pipe();
    child.output_ = output;
    child.errors_ = errors;
    std::vector<char*> words = {const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    int failed = output_end < 0 || errors_end < 0 ? errno : 0;
    if (failed == 0) failed = Actions(output_end, errors_end).spawn(child.process_, program, words.data());
    close_if_open(output_end);
    close_if_open(errors_end);
    if (failed == 0) {
        remember_process(-child.process_);
        return child;
    }
    child.process_ = -1;
    return Error{ErrorCode::io_error,
                 fmt::format("the program cannot be started: {}", std::generic_category().message(failed)),
                 program,
                 {}};
}

Child::Child(Child&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      output_(std::exchange(other.output_, -1)),
      errors_(std::exchange(other.errors_, -1)),
      program_(std::move(other.program_)) {}

Child::~Child() {
    kill_and_reap();
    close_if_open(output_);
    close_if_open(errors_);
}

void Child::kill_and_reap() {
    if (process_ < 0) return;
    kill(-process_, SIGKILL);
    forget_process(-process_);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
}

Result<Ended> Child::wait(std::chrono::milliseconds limit, std::size_t max, const std::stop_token& stop,
                          const std::function<void(const std::string&)>& line) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    Ended ended;
    for (int status = 0; process_ >= 0;) {
        pollfd files[2] = {{output_, POLLIN, 0}, {errors_, POLLIN, 0}};
        poll(files, 2, static_cast<int>(between_looks.count()));
        if (files[0].revents != 0 && !drain(output_, ended.output, max)) close_if_open(output_);
        if (line) hand_out_lines(ended.output, line);
        if (files[1].revents != 0 && !drain(errors_, ended.errors, max)) close_if_open(errors_);
        const bool quiet = files[0].revents == 0 && files[1].revents == 0;
        // What it wrote last is in the pipe when it has ended: the pipes are emptied first.
        if (quiet && has_ended(process_)) {
            kill(-process_, SIGKILL);  // children that it left behind; its number is still its own
            forget_process(-process_);
            while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
            }
            process_ = -1;
            ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        } else if (stop.stop_requested()) {
            kill_and_reap();
            return Error{ErrorCode::cancelled, "the program was ended early", program_, {}};
        } else if (std::chrono::steady_clock::now() > deadline) {
            kill_and_reap();
            return Error{ErrorCode::timed_out,
                         fmt::format("the program did not end within {} s",
                                     std::chrono::duration_cast<std::chrono::seconds>(limit).count()),
                         program_,
                         {}};
        }
    }
    return ended;
}

Result<Ended> run_program(const std::string& program, const std::vector<std::string>& arguments,
                          std::chrono::milliseconds limit) {
    SIDESTEP_TRY(auto child, Child::start(program, arguments));
    return child.wait(limit);
}

std::string last_line(const std::string& said) {
    const std::size_t end = said.find_last_not_of(" \n\r\t");
    if (end == std::string::npos) return "it said nothing";
    const std::size_t begin = said.find_last_of('\n', end);
    return said.substr(begin + 1, end - begin);  // npos + 1 is 0
}

}  // namespace sidestep::bench
