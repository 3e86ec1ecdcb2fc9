#include "collective/touched.hpp"

#include <algorithm>

namespace sidestep::collective {

Touched touched_by_others(const protocol::CollectiveTask& task, unsigned rank, unsigned ranks) {
    Touched touched;
    if (task.device_recv_offsets != nullptr) return {0, Touched::unknown};
    const Bytes size = protocol::size_of(task.element);
    for (unsigned r = 0; r < ranks; ++r) {
        const protocol::Slice& slice = task.slices[r];
        if (slice.count > 0 && (slice.sources >> rank & 1) != 0)
            touched.send = std::max(touched.send, (slice.source_offset + slice.count) * size);
        if (slice.count > 0 && (slice.targets >> rank & 1) != 0)
            touched.recv = std::max(touched.recv, (slice.target_offset + slice.count) * size);
        if (r != rank && task.from[r].bytes > 0)
            touched.recv = std::max(touched.recv, task.from[r].offset + task.from[r].bytes);
    }
    return touched;
}

}  // namespace sidestep::collective
