// Operations of one rank that are waited for and compared with what they should give.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/group.hpp>

namespace sidestep::multiprocess {

class Checks {
public:
    // Memory of the rank's GPU that stays, aligned; null: there is none left.
    using Allocate = std::function<char*(std::size_t bytes)>;
    Checks(Group& group, Allocate allocate) : group_(group), allocate_(std::move(allocate)) {}

    // Each answers "ok" or what went wrong; all ranks are told the same.

    // Five operations of i32, each from and to memory of its own, several times on the same; without
    // `combines` those that only move.
    std::string some(std::size_t count, int rounds, bool combines);
    // The others, and those that may be in place so, several times; all buffers begin `offset` bytes off
    // their alignment.
    std::string others(std::size_t count, int rounds, std::size_t offset);
    // The all_gather of some(), three times.
    std::string gathered(char* send, char* recv, std::size_t count);
    // Reductions of floats of which every order has another sum: f32 and f64 compared with the sum in the
    // order of ranks, and all_reduce, reduce, reduce_scatter and all_reduce in place with each other.
    // Answers the hash of all bits too, which is the same on every rank and every time.
    std::string floats(std::size_t count, std::size_t offset);

private:
    struct Part {
        const char* name;
        bool in_place;
        std::function<Result<void>(char* send, char* recv)> call;
        std::function<void(std::vector<int>& all)> expect;  // puts in what the operation gives
    };
    // The lists of an all_to_all_v of blocks of many sizes, which lie `count` elements apart.
    struct Lists {
        std::vector<std::uint64_t> sends, recvs, offsets;
    };
    Lists lists(std::size_t count) const;

    std::vector<Part> moving(std::size_t count);
    std::vector<Part> reducing(std::size_t count);
    std::vector<Part> listed(std::size_t count);
    std::vector<Part> in_place(std::size_t count);
    std::vector<Part> rooted(std::size_t count);
    std::vector<Part> rooted_in_place(std::size_t count);
    std::string run(const std::vector<Part>& parts, char* send, char* recv, std::size_t count, int rounds);
    std::string run_one(const Part& part, const std::vector<int>& wanted, char* send, char* recv);
    template <typename T>
    std::string floats_of(Dtype dtype, std::size_t count, std::size_t offset, std::uint64_t& hash);

    int sum(std::size_t i) const;
    int max(std::size_t i) const;
    int ranks() const { return ranks_; }
    int rank() const { return rank_; }
    int root() const { return 1 % ranks(); }
    std::size_t all(std::size_t count) const { return count * static_cast<std::size_t>(ranks()); }
    std::size_t own(std::size_t count) const { return count * static_cast<std::size_t>(rank()); }

    Group& group_;
    const int ranks_ = group_.ranks(), rank_ = group_.rank();
    const Allocate allocate_;
};

}  // namespace sidestep::multiprocess
