#include "backends/cuda/collective/seats.hpp"

#include <cstring>

#include <fmt/format.h>

#include "backends/cuda/allocate.hpp"
#include "backends/cuda/collective/collective_seat.hpp"
#include "base/try.hpp"
#include "topology/numbers.hpp"

namespace sidestep::backends::cuda {

Result<void*> HostPages::take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
        SIDESTEP_TRY(Allocation page, allocate_pinned(gpus_, -1, bytes_a_page));
        for (std::size_t at = 0; at < bytes_a_page; at += bytes_each)
            free_.push_back(static_cast<char*>(page.address()) + at);
        pages_.push_back(std::move(page));
    }
    void* const words = free_.back();
    free_.pop_back();
    std::memset(words, 0, bytes_each);
    return words;
}

void HostPages::give_back(void* words) {
    std::lock_guard lock(mutex_);
    free_.push_back(words);
}

// Only over NVLink and its like GPUs have native atomics.
Seats::Seats(Gpus& all, Peers& between, std::mutex& of_grants, Ipc& shared, const Topology& topology)
    : gpus(all), peers(between), grants(of_grants), ipc(shared), pages(all) {
    const auto numbers = topology::numbers_of(topology, DeviceKind::gpu);
    for (const int gpu : numbers)
        for (const int other : numbers) {
            if (other == gpu) continue;
            const PeerAccess access = topology.peer_access(gpu, other);
            if (access.allowed && access.atomics) nvlinks_.emplace(gpu, other);
        }
}

Result<std::shared_ptr<const CollectiveKernels>> Seats::kernels_of(const Gpu& gpu) {
    std::lock_guard lock(mutex_);
    auto& kernels = kernels_[gpu.index()];
    if (!kernels) {
        SIDESTEP_TRY(kernels, CollectiveKernels::load(gpu.context()));
    }
    return kernels;
}

Result<std::unique_ptr<backend::Seat>> Seats::seat(const backend::SeatRequest& request) {
    if (!request.place.is_gpu())
        return Error{
            ErrorCode::unsupported, "only GPUs take part in collectives", request.place.to_string(), {}};
    if (request.ranks == 0 || request.ranks > protocol::max_ranks || request.rank >= request.ranks)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("rank {} of {} cannot be: a group has up to {} ranks", request.rank,
                                 request.ranks, protocol::max_ranks),
                     request.place.to_string(),
                     {}};
    SIDESTEP_TRY(Gpu * gpu, gpus.open(request.place.index()));
    SIDESTEP_TRY(auto kernels, kernels_of(*gpu));
    SIDESTEP_TRY(auto seat, CollectiveSeat::create(*this, *gpu, std::move(kernels), request));
    return std::unique_ptr<backend::Seat>(std::move(seat));
}

}  // namespace sidestep::backends::cuda
