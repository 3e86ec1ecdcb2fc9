#include "ranks.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::cli {
namespace {

using Clock = std::chrono::steady_clock;

// How often ends are looked for where the kernel tells nothing.
constexpr int between_looks_ms = 10;
// What a process leaves behind may keep its output open: it is read that long and no longer.
constexpr std::chrono::milliseconds after_the_last{500};
// A line that does not end is printed in pieces of this size.
constexpr std::size_t max_line = 1 << 16;

void close_if_open(int& descriptor) {
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
}

// The output of one process, or what it writes to standard error.
struct Output {
    int rank = 0;
    int from = -1;
    int to = STDOUT_FILENO;
    std::string rest;  // of a line that has not ended
};

struct RankProcess {
    pid_t id = -1;
    int ended = -1;  // a descriptor that can be read once it has ended; -1: the kernel has none
    bool running = false;
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
    std::vector<char*> list;
    for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
    list.push_back(nullptr);
    return list;
}

Error cannot_start(const std::string& program, int number) {
    const bool absent = number == ENOENT || number == ENOTDIR;
    return Error{absent             ? ErrorCode::not_found
                 : number == EACCES ? ErrorCode::permission_denied
                                    : ErrorCode::io_error,
                 fmt::format("the program cannot be started: {}", std::generic_category().message(number)),
                 program,
                 {}};
}

sigset_t forwarded_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
    return signals;
}

void write_all(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(descriptor, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

// Prints whole lines behind the rank; at the `end` the rest too. A carriage return ends a line as well, so
// that bars move.
void print_lines(Output& output, bool end) {
    std::string text;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < output.rest.size(); ++i) {
        const bool over = output.rest[i] == '\n' || output.rest[i] == '\r' || i + 1 - begin == max_line;
        if (!over) continue;
        text +=
            fmt::format("[{}] {}", output.rank, std::string_view(output.rest).substr(begin, i + 1 - begin));
        begin = i + 1;
    }
    output.rest.erase(0, begin);
    if (end && !output.rest.empty()) {
        text += fmt::format("[{}] {}\n", output.rank, output.rest);
        output.rest.clear();
    }
    write_all(output.to, text);
}

// Those that are there now. Orphans of the job become children of this process (PR_SET_CHILD_SUBREAPER).
std::vector<pid_t> children() {
    std::vector<pid_t> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
        const pid_t id = std::atoi(entry.path().filename().c_str());
        if (id <= 0) continue;
        std::string line;
        std::getline(std::ifstream(entry.path() / "stat"), line);
        // The name may hold anything, a parenthesis too; the state and the parent follow it.
        const std::size_t name_end = line.rfind(')');
        if (name_end == std::string::npos || line.size() < name_end + 4) continue;
        if (std::atoi(line.c_str() + name_end + 4) == ::getpid()) found.push_back(id);
    }
    return found;
}

// Whatever session or process group it made its own; the children of one that ends are found in the next round.
void kill_children() {
    for (auto found = children(); !found.empty(); found = children()) {
        for (const pid_t id : found) ::kill(id, SIGKILL);
        for (const pid_t id : found)
            while (::waitpid(id, nullptr, 0) < 0 && errno == EINTR) {
            }
    }
}

// What the new process does before it becomes the program. Only calls that may follow fork().
struct Start {
    int input = -1;
    int output = -1;  // -1: as this process
    int errors = -1;
    int failed = -1;  // gets errno where the program cannot be had
    pid_t parent = 0;
    sigset_t signals{};
    void (*pipe_signal)(int) = SIG_DFL;
    char** words = nullptr;
    char** environment = nullptr;

    [[noreturn]] void run() const {
        ::setpgid(0, 0);
        ::prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (::getppid() != parent) ::_exit(1);
        ::dup2(input, STDIN_FILENO);
        if (output >= 0) ::dup2(output, STDOUT_FILENO);
        if (errors >= 0) ::dup2(errors, STDERR_FILENO);
        ::signal(SIGPIPE, pipe_signal);
        ::sigprocmask(SIG_SETMASK, &signals, nullptr);
        ::execvpe(words[0], words, environment);
        const int number = errno;
        (void)!::write(failed, &number, sizeof number);
        ::_exit(127);
    }
};

}  // namespace

