// What the engines are expected to reach. The planner prices routes with these.
#pragma once

namespace sidestep::backends::host::figures {

// One thread's copy between buffers that fit no cache, and what a machine's memory gives to all of
// them. Measured with bench/ on two 2026 hosts (EPYC of the Zen 5 kind; 5th generation Xeon): 9 to 14
// GB/s a thread, 110 GB/s with 16. The lower figure stands.
inline constexpr double memcpy_gb_per_s_per_thread = 9;
inline constexpr double memcpy_gb_per_s_ceiling = 110;
inline constexpr double memcpy_latency_us = 0.1;

// The rest is for emulated GPUs: shares of the links' rates that a real machine reaches. Measured with
// nvbandwidth 0.8 on four NVIDIA H200 behind NVSwitch (18 links of 26.5625 GB/s a GPU) and PCIe gen5 x16
// (63.015 GB/s after line coding), driver 580.159.04.
inline constexpr double nvlink_copy_engine = 396.0 / 478.1;
inline constexpr double nvlink_kernel = 376.0 / 478.1;
inline constexpr double pcie_copy_engine = 55.5 / 63.015;
// Inside one GPU, every byte counted once.
inline constexpr double local_copy_gb_per_s = 2093;
// From the call to the first byte, links left out.
inline constexpr double copy_engine_latency_us = 2.2;
inline constexpr double kernel_latency_us = 2.0;

}  // namespace sidestep::backends::host::figures
