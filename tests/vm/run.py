#!/usr/bin/env python3
"""Boots a virtual machine, runs a job in it, and returns the job's exit code.

    tests/vm/run.py [options] KERNEL JOB [QEMU arguments]

KERNEL  6.12: that series; 7.2+: that one or newer; any: the newest there is
JOB     a folder with an executable job.sh, or one of the *.machine files beside it

The guest sees the host's / under its own paths; what it writes is thrown away. Exit codes: the job's own; 99:
the guest gave no verdict (it hung, it crashed); 98: it cannot be run here; 2: no such job. README.md has the rest.
"""

import argparse
import ctypes
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

import cache
import initrd

NO_VERDICT = 99
CANNOT_RUN = 98
WRONG_USE = 2
TRIES = 2
PR_SET_PDEATHSIG = 1
REPOSITORY = cache.HERE.parent.parent
KERNEL_WORDS = ("console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check mitigations=off nokaslr "
                "random.trust_cpu=on")


class Machine(NamedTuple):
    """What a *.machine file says."""
    modules: list
    append: list
    disk: list         # "NAME=SIZE"
    trace: list        # events of QEMU
    qemu: list


def read_machine(path, machine=None):
    """Lines that start with '-' are QEMU's arguments. 'modules GROUP...' loads the groups of
    initramfs/*.modules, 'append WORD...' adds to the kernel's command line, 'disk NAME=SIZE...' makes empty files
    that stand behind QEMU's block nodes of those names, 'trace EVENT...' lets QEMU write these events to the file
    `trace` in the job's folder, 'include FILE' reads a file beside this one, '#' starts a comment."""
    machine = machine or Machine([], [], [], [], [])
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0].startswith("-"):
            machine.qemu.extend(words)
        elif words[0] in ("modules", "append", "disk", "trace"):
            getattr(machine, words[0]).extend(words[1:])
        elif words[0] == "include" and len(words) == 2 and words[1] != path.name:
            read_machine(path.parent / words[1], machine)
        else:
            raise ValueError(f"{path.name}:{number}: '{line}' is no 'modules', 'append', 'disk', 'trace', 'include "
                             "FILE' or '-...'")
    return machine


class Job(NamedTuple):
    folder: pathlib.Path
    machine: Machine
    name: str          # "acs_iommu/with_acs"
    environment: dict


def read_job(path, settings):
    """A Job from a folder or a *.machine file; `settings` are further NAME=VALUE for its environment."""
    path = pathlib.Path(path).resolve()
    folder = path if path.is_dir() else path.parent
    if not os.access(folder / "job.sh", os.X_OK):
        raise ValueError(f"{folder} has no executable job.sh")
    machine = Machine([], [], [], [], []) if path.is_dir() else read_machine(path)
    binary = os.environ.get("SIDESTEP_BIN") or REPOSITORY / "build/release/cli/sidestep"
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run",
        "SIDESTEP_BIN": pathlib.Path(binary).resolve(),
        "VM_PYTHON": sys.executable, "VM_JOB": folder, "VM_MACHINE": "" if path.is_dir() else path.stem,
        "PYTHONPATH": cache.HERE / "guest", "PYTHONDONTWRITEBYTECODE": "1",
        **dict(setting.split("=", 1) for setting in settings)}
    return Job(folder, machine, f"{folder.name}/{path.stem}" if path.is_file() else folder.name, environment)


def has_kvm():
    """Whether the host's KVM can run a stock kernel. Paravirtual ones open /dev/kvm too, and then fail."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return bool(re.search(r"\b(vmx|svm)\b", flags)) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def disks(work, machine):
    """QEMU's arguments for empty disks; whatever is written to one takes room in `work` only."""
    arguments = []
    for disk in machine.disk:
        name, size = disk.split("=")
        with open(work / f"{name}.disk", "wb") as file:
            file.truncate(int(size.removesuffix("M")) << 20)
        arguments += ["-blockdev", f"driver=file,node-name={name},filename={work / name}.disk"]
    return arguments


def traces(work, machine):
    arguments = ["-D", work / "job/trace"] if machine.trace else []
    return arguments + [word for event in machine.trace for word in ("-trace", event)]


