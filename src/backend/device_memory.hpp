// Memory of a GPU that a network card reads and writes by itself.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/result.hpp>

namespace sidestep::backend {

// Memory as the kernel's drivers hand it to each other.
struct DmaBuf {
    int descriptor = -1;  // belongs to `keeps`
    Bytes offset = 0;     // of the memory in it
    std::shared_ptr<const void> keeps{};
};

// Hands out memory of its GPUs as dma-bufs. A backend that does derives from this too: see dma_bufs_of(). Any thread.
class DmaBufs {
public:
    virtual ~DmaBufs() = default;
    // unsupported where the GPU or its driver has none, with the reason and what to do. May block.
    virtual Result<DmaBuf> dma_buf(const Buffer& memory) = 0;
    // From now on the GPU sees what a card has written to its memory and told of. Waits no longer than a write across PCIe
    // takes.
    virtual Result<void> see_writes(const Place& gpu) = 0;
    // Memory of the GPU to try a card out with, and bytes brought there, all that it holds, and back by the GPU's own engine.
    // May block.
    virtual Result<Allocation> scratch(const Place& gpu, Bytes bytes) = 0;
    virtual Result<void> copy_in(const Buffer& scratch, const void* from) = 0;
    virtual Result<void> copy_out(const Buffer& scratch, void* to) = 0;
};

// Null: that backend has no GPUs whose memory could be handed out.
template <typename Backend>
DmaBufs* dma_bufs_of(Backend& backend) {
    return dynamic_cast<DmaBufs*>(&backend);
}

// What an engine of the network did to reach memory of a GPU.
struct ReachedDevice {
    std::shared_ptr<const void> ready{};  // as long as it lives
    std::string words;                    // "by dma-buf and mlx5_3 (PIX): one switch from gpu:3"
    std::string_view over;                // "over RDMA"; lives as long as the program
};

}  // namespace sidestep::backend
