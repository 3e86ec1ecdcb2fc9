#!/usr/bin/env bash
# tools/try_packages.sh SUITE FILE...: makes a bare system by debootstrap (bookworm, jammy, noble), installs a wheel or Debian
# packages there, and runs the commands of docs/start.md. As root, with debootstrap, which alone uses the network (MIRROR:
# another archive than its own). A wheel has to be that of the system's Python: cp311, cp310, cp312.
set -euo pipefail
suite=$1
shift
mapfile -t files < <(realpath "$@")
cd "$(dirname "$0")/.."

case $suite in
bookworm) components=main keyring=debian like=bookworm ;;
jammy | noble) components=main,universe keyring=ubuntu like=jammy ;;
*) echo "$0: the suites are bookworm, jammy, noble, not '$suite'" >&2 && exit 2 ;;
esac
keys=/usr/share/keyrings/$keyring-archive-keyring.gpg
trust=(--keyring="$keys")
if [ ! -e "$keys" ]; then
    echo "$0: $keys is not here: what comes from the archive is not checked, and runs as root in a chroot" >&2
    trust=(--no-check-gpg)
fi

root=$(mktemp -d /tmp/sidestep-"$suite"-XXXXXX)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --components="$components" --include=python3-venv \
    "${trust[@]}" "$suite" "$root" "${MIRROR:-}" \
    /usr/share/debootstrap/scripts/"$like" >"$root/debootstrap.log" || {
    tail -n 3 "$root/debootstrap.log" >&2
    exit 1
}

mkdir -p "$root/try/docs"
cp "${files[@]}" "$root/try/"
cp tests/docs/pages.py "$root/try/"
cp docs/start.md "$root/try/docs/"
cat >"$root/try/run.sh" <<'END'
set -eu
cd /try
mount -t proc proc /proc
mount -t devtmpfs dev /dev
grep PRETTY_NAME /etc/os-release
if ls ./*.whl >/dev/null 2>&1; then
    python3 -m venv /try/environment
    /try/environment/bin/pip install --quiet --no-index --disable-pip-version-check ./*.whl
    command=/try/environment/bin/sidestep
    /try/environment/bin/python -c 'import sidestep; print(sidestep.__version__, sidestep.Context("dgx-h100"))'
else
    dpkg --install ./*.deb
    command=/usr/bin/sidestep
fi
SIDESTEP_BINARY=$command SIDESTEP_SOURCE_DIR=/try python3 -B - <<'PYTHON'
import sys, pages
page = (pages.SOURCE / "docs/start.md").read_text(encoding="utf-8")
problems, skipped = pages.check(page)
shown = sum(len(block.commands()) for block in pages.blocks_of(page) if block.is_run() and not block.reason)
print(f"docs/start.md: {shown} commands, {len(problems)} print something else; left out: {'; '.join(skipped)}")
sys.exit("\n".join(problems) or 0)
PYTHON
END
unshare --mount --pid --fork chroot "$root" bash /try/run.sh
