// Legacy IPC of CUDA by the driver alone: the yardstick for the import of another process's memory.
#pragma once

#include <string>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::bench::raw {

// The driver's handle of memory of cuMemAlloc, for other processes, as hexadecimal text.
Result<std::string> ipc_handle(int gpu, const void* address);

// Seconds of cuIpcOpenMemHandle for each handle of another process; closed again after all are timed.
Result<std::vector<double>> open_seconds(int gpu, const std::vector<std::string>& handles);

}  // namespace sidestep::bench::raw
