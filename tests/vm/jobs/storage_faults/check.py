"""What a copy says, and what it leaves behind, when a drive cannot read or write one sector, is full, or is mounted
read-only; and that ordinary copies over the same kind of drive arrive whole."""

import hashlib
import json
import os
import pathlib
import re
import struct
import subprocess

import drives
from checks import Checks

MIB = 1 << 20
BAD = 8192 * drives.SECTOR           # the byte of the drive that faulty_drives.machine names
SIZE = 6 * MIB
SIDESTEP = os.environ["SIDESTEP_BIN"]


def sidestep(*arguments, **environment):
    done = subprocess.run([SIDESTEP, *arguments], capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode < 0 or done.returncode > 128:
        print(f"ended by a signal: {arguments}: {done.returncode}")
    return done


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def bad_byte(path):
    """The offset in the file that lies on the bad sector; None where the file does not."""
    for extent in drives.extents(path):
        if extent.physical <= BAD < extent.physical + extent.length:
            return extent.logical + BAD - extent.physical
    return None


def check_range(checks, what, done, path, bad):
    """It failed as a device fails, and the error names the file and a range with the bad byte in it."""
    print(f"{what}: {done.stderr.strip().splitlines()[:1]}")
    checks.same(f"{what}: exit code", done.returncode, 1)
    match = re.search(r"cannot (?:read|write) (\d+) bytes of (\S+) at offset (\d+)", done.stderr)
    checks.same(f"{what}: file", match and match[2], str(path))
    inside = match and int(match[3]) <= bad < int(match[3]) + int(match[1])
    checks.same(f"{what}: the bad byte {bad} is in the range", bool(inside), True)


def check_folder(checks, what, folder, names):
    there = sorted(path.name for path in pathlib.Path(folder).iterdir() if path.name != "lost+found")
    checks.same(f"{what}: files in {folder}", there, sorted(names))


def safetensors(path, size):
    """One tensor that fills the file to `size` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + os.urandom(size))


def has_load():
    return bool(re.search(r"^\s+load\s", sidestep("--help").stdout, re.MULTILINE))


def check_reads(checks, sound):
    drives.mount_ext4(drives.by_serial("bad-reads"), "/bad", "-O", "^has_journal")
    source = pathlib.Path("/bad/model.safetensors")
    safetensors(source, SIZE)
    bad = bad_byte(source)
    checks.same("the source lies on the bad sector", bad is not None, True)
    for io, extra in (("uring", []), ("uring", ["--direct-io"]), ("threads", [])):
        drives.drop_caches()
        done = sidestep("copy", f"file:{source}", "host", *extra, SIDESTEP_FILE_IO=io)
        check_range(checks, f"read by {io} {extra}", done, source, bad)
    drives.drop_caches()
    done = sidestep("copy", f"file:{source}", f"file:{sound}/copy")
    check_range(checks, "read to a file", done, source, bad)
    check_folder(checks, "read to a file", sound, [])
    if not has_load():
        return print("this program has no 'sidestep load': not checked")
    drives.drop_caches()
    done = sidestep("--machine", "dgx-h100", "load", str(source), "--to", "gpu:0")
    checks.same("load: exit code", done.returncode, 1)
    checks.same("load names the file", str(source) in done.stderr, True)
    print(f"load: {done.stderr.strip().splitlines()[:1]}")


def check_writes(checks):
    folder = pathlib.Path("/bad-writes")
    drives.mount_ext4(drives.by_serial("bad-writes"), folder, "-O", "^has_journal")
    target = folder / "x"
    target.write_text("as it was")
    done = sidestep("copy", "host", f"file:{target}", "--size", str(SIZE), "--direct-io")
    print(f"write around the cache: {done.stderr.strip().splitlines()[:1]}")
    checks.same("write around the cache: exit code", done.returncode, 1)
    match = re.search(r"cannot write (\d+) bytes of (\S+) at offset (\d+)", done.stderr)
    checks.same("write around the cache: file", match and match[2], str(target))
    check_folder(checks, "write around the cache", folder, ["x"])
    checks.same("the old file is as it was", target.read_text(), "as it was")

    # Through the page cache it is the flush that finds out.
    done = sidestep("copy", "host", f"file:{target}", "--size", str(SIZE), "--sync")
    print(f"flush: {done.stderr.strip().splitlines()[:1]}")
    checks.same("flush: exit code", done.returncode, 1)
    checks.same("flush names the file", str(target) in done.stderr, True)
    check_folder(checks, "flush", folder, ["x"])
    checks.same("the old file is as it was", target.read_text(), "as it was")
    # A range that is written in place keeps its file: the error is what counts.
    with open(folder / "y", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
    bad = bad_byte(folder / "y")
    checks.same("the range lies on the bad sector", bad is not None, True)
    done = sidestep("copy", "host", f"file:{folder}/y@0+{SIZE}", "--direct-io")
    check_range(checks, "write of a range", done, folder / "y", bad)


def check_full(checks):
    folder = pathlib.Path("/small")
    drives.mount_ext4(drives.by_serial("small"), folder)
    target = folder / "x"
    target.write_text("as it was")
    done = sidestep("copy", "host", f"file:{target}", "--size", "24MiB")
    checks.same("full: exit code", done.returncode, 1)
    checks.same("full: words", (str(target) in done.stderr, "space" in done.stderr), (True, True))
    check_folder(checks, "full", folder, ["x"])
    print(f"full: {done.stderr.strip().splitlines()[:1]}")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    done = sidestep("copy", "host", f"file:{target}", "--size", "1MiB")
    print(f"read-only: {done.stderr.strip().splitlines()[:1]}")
    checks.same("read-only: it fails", done.returncode > 0, True)
    checks.same("read-only: words", (str(target) in done.stderr, "read-only" in done.stderr.lower()), (True, True))
    checks.same("the old file is as it was", target.read_text(), "as it was")


def storage_of(path):
    """What the receipt of a copy of a file to host memory says of its bytes."""
    return json.loads(subprocess.run([os.environ["STORAGE_PROGRAM"], "read", path], stdout=subprocess.PIPE, text=True,
                                     check=True).stdout)


def check_sound(checks, folder):
    source = pathlib.Path(folder) / "source"
    source.write_bytes(os.urandom(SIZE + 4321))
    target = pathlib.Path(folder) / "target"
    for io, extra in (("uring", ["--verify"]), ("threads", ["--direct-io", "--sync"])):
        drives.drop_caches()
        done = sidestep("copy", f"file:{source}", f"file:{target}", *extra, SIDESTEP_FILE_IO=io)
        checks.same(f"copy by {io} {extra}: exit code", done.returncode, 0)
        checks.same(f"copy by {io} {extra}: content", digest(target), digest(source))
    drives.drop_caches()
    cold = storage_of(source)
    source.read_bytes()
    hot = storage_of(source)
    for what, told in (("cold", cold), ("hot", hot)):
        print(f"{what}: {told['o_direct']} bytes around the page cache, {told['page_cache']} through it")
    size = source.stat().st_size
    checks.same("cold: nearly all bytes go around the page cache", cold["o_direct"] >= size * 0.9, True)
    checks.same("cold: all bytes are counted", cold["o_direct"] + cold["page_cache"], size)
    checks.same("hot: all bytes come out of the page cache", (hot["page_cache"], hot["o_direct"]), (size, 0))


def main():
    checks = Checks()
    drives.mount_ext4(drives.by_serial("sound"), "/sound")
    check_reads(checks, "/sound")
    check_writes(checks)
    check_full(checks)
    check_sound(checks, "/sound")
    checks.finish()


main()
