// Memory as a user of CUDA gets it, by hand through the driver, and bytes to tell whether a copy was right.
#pragma once

#include <vector>

#include <sidestep/allocation.hpp>
#include "tests/gpu/gpu_machine.hpp"

namespace sidestep::gpu_tests {

// The ways a user may have come by memory.
enum class Raw { device, pool, vmm, vmm_pieces, managed, host_alloc, host_registered, pageable };

const char* to_string(Raw raw);
bool on_gpu(Raw raw);
// What the library should call it.
MemoryKind kind_of(Raw raw);

// `bytes` bytes, of that GPU or (`gpu` is then used to pin it) of the host. vmm_pieces maps several
// physical allocations one behind the other, as growing segments do.
Allocation raw_memory(Raw raw, int gpu, Bytes bytes);

// Physical allocations of `unit` bytes one behind the other, as PyTorch's expandable segments. `exportable`: to other processes;
// `imported`: as another process gets them.
enum class Pieces { plain, exportable, imported };
Allocation map_pieces(int gpu, Bytes bytes, Bytes unit, Pieces pieces);

// Writes a pattern, different for each seed, into a buffer of any kind, bypassing the library.
void fill(const Buffer& buffer, unsigned seed);
// Sets every byte.
void clear(const Buffer& buffer, unsigned char value);
// Fails the test, naming the first difference, if the buffer does not hold the pattern.
void expect_pattern(const Buffer& buffer, unsigned seed);
// The same where every byte should be `value`.
void expect_value(const Buffer& buffer, unsigned char value);

// How many bytes were found as they should be, in all.
Bytes compared_bytes();

}  // namespace sidestep::gpu_tests
