#!/usr/bin/env bash
# run-gpu-tests.sh [GOOGLETEST FLAG...]: runs the bundle's programs labelled gpu, shows what they print, and
# closes with the skipped tests' reasons, the failed tests, and "N passed, N failed, N skipped".
#
# Ends with 0 only if something passed and nothing failed: a machine without a GPU proves nothing.
set -euo pipefail

tests=$(cd "$(dirname "$0")" && pwd)/bin/tests
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Ranks that share a GPU share its queues too, and a stream that waits holds up others in its queue (docs/collectives.md).
if [ "$( (nvidia-smi -L 2>/dev/null || true) | wc -l)" -eq 1 ]; then
    export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
fi

broken=()
while read -r program labels; do
    case ",$labels," in *,gpu,*) ;; *) continue ;; esac
    printf '== %s\n' "$program" | tee -a "$log"
    code=0
    "$tests/$program" "$@" 2>&1 | tee -a "$log" || code=${PIPESTATUS[0]}
    # 1 is what GoogleTest ends with after a failed test; anything else, such as a signal, ended the program.
    [ "$code" -le 1 ] || broken+=("$program ended with code $code")
done <"$tests/programs.txt"

count() { grep -cE "$1" "$log" || true; }
passed=$(count '^\[       OK \] ')
skipped=$(count '^\[  SKIPPED \] .* \([0-9]+ ms\)$')
failed=$(count '^\[  FAILED  \] .* \([0-9]+ ms\)$')
started=$(count '^\[ RUN      \] ')
# A test that was started and never ended took its program with it.
lost=$((started - passed - skipped - failed))
[ "$lost" -ge 0 ] || lost=0

printf '\n'
# GoogleTest prints the reason on the line after "file:line: Skipped".
grep -A1 -E ': Skipped$' "$log" | grep -vE ': Skipped$|^--$' | sort | uniq -c | sed 's/^ */skipped, /' || true
grep -E '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$log" || true
for text in "${broken[@]}"; do printf 'failed: %s\n' "$text"; done
failed=$((failed + lost))
if [ "$failed" -eq 0 ] && [ ${#broken[@]} -gt 0 ]; then failed=${#broken[@]}; fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
