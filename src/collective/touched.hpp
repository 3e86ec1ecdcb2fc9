// How far other ranks read and write the buffers of a rank.
#pragma once

#include <sidestep/units.hpp>
#include "protocol/collective_task.hpp"

namespace sidestep::collective {

// From the first byte of either buffer to the last one that others touch.
struct Touched {
    static constexpr Bytes unknown = ~Bytes{0};  // the counts lie in GPU memory

    Bytes send = 0;
    Bytes recv = 0;
};

// Of tasks that post tokens: slices, pushed slices, pairs and copies.
Touched touched_by_others(const protocol::CollectiveTask& task, unsigned rank, unsigned ranks);

}  // namespace sidestep::collective
