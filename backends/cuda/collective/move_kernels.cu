// The kernels of tasks that combine nothing: lines and slices that are copied, and pairs.
#include "backends/cuda/collective/lines.cuh"
#include "backends/cuda/collective/pairs.cuh"
#include "backends/cuda/collective/slices.cuh"

namespace sidestep::backends::cuda {

extern "C" __global__ void __launch_bounds__(max_data_threads, 1)
    sidestep_slices_copy(const __grid_constant__ CollectiveTask task,
                         const __grid_constant__ Station station) {
    __shared__ Meeting meeting;
    Slices<Copying>(task, station, meeting, Copying(), protocol::size_of(task.element)).run();
}

extern "C" __global__ void __launch_bounds__(line_threads(false, 4) + header_threads, 1)
    sidestep_lines_copy_4(const __grid_constant__ CollectiveTask task,
                          const __grid_constant__ Station station) {
    Lines<Element::u8, 4, LinesOf::one_source>(task, station).run();
}
extern "C" __global__ void __launch_bounds__(max_line_threads + header_threads, 1)
    sidestep_lines_copy_16(const __grid_constant__ CollectiveTask task,
                           const __grid_constant__ Station station) {
    Lines<Element::u8, 8, LinesOf::one_source>(task, station).run();
}

extern "C" __global__ void __launch_bounds__(max_pair_threads, 2)
    sidestep_pairs(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    __shared__ Ends ends;
    Pair<false>(task, station, ends).run();
}
// Among more than ranks_of_few_pairs: with fewer registers, so that three share a multiprocessor.
extern "C" __global__ void __launch_bounds__(max_pair_threads, 3)
    sidestep_many_pairs(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    __shared__ Ends ends;
    Pair<false>(task, station, ends).run();
}

// Where all blocks for others are eager.
extern "C" __global__ void __launch_bounds__(max_data_threads + header_threads, 1)
    sidestep_eager_pairs(const __grid_constant__ CollectiveTask task,
                         const __grid_constant__ Station station) {
    __shared__ Ends ends;
    Pair<true>(task, station, ends).run();
}

}  // namespace sidestep::backends::cuda
