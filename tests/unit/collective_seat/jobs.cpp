#include "jobs.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::collective_seat {
namespace {

using protocol::Block;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Shape;
using protocol::Slice;
using protocol::Token;

constexpr std::size_t guard = 64;
constexpr char guard_byte = 0x5a;
constexpr char poison = static_cast<char>(0xc3);
constexpr std::size_t scale_at = 16;  // of the heap

std::uint16_t everybody(unsigned ranks) {
    return static_cast<std::uint16_t>((1u << ranks) - 1);
}

void set_reduction(Crew& crew, CollectiveTask& task, const Reduced& reduced, unsigned rank,
                   std::uint64_t count) {
    task.element = reduced.element;
    task.combine = reduced.combine;
    task.signature = signature_of(reduced, count);
    if (reduced.scales.empty()) return;
    const std::uint64_t code = scale_code(reduced.element, reduced.scales[rank]);
    if (reduced.device_scale) {
        crew.rig().write(crew.at(rank, scale_at), &code, sizeof(code));
        task.device_scale = crew.at(rank, scale_at);
    } else {
        task.scale = code;
    }
}

// Of tasks that combine nothing, which count in bytes.
std::uint32_t moving_signature(unsigned kind, std::uint64_t bytes) {
    return 1 + kind + static_cast<std::uint32_t>(bytes * 16);
}

// As calls for a part of the elements each, where their packets fit into a lane.
void cut_into_calls(CollectiveTask& task, std::uint64_t count, unsigned size, unsigned ranks) {
    const bool fits = (count * size + 16) / 8 * 8 + 16 <= protocol::ArenaLayout{ranks}.packet_payload();
    std::uint64_t done = 0;
    std::uint64_t unit = 0;
    for (const std::uint64_t end : {fits ? count / 3 : count, fits ? count / 2 : count, count}) {
        if (end == done && !(end == count && task.calls == 0)) continue;
        task.set_call(task.calls, {done * size, done * size, (end - done) * size, unit});
        unit = task.call(task.calls++).end();
        done = end;
    }
}

// Of copies: where each block belongs. One that lies in the way of what is still to be sent goes through the
// arena.
void invite(std::vector<CollectiveTask>& tasks) {
    const auto n = static_cast<unsigned>(tasks.size());
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask& task = tasks[rank];
        if (task.recv_token.slot == Token::unreachable || protocol::send_overlaps_recv(task, rank, n))
            continue;
        for (unsigned r = 0; r < n; ++r)
            task.from_tokens[r] = {task.recv_token.slot, task.recv_token.offset + task.from[r].offset};
    }
}

}  // namespace

const char* name_of(Shape shape) {
    static constexpr const char* shapes[] = {
        "packets", "lamport", "packets in two phases", "lines", "slices", "pushed slices", "pairs",
        "copies",  "ring",    "coalesced packets"};
    return shapes[static_cast<unsigned>(shape)];
}

std::string to_string(const How& how) {
    return fmt::format("{}{}, {} blocks, shifts {} {}{}", name_of(how.shape), how.staged ? " (staged)" : "",
                       how.blocks, how.send_shift, how.recv_shift, how.in_place ? ", in place" : "");
}

bool has_room(const Crew& crew, const How& how) {
    const unsigned together = crew.max_on_a_gpu();
    if (together <= 1) return true;
    bool room = how.shape != Shape::copies || together <= 4;
    if (how.shape == Shape::ring) room = 2 * how.blocks * together <= 128;
    if (how.shape == Shape::pushed_slices) room = how.blocks * together <= 512;
    if (!room) fmt::print("left out, with {} ranks on one GPU: {}\n", together, to_string(how));
    return room;
}

std::vector<How> all_ways(protocol::Element element) {
    std::vector<How> ways = {
        {.shape = Shape::packets}, {.shape = Shape::packets_two_phase},      {.shape = Shape::lines},
        {.shape = Shape::slices},  {.shape = Shape::slices, .staged = true}, {.shape = Shape::pushed_slices},
        {.shape = Shape::ring}};
    if (protocol::has_lamport(element)) ways.insert(ways.begin() + 1, {.shape = Shape::lamport});
    ways.push_back({.shape = Shape::coalesced});
    return ways;
}

