#!/usr/bin/env bash
# Builds the fuzz targets with clang, in build/fuzz, and runs each for some seconds.
#
#     tests/fuzz/run.sh [SECONDS [TARGET...]]           30 seconds and every target
#     tests/fuzz/run.sh --built PROGRAM TARGET SECONDS  runs one that is built
#     tests/fuzz/run.sh --build                         builds every target and runs none
#
# What is found lies in build/fuzz/found/TARGET afterwards. Exit code 1 if anything was, 3 where there is no
# clang with libFuzzer. The corpus in the tree is read only; new inputs are gathered in build/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${SIDESTEP_FUZZ_BUILD:-build/fuzz}

run() {  # PROGRAM TARGET SECONDS
    local found=$build/found/$2 gathered=$build/corpus/$2 recorded=()
    case $2 in
        nccl_xml) recorded=(tests/recorded/nccl) ;;
        topology_json) recorded=(tests/recorded) ;;
    esac
    mkdir -p "$found" "$gathered"
    echo "fuzz: $2 for $3 s"
    # One input may take 10 s and 2 GiB: far more than any of these needs.
    if ! "$1" -max_total_time="$3" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
        -dict="tests/fuzz/$2.dict" -artifact_prefix="$found/" \
        "$gathered" "tests/fuzz/corpus/$2" "${recorded[@]}" >"$build/$2.log" 2>&1; then
        tail -n 60 "$build/$2.log"
        grep -A2 -m1 '^broken promise' "$build/$2.log" || true
        # Of a machine that keeps no files, the output is all there is.
        find "$found" -type f -size -64k -exec sh -c \
            'echo "fuzz: base64 -d <<END | gunzip >$(basename "$1")"; gzip -9 <"$1" | base64; echo END' sh {} \;
        echo "fuzz: $2 FAILED; the input lies in $found, the log in $build/$2.log"
        return 1
    fi
    grep -E '^(Done|stat::number_of_executed_units|stat::average_exec_per_sec)|DONE' "$build/$2.log"
}

if [ "${1:-}" = --built ]; then
    run "$2" "$3" "$4"
    exit
fi

seconds=${1:-30}
shift $(($# > 0 ? 1 : 0))
targets=${*:-nccl_xml topology_json safetensors shard_index gguf wire}

clang=
for name in ${CLANGXX:-clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14}; do
    command -v "$name" >/dev/null || continue
    if echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
        "$name" -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - >/dev/null 2>&1; then
        clang=$name
        break
    fi
done
if [ -z "$clang" ]; then
    echo "fuzz: NOT RUN: there is no clang++ with libFuzzer here (Debian, Ubuntu: clang and libclang-rt-dev)" >&2
    exit 3
fi

# -O1: the sanitizers' own advice. The fuzzer is not linked here, only what it needs to see is compiled in.
mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Fuzz -DCMAKE_CXX_COMPILER="$clang" \
    -DCMAKE_C_COMPILER="${clang/clang++/clang}" -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=fuzzer-no-link" \
    -DSIDESTEP_SANITIZE=address,undefined -DSIDESTEP_FUZZ=ON -DSIDESTEP_CUDA=OFF >"$build.log" 2>&1 ||
    { cat "$build.log"; exit 1; }
programs=()
for target in $targets; do programs+=("fuzz_$target"); done
ninja -C "$build" ${SIDESTEP_FUZZ_JOBS:+-j "$SIDESTEP_FUZZ_JOBS"} "${programs[@]}" >"$build/ninja.log" 2>&1 ||
    { tail -n 60 "$build/ninja.log"; exit 1; }

if [ "$seconds" = --build ]; then exit; fi

failed=0
for target in $targets; do
    run "$(find "$build" -name "fuzz_$target" -type f -perm -u+x)" "$target" "$seconds" || failed=1
done
exit $failed
