// Arenas in host memory, for groups in which some GPUs do not reach each other: pages that processes share,
// locked and mapped in each of them for all of its GPUs.
#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

// Of backend::Exported: what goes with it is a descriptor of shared pages.
inline constexpr std::string_view host_arena_scheme = "cuda-host-arena";

struct HostArena {
    Allocation memory;
    std::shared_ptr<const backend::Exported> exported;  // keeps the memory too
};

// Zeroed, of `bytes` or somewhat more. Unlocking it, once nobody holds it any more, may wait for what runs on
// the GPUs, as cuMemFreeHost does. May block.
Result<HostArena> make_host_arena(Gpu& gpu, Bytes bytes);

// What make_host_arena() exported in another process.
Result<Allocation> open_host_arena(Gpu& gpu, const backend::Exported& exported);

// ErrorCode::unsupported where the GPU sees locked host memory at another address than the host does.
Result<void> check_seen_alike(Gpu& gpu, void* address);

}  // namespace sidestep::backends::cuda
