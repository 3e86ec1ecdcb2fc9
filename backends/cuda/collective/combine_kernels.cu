// The kernels of one element type, SIDESTEP_ELEMENT. Compiled once for each of the twelve, which keeps every
// run of the compiler short; each makes a module of its own, so that the names need not differ.
#include "backends/cuda/collective/coalesced.cuh"
#include "backends/cuda/collective/lamport.cuh"
#include "backends/cuda/collective/lines.cuh"
#include "backends/cuda/collective/packets.cuh"
#include "backends/cuda/collective/slices.cuh"

namespace sidestep::backends::cuda {
namespace {

constexpr Element element = Element::SIDESTEP_ELEMENT;

template <int group, int batch, bool carries>
__device__ void slices(const CollectiveTask& task, const Station& station) {
    using Work = Combining<element, group, batch, carries>;
    __shared__ Meeting meeting;
    Slices<Work>(task, station, meeting, Work(task, station.ranks), sizeof(Form<element>::Bits)).run();
}

}  // namespace

// For groups of up to four ranks, and for larger ones.
extern "C" __global__ void __launch_bounds__(max_data_threads + header_threads, 1)
    sidestep_packets_4(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    Packets<element, 4>(task, station).run();
}
extern "C" __global__ void __launch_bounds__(max_data_threads + header_threads, 1)
    sidestep_packets_16(const __grid_constant__ CollectiveTask task,
                        const __grid_constant__ Station station) {
    Packets<element, 8>(task, station).run();
}

extern "C" __global__ void __launch_bounds__(max_data_threads + header_threads, 1)
    sidestep_coalesced_4(const __grid_constant__ CollectiveTask task,
                         const __grid_constant__ Station station) {
    Coalesced<element, 4>(task, station).run();
}
extern "C" __global__ void __launch_bounds__(max_data_threads + header_threads, 1)
    sidestep_coalesced_16(const __grid_constant__ CollectiveTask task,
                          const __grid_constant__ Station station) {
    Coalesced<element, 8>(task, station).run();
}

// Of types that have it; kernels of others do nothing.
template <int group, bool plain>
__device__ void lamport(const CollectiveTask& task, const Station& station) {
    if constexpr (protocol::has_lamport(element)) Lamport<element, group, plain>(task, station).run();
}

extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_lamport_4(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    lamport<4, true>(task, station);
}
extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_lamport_16(const __grid_constant__ CollectiveTask task,
                        const __grid_constant__ Station station) {
    lamport<8, true>(task, station);
}
// Where not all ranks are sent the same bytes, or not whole, aligned units of them.
extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_some_lamport_4(const __grid_constant__ CollectiveTask task,
                            const __grid_constant__ Station station) {
    lamport<4, false>(task, station);
}
extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_some_lamport_16(const __grid_constant__ CollectiveTask task,
                             const __grid_constant__ Station station) {
    lamport<8, false>(task, station);
}

constexpr bool of_8_bits = sizeof(Form<element>::Bits) == 1;

extern "C" __global__ void __launch_bounds__(line_threads(of_8_bits, 4) + header_threads, 1)
    sidestep_lines_4(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    Lines<element, 4, LinesOf::all>(task, station).run();
}
extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_lines_16(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    Lines<element, 8, LinesOf::all>(task, station).run();
}

// Of slices that not all ranks give to, or take.
extern "C" __global__ void __launch_bounds__(line_threads(of_8_bits, 4) + header_threads, 1)
    sidestep_some_lines_4(const __grid_constant__ CollectiveTask task,
                          const __grid_constant__ Station station) {
    Lines<element, 4, LinesOf::some>(task, station).run();
}
extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_some_lines_16(const __grid_constant__ CollectiveTask task,
                           const __grid_constant__ Station station) {
    Lines<element, 8, LinesOf::some>(task, station).run();
}

extern "C" __global__ void __launch_bounds__(max_data_threads, 1)
    sidestep_slices_4(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    slices<4, 4, false>(task, station);
}
extern "C" __global__ void __launch_bounds__(max_data_threads, 1)
    sidestep_slices_16(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    slices<8, 2, true>(task, station);
}

}  // namespace sidestep::backends::cuda
