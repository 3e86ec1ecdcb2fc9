// What the engines are expected to reach. The planner prices routes with these.
#pragma once

namespace sidestep::backends::host::figures {

// One thread's copy between buffers that fit no cache, and what a machine's memory gives to all of
// them. Measured on a Xeon of the 5th generation with 16 processors: 42 GB/s with 4 threads, 66 with 8, 94
// with 16; an EPYC of the Zen 5 kind with 2 processors: 21. So much for all, but no more than the ceiling.
inline constexpr double memcpy_gb_per_s_per_thread = 10;
inline constexpr double memcpy_gb_per_s_ceiling = 94;
inline constexpr double memcpy_latency_us = 0.1;

// The rest is for emulated GPUs, as measured with nvbandwidth 0.8 on four NVIDIA H200 behind NVSwitch, driver
// 580.159.04. A kernel's share of what a copy engine reaches over NVLink:
inline constexpr double nvlink_kernel = 376.0 / 396.0;
// Inside one GPU, every byte counted once.
inline constexpr double local_copy_gb_per_s = 2093;
// From the call to the first byte, links left out.
inline constexpr double copy_engine_latency_us = 2.2;
inline constexpr double kernel_latency_us = 2.0;

}  // namespace sidestep::backends::host::figures
