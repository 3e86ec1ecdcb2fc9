// What a second process of the collective tests does: one rank of one group, told line by line, or several
// ranks, told at the same time: "join ...|join ...".
//
//   join ID RANK RANKS MS    joins, with that timeout
//   time ID RANK RANKS MS    the same; answers how many microseconds that took
//   zero_sm                  groups that are joined from now on have this policy, and run what copy engines can
//   descriptors N            the process may open N more from now on
//   user N                   the process is that user's from now on
//   ps FOLDER                the groups there, as "1 groups, rank 0 lives, rank 1 is dead", and who waits
//   run NAME COUNT TYPE [OP] [ROOT]
//                            enqueues all_reduce, all_gather, broadcast, reduce or barrier: f32 or i32
//   pair send|recv COUNT R   enqueues a send to rank R, or a recv from it: i32
//   checked COUNT ROUNDS     some operations, waited for and checked, several times on the same memory
//   others COUNT ROUNDS OFF  every operation, and those in place, on memory that begins OFF bytes off
//   floats COUNT OFF         reductions of floats: "ok" and a hash of all bits
//   again COUNT              memory that is attached, freed and given again, with operations between
//   attach COUNT N, detach, free N   N pieces of memory: made and attached, all detached, N freed
//   mapped                   how many pieces of shared memory this process has mapped
//   spin [COUNT]             answers "ok", then runs all_reduces until something ends that
//   wait, status, abort WHY, leave, exit
//   fork [leave]             a child that ends by exit(), having left before or not; "ok" once it has ended
//   split COLOR KEY, shrink R [R]   goes on with the new group
//   way COUNT                how an all_reduce of i32 goes, and why
//   explain COUNT            where the memory of the last `checked` is
#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sidestep/group.hpp>

#include "tests/multiprocess/collective_checks.hpp"
#include "tests/multiprocess/collective_launched.hpp"
#include "tests/multiprocess/process.hpp"

namespace sidestep::multiprocess {
namespace {

std::string text_of(const Result<void>& result) {
    return result ? "ok" : result.error().to_string();
}

std::string limit_descriptors(std::istringstream& words) {
    unsigned more = 0;
    words >> more;
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "no limit is known";
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "the limit cannot be lifted";
    const int lowest = ::dup(0);
    ::close(lowest);
    limit.rlim_cur = static_cast<rlim_t>(lowest) + more;
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? "ok" : "the limit cannot be set";
}

std::string list_groups(std::istringstream& words) {
    std::string folder;
    words >> folder;
    const auto groups = running_groups(folder);
    if (!groups) return groups.error().to_string();
    std::string text = fmt::format("{} groups", groups->size());
    for (const RunningGroup& group : *groups) {
        for (const RunningRank& rank : group.ranks)
            text += fmt::format(", rank {} {}", rank.rank,
                                rank.left    ? "left"
                                : rank.alive ? "lives"
                                             : "is dead");
        if (!group.stuck.empty()) text += "; " + group.stuck;
    }
    return text;
}

class Rank {
public:
    explicit Rank(const Context& context) : context_(context) {}

