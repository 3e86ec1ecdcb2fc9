// Runs the tasks of all ranks on plain bytes, one after the other in one thread, without flags, packets or
// arenas: what a task means, in the fewest words. Elements are looked at as unsigned integers of their size.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/collective_task.hpp"

namespace sidestep::collective::test {

using Bytes = std::vector<std::uint8_t>;

// The memory of one rank: a send and a receive buffer with guard bytes around them, which may overlap.
struct RankMemory {
    Bytes bytes;
    std::vector<std::uint8_t> writes;  // how often each byte was written
    std::uint64_t send_begin = 0, send_bytes = 0;
    std::uint64_t recv_begin = 0, recv_bytes = 0;

    std::uint8_t* send() { return bytes.data() + send_begin; }
    std::uint8_t* recv() { return bytes.data() + recv_begin; }
    Bytes sent() const { return part(send_begin, send_bytes); }
    Bytes received() const { return part(recv_begin, recv_bytes); }
    Bytes part(std::uint64_t begin, std::uint64_t count) const;
};

// Ranks act in ascending or descending order where a shape leaves the order open; staged: slices go through
// an arena, where each rank copies by its own table alone.
enum class Order { ascending, descending, staged };

// tasks[r][k] is task k of rank r. Test failures name what a task did wrong: bytes outside of buffers, blocks
// on whose size two ranks disagree, packets larger than their lane.
void run(std::vector<RankMemory>& ranks, const std::vector<std::vector<protocol::CollectiveTask>>& tasks,
         Order order);

// Elements of `size` bytes combined in order, so that a source left out, taken twice or out of turn shows:
// 31 * a + b.
Bytes combined(const std::vector<Bytes>& sources, unsigned size);

}  // namespace sidestep::collective::test