def command(parts, kernel, image, work, machine):
    # Before 8.1, QEMU's emulation on several threads is not safe for a guest that patches its own code.
    processors = 2 if cache.series(parts.ready["qemu"]) >= (8, 1) else 1
    share = parts.tools / "usr"
    return [parts.program("qemu-system-x86_64"),
            "-L", share / "share/qemu", "-L", share / "share/seabios", "-L", share / "lib/ipxe/qemu",
            "-machine", "q35", "-accel", "kvm" if has_kvm() else "tcg,thread=multi", "-cpu", "max",
            "-smp", str(processors), "-m", "1024",
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-serial", f"file:{work / 'console'}",
            "-kernel", kernel / "vmlinux", "-initrd", image,
            "-append", " ".join([KERNEL_WORDS, *machine.append]),
            "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=hostroot",
            "-fsdev", f"local,id=job,path={work / 'job'},security_model=none",
            "-device", "virtio-9p-pci,fsdev=job,mount_tag=job",
            *disks(work, machine), *traces(work, machine), *machine.qemu]


class Outcome(NamedTuple):
    code: int          # the job's, where verdict
    verdict: bool
    output: str        # what the job printed
    why: str           # where there is no verdict
    console: str


def end_with_parent():
    """So that a runner that is killed, as ctest does at its time limit, leaves no machine behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def read_text(path):
    return path.read_text(errors="replace") if path.exists() else ""


def boot(parts, kernel, image, job, work, limit):
    """One try, in the empty folder `work`. A verdict is the job's code, told by file and by QEMU's status alike."""
    (work / "job").mkdir()
    environment = {**job.environment, "VM_TOOLS": parts.tools}
    lines = [f"export {name}={shlex.quote(str(value))}\n" for name, value in environment.items()]
    (work / "job/environment").write_text("".join(lines))
    words = [str(word) for word in command(parts, kernel, image, work, job.machine)]
    (work / "command").write_text(shlex.join(words) + "\n")
    why = ""
    with open(work / "qemu", "wb") as told:
        qemu = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=told, stderr=told,
                                env=parts.environment(), preexec_fn=end_with_parent)
        try:
            status = qemu.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            why = f"it was not done within {limit:g} s"
        finally:
            qemu.kill()
            qemu.wait()
    code = read_text(work / "job/code").strip()
    if not why and not code.isdecimal():
        why = f"it ended before the job did (QEMU's status {status})"
    elif not why and status != (int(code) * 2 + 1) & 0xff:
        why = f"the job's exit code is {code}, and QEMU's status {status} does not fit it"
    return Outcome(-1 if why else int(code), not why, read_text(work / "job/output"), why,
                   read_text(work / "qemu") + read_text(work / "console"))


def say(text):
    print(f"vm: {text}", flush=True)


def telling_end(console):
    """The console's last 40 lines, or all from the guest's own words of a crash on: its call trace may be longer."""
    lines = console.splitlines()
    crash = [number for number, line in enumerate(lines) if "Kernel panic" in line]
    return lines[min(crash[:1] + [max(len(lines) - 40, 0)]):][:200]


def run(parts, wanted, job, limit, keep=None):
    """Boots until there is a verdict, twice at most. Prints what a person needs. Returns the exit code."""
    kernel = parts.kernel(wanted)
    image = initrd.build(parts, kernel, job.machine.modules)
    for attempt in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="sidestep-vm-") as folder:
            outcome = boot(parts, kernel, image, job, pathlib.Path(folder), limit)
            if keep:
                shutil.copytree(folder, keep, dirs_exist_ok=True)
        if outcome.output:
            print(outcome.output.removesuffix("\n"), flush=True)
        if not outcome.verdict or outcome.code != 0:
            say("the guest's console ends with:")
            print("\n".join("    " + line for line in telling_end(outcome.console)), flush=True)
        if outcome.verdict:
            say(f"{job.name} on {kernel.name}: exit code {outcome.code}")
            return outcome.code
        say(f"{job.name} on {kernel.name}: no verdict from the guest: {outcome.why}"
            + ("; once more" if attempt + 1 < TRIES else ""))
    return NO_VERDICT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", type=float, default=float(os.environ.get("SIDESTEP_VM_LIMIT", "120")),
                        help="seconds for one boot (SIDESTEP_VM_LIMIT, 120)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a variable in the job's environment")
    parser.add_argument("--keep", metavar="DIR", help="keep console, output and QEMU's command there")
    parser.add_argument("kernel", metavar="KERNEL")
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("qemu", metavar="QEMU", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    try:
        job = read_job(arguments.job, arguments.set)
        job.machine.qemu.extend(arguments.qemu)
        return run(cache.Cache.open(), arguments.kernel, job, arguments.limit, arguments.keep)
    except cache.NotSetUp as reason:
        say(f"SKIPPED: {reason}")
        return CANNOT_RUN
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return WRONG_USE


if __name__ == "__main__":
    sys.exit(main())