struct Ranks::State {
    std::vector<RankProcess> processes;
    std::vector<Output> outputs;
    sigset_t signals_before{};
    void (*pipe_signal_before)(int) = SIG_DFL;
    bool terminating = false;
    Clock::time_point kill_at{};
    JobEnd end;

    Result<void> start_one(const std::vector<std::string>& program,
                           const std::vector<std::string>& environment, bool prefixed);
    void send(int number);
    void read(Output& output);
    // Whether a signal has come; it is passed on.
    void forward();
    void reap();
    void reap_orphans();
    void ended(std::size_t rank, int status);
    void wait_for_something(int milliseconds);
    bool any_runs() const {
        return std::any_of(processes.begin(), processes.end(),
                           [](const RankProcess& process) { return process.running; });
    }
    bool any_output() const {
        return std::any_of(outputs.begin(), outputs.end(),
                           [](const Output& output) { return output.from >= 0; });
    }
};

Result<void> Ranks::State::start_one(const std::vector<std::string>& program,
                                     const std::vector<std::string>& environment, bool prefixed) {
    const int rank = static_cast<int>(processes.size());
    int output[2] = {-1, -1}, errors[2] = {-1, -1}, failed[2] = {-1, -1};
    const bool reads = rank == 0 && ::isatty(STDIN_FILENO) == 0;
    int input = reads ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    if (input < 0) input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const bool made = input >= 0 && ::pipe2(failed, O_CLOEXEC) == 0 &&
                      (!prefixed || (::pipe2(output, O_CLOEXEC) == 0 && ::pipe2(errors, O_CLOEXEC) == 0));
    int number = made ? 0 : errno;
    std::vector<char*> words = pointers(program), variables = pointers(environment);
    const Start start{input,          output[1],          errors[1],    failed[1],       ::getpid(),
                      signals_before, pipe_signal_before, words.data(), variables.data()};
    const pid_t id = made ? ::fork() : -1;
    if (id == 0) start.run();
    if (made && id < 0) number = errno;
    for (int* descriptor : {&input, &output[1], &errors[1], &failed[1]}) close_if_open(*descriptor);
    if (id > 0) {
        ::setpgid(id, id);  // whoever comes first: the group is there before a signal is sent to it
        processes.push_back({id, static_cast<int>(::syscall(SYS_pidfd_open, id, 0)), true});
        if (::read(failed[0], &number, sizeof number) != sizeof number)
            number = 0;  // closed by the program's start
    }
    close_if_open(failed[0]);
    for (const auto& [from, to] : {std::pair{output[0], STDOUT_FILENO}, {errors[0], STDERR_FILENO}})
        if (from >= 0) outputs.push_back({rank, from, to, {}});
    if (number != 0) return cannot_start(program.front(), number);
    return {};
}

void Ranks::State::send(int number) {
    for (const RankProcess& process : processes)
        if (process.running) ::kill(-process.id, number);
}

void Ranks::State::read(Output& output) {
    char block[1 << 16];
    const ssize_t got = ::read(output.from, block, sizeof block);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got > 0) output.rest.append(block, static_cast<std::size_t>(got));
    print_lines(output, got <= 0);
    if (got <= 0) close_if_open(output.from);
}

void Ranks::State::forward() {
    const sigset_t signals = forwarded_signals();
    const timespec at_once{};
    const int number = ::sigtimedwait(&signals, nullptr, &at_once);
    if (number > 0) send(number);
}

void Ranks::State::ended(std::size_t rank, int status) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 || terminating) return;
    terminating = true;
    kill_at = {};
    const std::string how =
        WIFEXITED(status) ? fmt::format("ended with exit code {}", code)
                          : fmt::format("was ended by signal {} ({})", code - 128, ::strsignal(code - 128));
    end.code = code;
    end.said = fmt::format("rank {} (process {}) {}", rank, processes[rank].id, how);
}