std::uint32_t signature_of(const Reduced& reduced, std::uint64_t count) {
    return 0x80000000u + static_cast<std::uint32_t>(count) * 256 +
           static_cast<std::uint32_t>(reduced.element) * 8 + static_cast<std::uint32_t>(reduced.combine);
}

void Buffers::fill(const std::vector<Values>& inputs, std::uint64_t output_bytes,
                   const std::vector<std::uint64_t>& places) {
    inputs_ = &inputs;
    for (unsigned rank = 0; rank < crew_.ranks(); ++rank) {
        const std::size_t input = inputs[rank].size();
        Range send{256 + how_.send_shift, input};
        Range recv{(crew_.heap_bytes() / 2 + how_.recv_shift), output_bytes};
        if (how_.in_place && input >= output_bytes) recv = {send.offset + places[rank], output_bytes};
        if (how_.in_place && input < output_bytes) {
            recv.offset = 256 + how_.send_shift;
            send.offset = recv.offset + places[rank];
        }
        put_guards(rank, recv);
        crew_.fill(rank, recv.offset, output_bytes, poison);
        if (!how_.in_place || input >= output_bytes) put_guards(rank, send);
        crew_.write(rank, send.offset, inputs[rank]);
        sends_.push_back(send);
        recvs_.push_back(recv);
    }
}

CollectiveTask Buffers::task(unsigned rank) const {
    CollectiveTask task;
    task.shape = how_.shape;
    task.blocks = static_cast<std::uint8_t>(how_.blocks);
    task.send = crew_.at(rank, sends_[rank].offset);
    task.recv = crew_.at(rank, recvs_[rank].offset);
    if (!how_.staged) {
        task.send_token = {1, sends_[rank].offset};
        task.recv_token = {1, recvs_[rank].offset};
    }
    return task;
}

void Buffers::put_guards(unsigned rank, const Range& range) {
    crew_.fill(rank, range.offset - guard, guard, guard_byte);
    crew_.fill(rank, range.offset + range.bytes, guard, guard_byte);
}

void Buffers::check_guards(unsigned rank, const Range& range) {
    const Values expected(guard, guard_byte);
    EXPECT_EQ(crew_.read(rank, range.offset - guard, guard), expected) << "before, rank " << rank;
    EXPECT_EQ(crew_.read(rank, range.offset + range.bytes, guard), expected) << "behind, rank " << rank;
}

std::vector<Values> Buffers::outputs() {
    std::vector<Values> all;
    for (unsigned rank = 0; rank < crew_.ranks(); ++rank) {
        const Range& send = sends_[rank];
        const Range& recv = recvs_[rank];
        check_guards(rank, how_.in_place && send.bytes > recv.bytes ? send : recv);
        if (!how_.in_place) {
            check_guards(rank, send);
            EXPECT_TRUE(crew_.holds(rank, send.offset, (*inputs_)[rank])) << "send buffer of rank " << rank;
        }
        all.push_back(crew_.read(rank, recv.offset, recv.bytes));
    }
    return all;
}

Slice even_slice(std::uint64_t count, unsigned rank, unsigned ranks) {
    Slice slice;
    slice.source_offset = slice.target_offset = count * rank / ranks;
    slice.count = count * (rank + 1) / ranks - slice.source_offset;
    slice.sources = slice.targets = everybody(ranks);
    return slice;
}

std::vector<Values> all_reduce(Crew& crew, const How& how, const Reduced& reduced,
                               const std::vector<Values>& inputs) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = inputs[0].size();
    const std::uint64_t count = bytes / protocol::size_of(reduced.element);
    Buffers buffers(crew, how);
    buffers.fill(inputs, bytes, std::vector<std::uint64_t>(n, 0));
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask task = buffers.task(rank);
        set_reduction(crew, task, reduced, rank, count);
        for (unsigned r = 0; r < n; ++r) {
            task.to[r] = task.from[r] = {0, bytes};
            task.slices[r] = even_slice(count, r, n);
        }
        if (how.shape == Shape::coalesced) cut_into_calls(task, count, protocol::size_of(reduced.element), n);
        tasks.push_back(task);
    }
    crew.run(tasks);
    return buffers.outputs();
}

