"""Files go to and from the memory of another drive: where the kernel lets the drives talk, no page of host memory is
touched by it, as the trace of the controllers shows; where it does not, the reason is in the route and the bytes go
through host memory."""

import errno
import hashlib
import json
import os
import pathlib
import subprocess

import drives
import told
import trace
from checks import Checks

SIZE = 4 << 20
SOURCE, TARGET = "/mnt/source", "/mnt/target"


def program(*arguments):
    done = subprocess.run([os.environ["STORAGE_PROGRAM"], *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"the program with {arguments} ended with {done.returncode}")
    return done.stdout


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def check_addresses(checks, what, found, size, window, inside):
    """The commands move `size` bytes together, to addresses that all lie in the window, or all outside."""
    checks.same(f"{what}: bytes of the commands", sum(command.bytes for command in found), size)
    runs = [run for command in found for run in command.addresses]
    checks.same(f"{what}: bytes that the controller was told addresses for", sum(length for _, length in runs), size)
    within = sum(length for address, length in runs if window[0] <= address and address + length <= window[1])
    checks.same(f"{what}: bytes of them in the other drive's memory", within, size if inside else 0)
    print(f"{what}: {len(found)} commands, {len(runs)} addresses, {within} of {size} bytes in the other drive's memory")


def main():
    checks = Checks()
    direct = os.environ["VM_MACHINE"] == "same_switch"
    files, memory = drives.by_serial("files"), drives.by_serial("memory")
    place = f"p2pmem:{memory.bus_id}"
    drives.mount_ext4(files, "/mnt")
    pathlib.Path(SOURCE).write_bytes(os.urandom(SIZE))
    drives.drop_caches()
    window = trace.window(memory.bus_id, 64 << 20)

    machine = told.Told()
    checks.same("p2pmem of the drive", machine.at(memory.bus_id)["properties"].get("p2pmem"), "64 MiB, published")

    begin = trace.size()
    steps = {step["step"]: step for step in map(json.loads, program("copies", memory.bus_id, SOURCE, TARGET).splitlines())}
    checks.same("copies", sorted(steps), ["file_to_memory", "host_to_memory", "memory_to_file", "memory_to_host"])
    drives.drop_caches()
    commands = trace.commands(begin)
    checks.same("content of the target", digest(TARGET), digest(SOURCE))
    for name, kind, path in (("file_to_memory", "read", SOURCE), ("memory_to_file", "write", TARGET)):
        step = steps[name]
        checks.same(f"{name}: bytes without host memory", step["gpu_direct"], SIZE if direct else 0)
        checks.same(f"{name}: bytes through host memory", step["o_direct"] + step["page_cache"], 0 if direct else SIZE)
        checks.same(f"{name}: hops", len(step["route"]["lanes"][0]["hops"]), 1 if direct else 2)
        reasons = [other["reason"] for other in step["route"]["refused"]]
        checks.same(f"{name}: the kernel's refusal is among {reasons}",
                    any("(EINVAL)" in reason and "share no PCIe switch" in reason for reason in reasons), not direct)
        found = trace.of_file(commands, kind, drives.extents(path))
        check_addresses(checks, name, found, SIZE, window, direct)
    for name in ("host_to_memory", "memory_to_host"):
        checks.same(f"{name}: engine", steps[name]["route"]["lanes"][0]["hops"][0]["engine"], "memcpy")

    if direct:
        parts = json.loads(program("ranges", memory.bus_id, SOURCE) or "{}")
        checks.same("ranges: some bytes go directly", parts.get("gpu_direct", 0) > 300_000, True)
        checks.same("ranges: the ragged ends do not", parts.get("page_cache", 0) > 0, True)
        checks.same("registered buffers", program("registered", memory.bus_id).strip(), str(errno.EFAULT))
    check_command(checks, place, direct)
    checks.finish()


def check_command(checks, place, direct):
    """The same by the command."""
    sidestep = os.environ["SIDESTEP_BIN"]
    copy = [sidestep, "copy", "--explain", f"file:{SOURCE}", place]
    done = subprocess.run([*copy, "--verify"], stdout=subprocess.PIPE, text=True)
    checks.same("copy --verify", done.returncode, 0)
    checks.same("its engine", "p2pmem drive DMA" in done.stdout.split("refused")[0], direct)
    strict = subprocess.run([*copy, "--require", "direct"], capture_output=True, text=True)
    checks.same("--require direct", strict.returncode, 0 if direct else 3)
    if not direct:
        checks.same("its reason", "(EINVAL)" in strict.stderr and "share no PCIe switch" in strict.stderr, True)
        print(strict.stderr.strip())
    route = told.run("route", f"file:{SOURCE}", place)
    checks.same("route names the refusal", "share no PCIe switch" in route, not direct)
    print(route.strip())
    # A file system in memory: the processor would copy, and O_DIRECT succeeds all the same.
    tmpfs = told.run("route", "--size", "1MiB", "file:/dev/shm/x", place)
    checks.same("route of a file in tmpfs", "the file system of /dev/shm/x (tmpfs) copies" in tmpfs, True)
    # A drive whose driver does no peer-to-peer DMA at all.
    virtio = told.run("route", "file:/dev/vda", place)
    checks.same("route of a virtio disk", "the driver of /dev/vda takes no pages" in virtio and "(EREMOTEIO)" in virtio, True)
    big = subprocess.run([sidestep, "copy", "host", place, "--size", "100MiB"], capture_output=True, text=True)
    checks.same("more than there is", (big.returncode != 0, "100 MiB were asked for" in big.stderr), (True, True))


main()
