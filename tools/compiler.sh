#!/usr/bin/env bash
# Prints the C++ compiler to build with: $CXX if set, else g++ where it is 12 or newer, else g++-12.
set -euo pipefail

if [ -n "${CXX:-}" ]; then
    echo "$CXX"
elif command -v g++ >/dev/null && [ "$(g++ -dumpversion | cut -d. -f1)" -ge 12 ]; then
    echo g++
elif command -v g++-12 >/dev/null; then
    echo g++-12
else
    echo "compiler: g++ 12 or newer was not found: run tools/setup.sh, or set CXX" >&2
    exit 1
fi
