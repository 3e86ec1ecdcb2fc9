// Whether a card reads and writes memory of a GPU where it says that it does. Registering it succeeds on machines where
// bytes then go elsewhere: a switch that turns them around, a driver of another version.
#pragma once

#include <sidestep/buffer.hpp>

#include "backend/device_memory.hpp"
#include "backends/verbs/card.hpp"
#include "backends/verbs/memory.hpp"

namespace sidestep::backends::verbs {

constexpr Bytes device_trial_bytes = Bytes{256} << 10;

// Has the card write bytes nobody knew before into `scratch`, device_trial_bytes of the GPU's memory that are among
// `prepared`, and others out of it; the GPU's own engine tells what is there, and puts the others there. mismatch where other
// bytes came; timed_out, or what libibverbs says, where none did. The card touches neither end any more afterwards. Blocks.
Result<void> try_device(const Card& card, const PreparedMemory& prepared, backend::DmaBufs& gpus,
                        const Buffer& scratch);

}  // namespace sidestep::backends::verbs
