// All ranks of a group, in one process: what the tests of this folder run tasks on.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/collective_task.hpp"
#include "protocol/copy_exchange.hpp"
#include "rig.hpp"
#include "values.hpp"

namespace sidestep::collective_seat {

class Crew {
public:
    // Every rank has `heap_bytes` of memory, which all have in slot 1.
    explicit Crew(unsigned ranks, std::uint64_t deadline_ns = 30'000'000'000,
                  std::size_t heap_bytes = 8 << 20);
    // Seats first: their tasks use the memory.
    ~Crew();

    // The one of a program for a number of ranks, so that tasks of many tests follow each other in one arena.
    static Crew& of(unsigned ranks);

    unsigned ranks() const { return ranks_; }
    Rig& rig() { return *rig_; }
    backend::Seat& seat(unsigned rank) { return *seats_[rank]; }
    bool ready() const { return seats_.size() == ranks_; }
    // Ranks on the GPU that has most of them.
    unsigned max_on_a_gpu() const;

    // An address in a rank's memory, and its token.
    char* at(unsigned rank, std::size_t offset) const;
    protocol::Token token(unsigned offset) const { return {1, offset}; }
    std::size_t heap_bytes() const { return heap_bytes_; }

    void write(unsigned rank, std::size_t offset, const Values& values);
    Values read(unsigned rank, std::size_t offset, std::size_t bytes);
    void fill(unsigned rank, std::size_t offset, std::size_t bytes, char byte);
    bool holds(unsigned rank, std::size_t offset, std::span<const char> values);

    void start(unsigned rank, const protocol::CollectiveTask& task);
    // tasks[r] on rank r, and waits for all.
    void run(const std::vector<protocol::CollectiveTask>& tasks);
    // Until all have ended; a fault, or more than two minutes, is a failure.
    void finish();
    // Until one rank has nothing more to do, however it ended. False: it took more than two minutes.
    bool wait_idle(unsigned rank);

private:
    const unsigned ranks_;
    const std::size_t heap_bytes_;
    std::vector<protocol::CopyRow> rows_;
    std::unique_ptr<Rig> rig_;
    std::vector<Allocation> heaps_;
    std::vector<std::unique_ptr<backend::Seat>> seats_;
};

std::string to_string(const protocol::FaultRecord& fault);

}  // namespace sidestep::collective_seat