std::vector<Values> reduce_scatter(Crew& crew, const How& how, const Reduced& reduced,
                                   const std::vector<Values>& inputs) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = inputs[0].size() / n;
    const std::uint64_t count = bytes / protocol::size_of(reduced.element);
    Buffers buffers(crew, how);
    std::vector<std::uint64_t> places;
    for (unsigned rank = 0; rank < n; ++rank) places.push_back(rank * bytes);
    buffers.fill(inputs, bytes, places);
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask task = buffers.task(rank);
        set_reduction(crew, task, reduced, rank, count);
        for (unsigned r = 0; r < n; ++r) {
            task.to[r] = {r * bytes, bytes};
            task.from[r] = {0, bytes};
            task.slices[r] = {count, r * count, 0, everybody(n), static_cast<std::uint16_t>(1u << r)};
        }
        tasks.push_back(task);
    }
    crew.run(tasks);
    return buffers.outputs();
}

std::vector<Values> all_gather(Crew& crew, const How& how, const std::vector<Values>& inputs) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = inputs[0].size();
    Buffers buffers(crew, how);
    std::vector<std::uint64_t> places;
    for (unsigned rank = 0; rank < n; ++rank) places.push_back(rank * bytes);
    buffers.fill(inputs, bytes * n, places);
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask task = buffers.task(rank);
        task.signature = moving_signature(1, bytes);
        for (unsigned r = 0; r < n; ++r) {
            task.to[r] = {0, bytes};
            task.from[r] = {r * bytes, bytes};
            const auto only = static_cast<std::uint16_t>(1u << r);
            task.slices[r] = {bytes, 0, r * bytes, only, everybody(n)};
        }
        // The rank's own part by the local copy, as a rank may do it without telling the others.
        if (rank % 2 == 1) {
            task.local_to = rank * bytes;
            task.local_bytes = bytes;
            task.slices[rank].targets &= static_cast<std::uint16_t>(~(1u << rank));
        }
        tasks.push_back(task);
    }
    invite(tasks);
    crew.run(tasks);
    return buffers.outputs();
}

std::vector<Values> broadcast(Crew& crew, const How& how, unsigned root, const Values& input) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = input.size();
    Buffers buffers(crew, how);
    std::vector<Values> inputs(n, Values(bytes, 0));
    inputs[root] = input;
    buffers.fill(inputs, bytes, std::vector<std::uint64_t>(n, 0));
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask task = buffers.task(rank);
        task.signature = moving_signature(2, bytes);
        if (rank != root) task.send_token = {};  // of a rank that need not have a send buffer
        task.from[root] = {0, bytes};
        for (unsigned r = 0; r < n; ++r) {
            if (rank == root) task.to[r] = {0, bytes};
            task.slices[r] = even_slice(bytes, r, n);
            task.slices[r].sources = static_cast<std::uint16_t>(1u << root);
        }
        tasks.push_back(task);
    }
    invite(tasks);
    crew.run(tasks);
    return buffers.outputs();
}

Values reduce(Crew& crew, const How& how, const Reduced& reduced, unsigned root,
              const std::vector<Values>& inputs) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = inputs[0].size();
    const std::uint64_t count = bytes / protocol::size_of(reduced.element);
    Buffers buffers(crew, how);
    buffers.fill(inputs, bytes, std::vector<std::uint64_t>(n, 0));
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask task = buffers.task(rank);
        set_reduction(crew, task, reduced, rank, count);
        if (rank != root) task.recv_token = {};
        task.to[root] = {0, bytes};
        for (unsigned r = 0; r < n; ++r) {
            if (rank == root) task.from[r] = {0, bytes};
            task.slices[r] = even_slice(count, r, n);
            task.slices[r].targets = static_cast<std::uint16_t>(1u << root);
        }
        tasks.push_back(task);
    }
    crew.run(tasks);
    return buffers.outputs()[root];
}

std::vector<Values> all_to_all(Crew& crew, const How& how, const std::vector<Values>& inputs) {
    const unsigned n = crew.ranks();
    const std::uint64_t bytes = inputs[0].size() / n;
    Buffers buffers(crew, how);
    buffers.fill(inputs, bytes * n, std::vector<std::uint64_t>(n, 0));
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < n; ++rank) {
        CollectiveTask task = buffers.task(rank);
        task.signature = moving_signature(3, bytes);
        for (unsigned r = 0; r < n; ++r) task.to[r] = task.from[r] = {r * bytes, bytes};
        tasks.push_back(task);
    }
    invite(tasks);
    crew.run(tasks);
    return buffers.outputs();
}

}  // namespace sidestep::collective_seat
