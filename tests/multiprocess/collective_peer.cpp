// What a second process of the collective tests does: one rank of one group, told line by line.
//
//   join ID RANK RANKS MS    joins, with that timeout
//   time ID RANK RANKS MS    the same; answers how many microseconds that took
//   zero_sm                  groups that are joined from now on have this policy, and run what copy engines can
//   run NAME COUNT TYPE      enqueues all_reduce, all_gather, broadcast (from rank 0) or barrier: f32 or i32
//   pair send|recv COUNT R   enqueues a send to rank R, or a recv from it: i32
//   checked COUNT ROUNDS     every operation, waited for and checked, several times on the same memory
//   again COUNT              memory that is attached, freed and given again, with operations between
//   spin [COUNT]             answers "ok", then runs all_reduces until something ends that
//   wait, status, abort WHY, leave, exit
//   split COLOR KEY, shrink R   goes on with the new group
//   way COUNT                how an all_reduce of i32 goes, and why
//   explain COUNT            where the memory of the last `checked` is
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sidestep/group.hpp>

#include "tests/multiprocess/collective_launched.hpp"
#include "tests/multiprocess/process.hpp"

namespace sidestep::multiprocess {
namespace {

int value(int rank, std::size_t i) {
    return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101) - 50;
}

std::string text_of(const Result<void>& result) {
    return result ? "ok" : result.error().to_string();
}

class Rank {
public:
    explicit Rank(Context context) : context_(std::move(context)) {}

    std::string obey(const std::string& line) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb == "join") return join(words);
        if (verb == "time") return time(words);
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
        if (verb == "exit") std::exit(0);
        if (verb == "leave") {
            memory_.clear();
            group_.reset();
            return "ok";
        }
        std::size_t count = 0;
        int rounds = 1;
        words >> count >> rounds;
        if (verb == "checked") return checked(count, rounds);
        if (verb == "again") return again(count);
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
            auto made = group_->shrink({first}, options_);
            if (!made) return made.error().to_string();
            parents_.push_back(std::move(*group_));
            group_.emplace(std::move(*made));
        }
        return fmt::format("rank {} of {}", group_->rank(), group_->ranks());
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
        words >> name >> count >> type;
        const Dtype dtype = type == "f32" ? Dtype::f32 : Dtype::i32;
        int* send = memory(count);
        int* recv = memory(count * static_cast<std::size_t>(group_->ranks()));
        if (name == "all_reduce") return text_of(group_->all_reduce(send, recv, count, dtype));
        if (name == "all_gather") return text_of(group_->all_gather(send, recv, count, dtype));
        if (name == "broadcast") return text_of(group_->broadcast(send, recv, count, dtype, 0));
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

    // Waits, and compares `recv` with what it should be; poisons it again.
    template <typename Expected>
    std::string compare(const char* what, int* recv, std::size_t count, const Expected& expected) {
        if (auto state = group_->wait(); !state)
            return fmt::format("{}: {}", what, state.error().to_string());
        for (std::size_t i = 0; i < count; ++i) {
            if (recv[i] != expected(i))
                return fmt::format("{}: element {} is {}, not {}", what, i, recv[i], expected(i));
            recv[i] = -1;
        }
        return "";
    }

    std::string all_reduce(int* send, int* recv, std::size_t count) {
        if (auto state = group_->all_reduce(send, recv, count, Dtype::i32); !state)
            return state.error().to_string();
        return compare("all_reduce", recv, count, [n = group_->ranks()](std::size_t i) {
            int sum = 0;
            for (int r = 0; r < n; ++r) sum += value(r, i);
            return sum;
        });
    }

    std::string all_gather(int* send, int* recv, std::size_t count) {
        if (auto state = group_->all_gather(send, recv, count, Dtype::i32); !state)
            return state.error().to_string();
        return compare("all_gather", recv, count * static_cast<std::size_t>(group_->ranks()),
                       [count](std::size_t i) { return value(static_cast<int>(i / count), i % count); });
    }

    std::string all_to_all(int* send, int* recv, std::size_t count) {
        const auto own = static_cast<std::size_t>(group_->rank());
        if (auto state = group_->all_to_all(send, recv, count, Dtype::i32); !state)
            return state.error().to_string();
        return compare(
            "all_to_all", recv, count * static_cast<std::size_t>(group_->ranks()),
            [=](std::size_t i) { return value(static_cast<int>(i / count), own * count + i % count); });
    }

    std::string broadcast(int* send, int* recv, std::size_t count) {
        if (auto state = group_->broadcast(send, recv, count, Dtype::i32, 0); !state)
            return state.error().to_string();
        return compare("broadcast", recv, count, [](std::size_t i) { return value(0, i); });
    }

    std::string ring(int* send, int* recv, std::size_t count) {
        const int n = group_->ranks();
        const int from = (group_->rank() + n - 1) % n;
        group_->begin_pairs();
        (void)group_->send(send, count, Dtype::i32, (group_->rank() + 1) % n);
        (void)group_->recv(recv, count, Dtype::i32, from);
        if (auto state = group_->end_pairs(); !state) return state.error().to_string();
        return compare("send_recv", recv, count, [from](std::size_t i) { return value(from, i); });
    }

    std::string checked(std::size_t count, int rounds) {
        const std::size_t all = count * static_cast<std::size_t>(group_->ranks());
        int* send = memory(all);
        int* recv = memory(all);
        for (std::size_t i = 0; i < all; ++i) {
            send[i] = value(group_->rank(), i);
            recv[i] = -1;
        }
        using Part = std::string (Rank::*)(int*, int*, std::size_t);
        std::vector<Part> parts{&Rank::all_gather, &Rank::all_to_all, &Rank::broadcast};
        if (options_.policy != GroupPolicy::zero_sm)
            parts.insert(parts.end(), {&Rank::all_reduce, &Rank::ring});
        for (int round = 0; round < rounds; ++round)
            for (const Part part : parts)
                if (std::string wrong = (this->*part)(send, recv, count); !wrong.empty())
                    return fmt::format("round {}: {}", round, wrong);
        return "ok";
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
            for (std::size_t i = 0; i < all; ++i) {
                send[i] = value(group_->rank(), i);
                recv[i] = -1;
            }
            for (int i = 0; i < 3; ++i)
                if (std::string wrong = all_gather(send, recv, count); !wrong.empty())
                    return fmt::format("round {}: {}", round, wrong);
        }
        return "ok";
    }

    std::string spin(std::size_t count) {
        int* send = memory(count);
        int* recv = memory(count);
        std::cout << "ok" << std::endl;
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

    Context context_;
    GroupOptions options_;
    std::vector<Allocation> memory_;
    std::vector<Group> parents_;
    std::optional<Group> group_;
};

}  // namespace

}  // namespace sidestep::multiprocess

int main(int count, char** arguments) {
    if (count == 3 && std::string(arguments[1]) == "--peer")
        return sidestep::multiprocess::serve<sidestep::multiprocess::Rank>(arguments[2]);
    if (count == 4 && std::string(arguments[1]) == "--launched")
        return sidestep::multiprocess::run_launched(arguments[2], std::atoi(arguments[3]));
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