// Those that a signal ended are looked at first: of several that ended at once they are the cause.
void Ranks::State::reap() {
    std::vector<std::pair<std::size_t, int>> found;
    for (std::size_t rank = 0; rank < processes.size(); ++rank) {
        RankProcess& process = processes[rank];
        siginfo_t info{};
        const auto id = static_cast<id_t>(process.id);
        if (!process.running || ::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid != process.id)
            continue;
        // What a rank that failed left behind goes with it, as long as its number is still its own.
        const bool well = info.si_code == CLD_EXITED && info.si_status == 0;
        if (!well || terminating) ::kill(-process.id, SIGKILL);
        int status = 0;
        ::waitpid(process.id, &status, 0);
        process.running = false;
        close_if_open(process.ended);
        found.emplace_back(rank, status);
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
        return WIFSIGNALED(a.second) > WIFSIGNALED(b.second);
    });
    for (const auto& [rank, status] : found) ended(rank, status);
    reap_orphans();
}

void Ranks::State::reap_orphans() {
    for (;;) {
        siginfo_t info{};
        if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
        const bool rank = std::any_of(processes.begin(), processes.end(), [&](const RankProcess& process) {
            return process.running && process.id == info.si_pid;
        });
        if (rank) return;  // it ended meanwhile, and comes first
        ::waitpid(info.si_pid, nullptr, 0);
    }
}

void Ranks::State::wait_for_something(int milliseconds) {
    std::vector<pollfd> files;
    for (const Output& output : outputs)
        files.push_back({output.from, POLLIN, 0});  // negative ones are passed over
    for (const RankProcess& process : processes) {
        if (process.running && process.ended < 0) milliseconds = std::min(milliseconds, between_looks_ms);
        files.push_back({process.running ? process.ended : -1, POLLIN, 0});
    }
    ::poll(files.data(), files.size(), milliseconds);
    for (std::size_t i = 0; i < outputs.size(); ++i)
        if (files[i].revents != 0) read(outputs[i]);
}

Ranks::Ranks(std::unique_ptr<State> state) : state_(std::move(state)) {}
Ranks::Ranks(Ranks&&) noexcept = default;

Ranks::~Ranks() {
    if (!state_) return;
    const bool unfinished = state_->any_runs();
    state_->send(SIGKILL);
    for (RankProcess& process : state_->processes) {
        while (process.running && ::waitpid(process.id, nullptr, 0) < 0 && errno == EINTR) {
        }
        close_if_open(process.ended);
    }
    if (unfinished) kill_children();
    for (Output& output : state_->outputs) close_if_open(output.from);
    ::signal(SIGPIPE, state_->pipe_signal_before);
    ::sigprocmask(SIG_SETMASK, &state_->signals_before, nullptr);
}

Result<Ranks> Ranks::start(const std::vector<std::string>& program,
                           const std::vector<std::vector<std::string>>& environments, bool prefixed) {
    Ranks ranks(std::make_unique<State>());
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const sigset_t signals = forwarded_signals();
    ::sigprocmask(SIG_BLOCK, &signals, &ranks.state_->signals_before);
    // Where nobody reads the output any more the ranks go on.
    ranks.state_->pipe_signal_before = ::signal(SIGPIPE, SIG_IGN);
    for (const auto& environment : environments)
        SIDESTEP_CHECK(ranks.state_->start_one(program, environment, prefixed));
    return ranks;
}

JobEnd Ranks::run(std::chrono::milliseconds grace) {
    State& state = *state_;
    while (state.any_runs()) {
        state.wait_for_something(50);
        state.forward();
        const bool well = !state.terminating;
        state.reap();
        if (well && state.terminating) {
            if (state.any_runs()) state.end.said += "; the others were ended";
            state.kill_at = Clock::now() + grace;
            state.send(SIGTERM);
        }
        if (state.terminating && Clock::now() >= state.kill_at) state.send(SIGKILL);
    }
    if (state.terminating) kill_children();
    const auto until = Clock::now() + after_the_last;
    while (state.any_output() && Clock::now() < until) state.wait_for_something(10);
    for (Output& output : state.outputs) print_lines(output, true);
    return state.end;
}

Error become(const std::vector<std::string>& program, const std::vector<std::string>& environment) {
    ::execvpe(program.front().c_str(), pointers(program).data(), pointers(environment).data());
    return cannot_start(program.front(), errno);
}

int free_port() {
    int number = 0;
    int opened = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (opened >= 0 && ::bind(opened, any, size) == 0 && ::getsockname(opened, any, &size) == 0)
        number = ntohs(address.sin_port);
    close_if_open(opened);
    return number;
}

}  // namespace sidestep::cli