    std::string obey(const std::string& line) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb.empty()) return "";
        if (verb == "join") return join(words);
        if (verb == "time") return time(words);
        if (verb == "descriptors") return limit_descriptors(words);
        if (verb == "ps") return list_groups(words);
        if (verb == "user") {
            uid_t user = 0;
            words >> user;
            return ::setgroups(0, nullptr) == 0 && ::setuid(user) == 0 ? "ok" : "not permitted";
        }
        if (verb == "zero_sm") {
            options_.policy = GroupPolicy::zero_sm;
            return "ok";
        }
        if (!group_) return "no group";
        if (verb == "run") return enqueue(words);
        if (verb == "pair") return pair(words);
        if (verb == "wait") return text_of(group_->wait());
        if (verb == "status") return text_of(group_->status());
        if (verb == "split" || verb == "shrink") return derive(verb, words);
        if (verb == "abort") {
            std::string why;
            std::getline(words >> std::ws, why);
            group_->abort(why);
            return "ok";
        }
        if (verb == "detach") return detach();
        if (verb == "mapped") return mapped();
        if (verb == "exit") std::exit(0);
        if (verb == "fork") return fork(words);
        if (verb == "leave") {
            memory_.clear();
            group_.reset();
            return "ok";
        }
        std::size_t count = 0;
        int rounds = 1;
        std::size_t offset = 0;
        words >> count >> rounds >> offset;
        if (verb == "checked") return checks().some(count, rounds, options_.policy != GroupPolicy::zero_sm);
        if (verb == "others") return checks().others(count, rounds, offset);
        if (verb == "floats") return checks().floats(count, static_cast<std::size_t>(rounds));
        if (verb == "again") return again(count);
        if (verb == "attach") return attach(count, rounds);
        if (verb == "free") {
            memory_.resize(memory_.size() - std::min(count, memory_.size()));
            return "ok";
        }
        if (verb == "spin") return spin(count > 0 ? count : 30'000);
        if (verb == "way") return way(count);
        if (verb == "explain") return explain(count);
        return "what is " + verb;
    }

private:
    std::string join(std::istringstream& words) {
        std::string id;
        Seating seating;
        int timeout = 0;
        words >> id >> seating.rank >> seating.ranks >> timeout;
        seating.id = GroupId::parse(id).value();
        seating.place = Place::gpu(seating.rank);
        options_.timeout = std::chrono::milliseconds(timeout);
        options_.name = "drill";
        auto group = Group::join(context_, seating, options_);
        if (!group) return group.error().to_string();
        group_.emplace(std::move(*group));
        return "ok";
    }

    std::string time(std::istringstream& words) {
        const auto start = std::chrono::steady_clock::now();
        const std::string joined = join(words);
        const auto took = std::chrono::steady_clock::now() - start;
        return joined == "ok" ? std::to_string(took / std::chrono::microseconds(1)) : joined;
    }

    std::string derive(const std::string& verb, std::istringstream& words) {
        int first = 0;
        int second = 0;
        words >> first >> second;
        if (verb == "split") {
            auto made = group_->split(first, second, options_);
            if (!made) return made.error().to_string();
            if (!*made) return "none";
            parents_.push_back(std::move(*group_));
            group_.emplace(std::move(**made));
        } else {
            std::vector<int> excluded{first};
            if (second != 0) excluded.push_back(second);
            auto made = group_->shrink(excluded, options_);
            if (!made) return made.error().to_string();
            parents_.push_back(std::move(*group_));
            group_.emplace(std::move(*made));
        }
        return fmt::format("rank {} of {}", group_->rank(), group_->ranks());
    }

    std::string fork(std::istringstream& words) {
        std::string way;
        words >> way;
        const pid_t child = ::fork();
        if (child == 0) {
            if (way == "leave") group_.reset();
            std::exit(0);
        }
        return child > 0 && ::waitpid(child, nullptr, 0) == child ? "ok" : "no child";
    }

    int* memory(std::size_t count) {
        auto made = context_.allocate(group_->place(), std::max<std::size_t>(count, 1) * sizeof(int));
        if (!made) return nullptr;
        memory_.push_back(std::move(*made));
        return static_cast<int*>(memory_.back().address());
    }

    std::string enqueue(std::istringstream& words) {
        std::string name;
        std::string type;
        std::size_t count = 0;
        std::string how;
        int root = 0;
        words >> name >> count >> type >> how >> root;
        const Dtype dtype = type == "f32" ? Dtype::f32 : Dtype::i32;
        Reduction reduction;
        for (const ReduceOp op : {ReduceOp::prod, ReduceOp::min, ReduceOp::max})
            if (how == to_string(op)) reduction = Reduction::of(op);
        int* send = memory(count);
        int* recv = memory(count * static_cast<std::size_t>(group_->ranks()));
        if (name == "all_reduce") return text_of(group_->all_reduce(send, recv, count, dtype, reduction));
        if (name == "reduce") return text_of(group_->reduce(send, recv, count, dtype, reduction, root));
        if (name == "all_gather") return text_of(group_->all_gather(send, recv, count, dtype));
        if (name == "broadcast") return text_of(group_->broadcast(send, recv, count, dtype, root));
        return text_of(group_->barrier());
    }

