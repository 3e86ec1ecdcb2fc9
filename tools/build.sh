#!/usr/bin/env bash
# tools/build.sh PRESET JOBS TARGET...: configures build/PRESET and builds the targets. SIDESTEP_GPU_ARCHITECTURES: the GPUs
# that kernels are compiled for, as CMake's option of that name; unset: auto.
set -euo pipefail

preset=$1
jobs=$2
shift 2
cd "$(dirname "$0")/.."
# The choice of the compiler belongs to the first configuration; CMake keeps it from then on.
if [ ! -f "build/$preset/CMakeCache.txt" ]; then
    CXX=$(tools/compiler.sh)
    matching_c=${CXX/clang++/clang}
    export CXX CC="${CC:-${matching_c/g++/gcc}}"
fi
cmake --preset "$preset" --log-level=WARNING "-DSIDESTEP_GPU_ARCHITECTURES=${SIDESTEP_GPU_ARCHITECTURES:-auto}"
cmake --build "build/$preset" --parallel "$jobs" --target "$@"
