#!/usr/bin/env bash
# tools/syntax_only.sh COMPILER ARG... -o OBJECT ...: has the compiler check a file, which takes less than compiling it, and
# leaves a line in place of an object. ccache runs it in place of the compiler; it keeps no empty file.
set -euo pipefail
"$@" -fsyntax-only
while [ "$1" != -o ]; do shift; done
echo >"$2"