    std::string pair(std::istringstream& words) {
        std::string way;
        std::size_t count = 0;
        int peer = 0;
        words >> way >> count >> peer;
        int* data = memory(count);
        return text_of(way == "send" ? group_->send(data, count, Dtype::i32, peer)
                                     : group_->recv(data, count, Dtype::i32, peer));
    }

    Checks checks() {
        return {*group_, [this](std::size_t bytes) {
                    return reinterpret_cast<char*>(memory((bytes + sizeof(int) - 1) / sizeof(int)));
                }};
    }

    std::string again(std::size_t count) {
        for (int round = 0; round < 4; ++round) {
            memory_.clear();
            const std::size_t all = count * static_cast<std::size_t>(group_->ranks());
            int* send = memory(all);
            int* recv = memory(all);
            if (round % 2 == 0)
                if (auto state = group_->attach(memory_.back().buffer()); !state)
                    return state.error().to_string();
            const std::string state =
                checks().gathered(reinterpret_cast<char*>(send), reinterpret_cast<char*>(recv), count);
            if (state != "ok") return fmt::format("turn {}: {}", round, state);
        }
        return "ok";
    }

    std::string attach(std::size_t count, int pieces) {
        Result<void> state;
        for (int i = 0; i < pieces && state; ++i) {
            memory(count);
            state = group_->attach(memory_.back().buffer());
        }
        return text_of(state);
    }

    std::string detach() {
        Result<void> state;
        for (const Allocation& piece : memory_) do {
                if (state || state.error().code == ErrorCode::timed_out)
                    state = group_->detach(piece.buffer());
            } while (!state && state.error().code == ErrorCode::timed_out);
        return text_of(state);
    }

    static std::string mapped() {
        std::ifstream maps("/proc/self/maps");
        int count = 0;
        for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != std::string::npos;
        return std::to_string(count);
    }

    std::string spin(std::size_t count) {
        int* send = memory(count);
        int* recv = memory(count);
        for (;;) {
            auto state = group_->all_reduce(send, recv, count, Dtype::i32);
            if (state) state = group_->wait();
            if (!state) return state.error().to_string();
        }
    }

    std::string way(std::size_t count) {
        const auto plan = group_->explain(Collective::all_reduce, count, Dtype::i32);
        return plan ? fmt::format("{}: {}", plan->algorithm, plan->reason) : plan.error().to_string();
    }

    std::string explain(std::size_t count) {
        const auto plan = group_->explain(Collective::all_gather, count, Dtype::i32, {},
                                          memory_[memory_.size() - 2].address(), memory_.back().address());
        return plan ? plan->memory : plan.error().to_string();
    }

    const Context& context_;
    GroupOptions options_;
    std::vector<Allocation> memory_;
    std::vector<Group> parents_;
    std::optional<Group> group_;
};

// The ranks of this process, which share one Context.
class Process {
public:
    explicit Process(Context context) : context_(std::move(context)) {}

    // "A|B": the first rank of this process is told A and the next one B, at the same time; answers alike.
    std::string obey(const std::string& line) {
        if (line.starts_with("spin")) std::cout << "ok" << std::endl;
        std::vector<std::string> parts(1);
        for (const char c : line) {
            if (c == '|')
                parts.emplace_back();
            else
                parts.back() += c;
        }
        while (ranks_.size() < parts.size()) ranks_.push_back(std::make_unique<Rank>(context_));
        std::vector<std::future<std::string>> others;
        for (std::size_t i = 1; i < parts.size(); ++i)
            others.push_back(std::async(std::launch::async, [&, i] { return ranks_[i]->obey(parts[i]); }));
        std::string answers = ranks_[0]->obey(parts[0]);
        for (auto& other : others) answers += "|" + other.get();
        return answers;
    }

private:
    Context context_;
    std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

}  // namespace sidestep::multiprocess

int main(int count, char** arguments) {
    if (count == 3 && std::string(arguments[1]) == "--peer")
        return sidestep::multiprocess::serve<sidestep::multiprocess::Process>(arguments[2]);
    if (count == 4 && std::string(arguments[1]) == "--launched")
        return sidestep::multiprocess::run_launched(arguments[2], std::atoi(arguments[3]));
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
