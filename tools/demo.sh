#!/usr/bin/env bash
# tools/demo.sh COMMAND EXAMPLE_CHECKPOINT: moves real bytes on the model of a DGX H100, which every machine can emulate, and
# prints the paths; then writes a checkpoint of 512 MiB with the example and loads it on four GPUs, real ones where the
# machine has that many. Ends with 0 only if everything was verified.
set -euo pipefail

sidestep=$1
example=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

step() {
    printf '\n$ sidestep'
    printf ' %s' "$@"
    printf '\n'
    "$sidestep" "$@"
}

head -c 8388608 /dev/urandom >"$folder/weights.bin"
export SIDESTEP_MACHINE=dgx-h100

step topo
step route gpu:0 gpu:5
step copy "file:$folder/weights.bin" gpu:0 --verify --explain
step copy gpu:0 gpu:5 --size 64MiB --verify
step copy host gpu:3 --size 64MiB --verify

# The way back: what comes out of GPU memory is what the file holds.
step copy "file:$folder/weights.bin" "file:$folder/copy.bin" --verify
cmp "$folder/weights.bin" "$folder/copy.bin"

# A path that is asked for and not there is an error with its reason, not a slower copy.
printf '\n$ sidestep copy file:... gpu:0 --require direct    (has to fail)\n'
if "$sidestep" copy "file:$folder/weights.bin" gpu:0 --require direct; then
    echo "demo: a direct path from a file to an emulated GPU was not to be had" >&2
    exit 1
fi

# A checkpoint: saved from GPU memory, loaded on four GPUs, every byte read again and compared.
gpus=gpu:0,gpu:1,gpu:2,gpu:3
if SIDESTEP_MACHINE=live "$sidestep" route host gpu:3 >/dev/null 2>&1; then export SIDESTEP_MACHINE=live; fi
mkdir "$folder/checkpoint"
printf '\n$ example_checkpoint %s 512MiB\n' "$folder/checkpoint"
"$example" "$folder/checkpoint" 512MiB
step load "$folder/checkpoint" --to "$gpus" --verify
printf '\ndemo: all copies verified, and every tensor on every GPU\n'

command=$(realpath --relative-to=. "$sidestep")
cat <<EOF

The command is $command; \`make install\` puts it into /usr/local/bin. Three things to type next:
  $command topo                      this machine
  $command doctor                    is a path slow here, and why?
  $command --machine dgx-h100 topo   a machine with eight GPUs, emulated
EOF
