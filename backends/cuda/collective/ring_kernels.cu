// The kernels of rings: one for each type that is combined, and one for what is only moved.
#include "backends/cuda/collective/ring.cuh"

namespace sidestep::backends::cuda {
namespace {

template <Element element>
__device__ void add_up(const CollectiveTask& task, const Station& station) {
    constexpr unsigned size = sizeof(typename Form<element>::Bits);
    uint64_t scale = 0;
    if (task.combine == Combine::scaled_sum)
        scale =
            task.device_scale ? load_up_to_8(static_cast<const char*>(task.device_scale), size) : task.scale;
    using Work = AddingUp<element>;
    Ring<Work>(task, station, Work(task, station.rank, station.ranks, scale), size).run();
}

}  // namespace

#define SIDESTEP_RING(element)                                                                  \
    extern "C" __global__ void __launch_bounds__(max_data_threads, 1) sidestep_ring_##element(  \
        const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) { \
        add_up<Element::element>(task, station);                                                \
    }
SIDESTEP_RING(i8)
SIDESTEP_RING(u8)
SIDESTEP_RING(i32)
SIDESTEP_RING(u32)
SIDESTEP_RING(i64)
SIDESTEP_RING(u64)
SIDESTEP_RING(f16)
SIDESTEP_RING(f32)
SIDESTEP_RING(f64)
SIDESTEP_RING(bf16)
SIDESTEP_RING(f8_e4m3)
SIDESTEP_RING(f8_e5m2)
#undef SIDESTEP_RING

extern "C" __global__ void __launch_bounds__(max_data_threads, 1)
    sidestep_ring_move(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    Ring<MovingOn>(task, station, MovingOn(), 1).run();
}

}  // namespace sidestep::backends::cuda
