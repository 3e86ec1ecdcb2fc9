// Tries a card out with memory of a GPU.
#pragma once

#include <sidestep/buffer.hpp>

#include "backend/device_trial.hpp"
#include "backends/verbs/card.hpp"
#include "backends/verbs/memory.hpp"

namespace sidestep::backends::verbs {

// backend::try_device() with `scratch` among `prepared`. timed_out, or what libibverbs says, where no bytes came. The card
// touches neither end any more afterwards.
Result<void> try_device(const Card& card, const PreparedMemory& prepared, backend::DmaBufs& gpus,
                        const Buffer& scratch);

}  // namespace sidestep::backends::verbs
