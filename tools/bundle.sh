#!/usr/bin/env bash
# tools/bundle.sh LIST ARCHIVE [MAX_BYTES]: packs the programs of LIST into ARCHIVE (.tar.xz), to be unpacked and run on
# another Linux host. A line of LIST is "FILE FOLDER LABELS": the folder in the archive, and the labels of a
# test program ("-" for others). Fails if a program needs more than the C library, or the archive grows.
set -euo pipefail

list=$1
archive=$2
max_bytes=${3:-$((40 * 1024 * 1024))}
tools=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$archive" .tar.xz)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

programs=()
mkdir -p "$stage/$name/bin/tests"
while read -r file folder labels; do
    mkdir -p "$stage/$name/$folder"
    target=$stage/$name/$folder/$(basename "$file")
    strip -o "$target" "$file"
    programs+=("$target")
    [ "$labels" = - ] || printf '%s %s\n' "$(basename "$file")" "$labels" >>"$stage/$name/bin/tests/programs.txt"
done <"$list"
"$tools/check_portable.py" "${programs[@]}"
cp "$tools/run_gpu_tests.sh" "$stage/$name/run-gpu-tests.sh"
cp "$tools/../LICENSE" "$stage/$name/"
# The programs are alike for the most part: a dictionary that reaches from one to the next makes a quarter of what gzip would.
tar --create --directory "$stage" --sort=name --owner=0 --group=0 --numeric-owner "$name" |
    xz --lzma2=preset=1,dict=96MiB >"$archive.new"
bytes=$(stat --format=%s "$archive.new")
if [ "$bytes" -gt "$max_bytes" ]; then
    rm "$archive.new"
    echo "bundle: $archive would have $bytes bytes, $max_bytes are allowed" >&2
    exit 1
fi
mv "$archive.new" "$archive"
echo "bundle: $archive, $bytes bytes, ${#programs[@]} programs"
