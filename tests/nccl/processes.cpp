#include "tests/nccl/processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "tests/nccl/world.hpp"

extern char** environ;

namespace sidestep::nccl_test {
namespace {

void say(const std::string& text) {
    std::puts(text.c_str());
    std::fflush(stdout);
}

std::string unhex(const std::string& text) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < text.size(); i += 2)
        bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
    return bytes;
}

struct Rank {
    int rank;
    int ranks;
    ncclComm_t comm;
    Memory& memory;
    static constexpr std::size_t count = 50'000;

    ncclResult_t all_reduce() const {
        return ncclAllReduce(memory.data(), memory.data(), count, ncclFloat32, ncclSum, comm, nullptr);
    }
    void fill() const {
        const auto bytes = encode(ncclFloat32, std::vector<double>(count, rank + 1.0));
        std::memcpy(memory.data(), bytes.data(), bytes.size());
    }
    bool is_sum() const {
        const double expected = ranks * (ranks + 1) / 2.0;
        for (const double value : decode(ncclFloat32, memory.data(), count))
            if (value != expected) return false;
        return true;
    }
};

// Sums a few times; says "ok", or what was wrong.
int sum(const Rank& rank) {
    for (int turn = 0; turn < 5; ++turn) {
        rank.fill();
        if (rank.all_reduce() != ncclSuccess) return say(last_error()), 1;
        if (!rank.is_sum()) return say("wrong sum"), 1;
    }
    say("ok");
    return 0;
}

// Says "ready", sums until that fails, and says the numbers and the words of the failure.
int sum_until_it_fails(const Rank& rank) {
    ncclResult_t result = rank.all_reduce();
    say("ready");
    while (result == ncclSuccess) result = rank.all_reduce();
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(rank.comm, &state);
    say(fmt::format("{} {} {}", result, state, last_error(rank.comm)));
    return ncclCommAbort(rank.comm);
}

// The same, and then goes on with those that are left: rank 1 is the one that fails.
int shrink_when_it_fails(const Rank& rank) {
    ncclResult_t result = rank.all_reduce();
    say("ready");
    while (result == ncclSuccess) result = rank.all_reduce();
    int excluded[] = {1};
    ncclComm_t fewer = nullptr;
    if (ncclCommShrink(rank.comm, excluded, 1, &fewer, nullptr, NCCL_SHRINK_ABORT) != ncclSuccess)
        return say(last_error()), 1;
    const Rank again{rank.rank == 0 ? 0 : rank.rank - 1, rank.ranks - 1, fewer, rank.memory};
    const int wrong = sum(again);
    ncclCommDestroy(fewer);
    ncclCommAbort(rank.comm);
    return wrong;
}

// Of the program's own, made before the library's first call and so gone after the library's own exit
// handlers.
struct AtExit {
    ncclComm_t comm = nullptr;
    ~AtExit() {
        if (comm != nullptr && ncclCommDestroy(comm) != ncclSuccess) ::_exit(3);
    }
} at_exit;

// A byte from rank 0 to rank 1, and one from rank 1 to rank 0.
int hand_on(const Rank& rank) {
    ncclResult_t result = ncclSuccess;
    for (const int peer : {0, 1}) {
        if (result == ncclSuccess)
            result = ncclRecv(rank.memory.data(), 1, ncclInt8, peer, rank.comm, nullptr);
        if (result == ncclSuccess)
            result = ncclSend(rank.memory.data(), 1, ncclInt8, 1 - peer, rank.comm, nullptr);
    }
    if (ncclCommDestroy(rank.comm) != ncclSuccess) return 2;
    return result == ncclSuccess ? 0 : 1;
}

// Takes part once and then does nothing, for good.
int fall_silent(const Rank& rank) {
    rank.all_reduce();
    say("ready");
    for (;;) ::pause();
}

}  // namespace

int run_rank(const std::vector<std::string>& arguments) {
    const int rank = std::stoi(arguments.at(0));
    const int ranks = std::stoi(arguments.at(1));
    const std::string bytes = unhex(arguments.at(2));
    const std::string& task = arguments.at(3);
    ncclUniqueId id{};
    std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    Memory memory(rank, Rank::count * sizeof(float));
    ncclComm_t comm = nullptr;
    if (ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) return say(last_error()), 1;
    const Rank self{rank, ranks, comm, memory};
    if (task == "sum until it fails") return sum_until_it_fails(self);
    if (task == "shrink when it fails") return shrink_when_it_fails(self);
    if (task == "fall silent") return fall_silent(self);
    if (task == "hand on") return hand_on(self);
    const int wrong = sum(self);
    if (task == "sum and exit") {
        at_exit.comm = comm;
        std::exit(wrong);
    }
    return ncclCommDestroy(comm) == ncclSuccess ? wrong : 2;
}

RankProcess::RankProcess(int rank, int ranks, const std::string& id, const std::string& task) {
    int pipe[2] = {-1, -1};
    if (::pipe2(pipe, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
    std::vector<std::string> words = {"/proc/self/exe",      "--rank", std::to_string(rank),
                                      std::to_string(ranks), id,       task};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&process_, words[0].c_str(), &actions, nullptr, arguments.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    output_ = pipe[0];
}

RankProcess::~RankProcess() {
    kill();
    ::close(output_);
}

std::string RankProcess::line() {
    std::string text;
    for (;;) {
        pollfd entry{output_, POLLIN, 0};
        char next = 0;
        if (::poll(&entry, 1, 30'000) != 1 || ::read(output_, &next, 1) != 1) return "";
        if (next == '\n') return text;
        text += next;
    }
}

void RankProcess::kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
}

int RankProcess::ended() {
    // Its output closes when it ends.
    while (!line().empty()) continue;
    for (int i = 0; i < 3000; ++i) {
        int status = 0;
        if (::waitpid(process_, &status, WNOHANG) == process_) {
            process_ = -1;
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        }
        ::usleep(10'000);
    }
    return -1;
}

}  // namespace sidestep::nccl_test
