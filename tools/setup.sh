#!/usr/bin/env bash
# tools/setup.sh [fuzz|tests|packages|browser|launchers|docs|s3]
# Installs the packages that building and testing needs, on Debian and Ubuntu. Does nothing, quickly, when
# they are all there. Elsewhere it says which tools and headers are missing.
set -euo pipefail

# The second column is what to look for where there is no dpkg: a command, or a header. The last three are for the Python
# package, which CMake leaves out, saying why, where they are missing.
packages="
g++              c++
cmake            cmake
ninja-build      ninja
ccache           ccache
pkg-config       pkg-config
git              git
xz-utils         xz
iproute2         ip
python3          python3
libfmt-dev       fmt/format.h
libcli11-dev     CLI/CLI.hpp
nlohmann-json3-dev nlohmann/json.hpp
liburing-dev     liburing.h
libxxhash-dev    xxhash.h
libexpat1-dev    expat.h
libssl-dev       openssl/ssl.h
libcurl4-openssl-dev curl/curl.h
libibverbs-dev   infiniband/verbs.h
libgtest-dev     gtest/gtest.h
python3-dev      python3
pybind11-dev     python3
python3-numpy    python3
"

# `tools/setup.sh fuzz` also installs what tests/fuzz/run.sh needs.
if [ "${1:-}" = fuzz ]; then
    packages+="clang clang++
libclang-rt-dev clang++
"
fi

# `tools/setup.sh tests` installs what only tests need: shells that complete, a strict reader of man pages, what makes the file
# systems in which saves are killed, and a server that knows addresses of nodes.
if [ "${1:-}" = tests ]; then
    packages="zsh zsh
fish fish
mandoc mandoc
xfsprogs mkfs.xfs
btrfs-progs mkfs.btrfs
bindfs bindfs
etcd-server etcd
"
fi

# `tools/setup.sh packages` installs what `make wheel` and `make deb` need.
if [ "${1:-}" = packages ]; then
    packages="python3-venv python3
dpkg-dev dpkg-shlibdeps
file file
"
fi

# `tools/setup.sh browser` installs what opens pages in tests/page and tools/screenshot.py, and nothing else. Any
# Chromium will do; of Debian's two packages this is the smaller one.
if [ "${1:-}" = browser ]; then
    for browser in chromium chromium-headless-shell google-chrome; do
        if command -v "$browser" >/dev/null; then exit 0; fi
    done
    packages="chromium-headless-shell chromium-headless-shell
"
fi

# `tools/setup.sh launchers` installs Open MPI's mpirun (40 MB) for tests/multiprocess/launchers.py, and nothing else.
if [ "${1:-}" = launchers ]; then
    packages="openmpi-bin mpirun
"
fi

# `tools/setup.sh docs` installs what `make docs` needs into build/docs-venv, and into the system what makes such a folder.
# `tools/setup.sh s3` installs the S3 server of tests/cli/test_s3.py into build/s3-venv in the same way.
if [ "${1:-}" = docs ] || [ "${1:-}" = s3 ]; then
    packages="python3-venv python3
"
fi

os_release=${SIDESTEP_OS_RELEASE:-/etc/os-release}  # another file in the tests of this script
os_id=$(. "$os_release" && echo "${ID:-} ${ID_LIKE:-} ${VERSION_ID:-}")

# C++20 needs GCC 12; Ubuntu 22.04 has it beside its default of 11. tools/compiler.sh chooses it.
case $os_id in
    # Its clang brings the fuzzer's runtime itself.
    ubuntu*" 22.04") packages=${packages/g++ /g++-12 }; packages=${packages/libclang-rt-dev clang++/} ;;
esac
case ${1:-}" $os_id" in
    browser*ubuntu*)
        echo "setup: Ubuntu has Chromium as a snap only: the tests that open a page will be skipped" >&2
        exit 1
        ;;
esac

is_there() {
    case $1 in
        *.h | *.hpp) echo "#include <$1>" | "$(tools/compiler.sh)" -x c++ -E - >/dev/null 2>&1 ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

cd "$(dirname "$0")/.."
missing=()
while read -r package tool; do
    [ -n "$package" ] || continue
    if command -v dpkg-query >/dev/null; then
        state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || missing+=("$package")
    elif ! is_there "$tool"; then
        missing+=("$tool")
    fi
done <<<"$packages"

# FOLDER MODULE PACKAGE...: a Python environment in build/ that has the module.
make_venv() {
    ! "build/$1/bin/python3" -c "import $2" 2>/dev/null || return 0
    echo "setup: installing ${*:3} into build/$1"
    python3 -m venv --clear "build/$1"
    "build/$1/bin/python3" -m pip install --quiet --disable-pip-version-check "${@:3}"
}
make_venvs() {
    case ${1:-} in
        docs) make_venv docs-venv material "mkdocs-material>=9.5,<10" ;;
        # Not moto[server], which brings what all other services need, three times as much.
        s3) make_venv s3-venv moto.server "moto[s3]>=5,<6" flask flask-cors ;;
    esac
}

if [ ${#missing[@]} -eq 0 ]; then
    make_venvs "$@"
    exit 0
fi

case $os_id in
    *debian* | *ubuntu*) ;;
    *)
        echo "setup: this is neither Debian nor Ubuntu. Install what provides: ${missing[*]}" >&2
        exit 1
        ;;
esac
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: not root, and no sudo. Have an administrator run: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null
make_venvs "$@"
