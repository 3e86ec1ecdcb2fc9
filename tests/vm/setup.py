#!/usr/bin/env python3
"""Fetches what the virtual machines need into a cache folder. Nothing is installed, root is not needed.

    tests/vm/setup.py [--refresh]

The packages come by apt from the mirror that the system itself is set up for, through a private apt
configuration, so that the system's package lists stay as they are. Quick when everything is there;
--refresh fetches anew. The folder is SIDESTEP_VM_CACHE, or sidestep-vm in the user's cache folder.
"""

import argparse
import fcntl
import hashlib
import json
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import cache

# The suite that has a QEMU of 8.1 or newer (see README.md); elsewhere the host's own is new enough.
QEMU_SUITE = {"bookworm": "bookworm-backports"}
KERNEL_SUITE = "trixie-backports"
KERNELS = ("7.2+", "6.12")
# qemu-system-x86 brings what else it needs; these are named since they would count as there already on a
# host that has them installed.
TOOLS = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu", "busybox-static",
         "zstd",
         # What programs in a guest use an RDMA card by, and what measures it.
         "libibverbs1", "ibverbs-providers", "perftest",
         # What tells the kernel's NFS server which folders it serves.
         "nfs-kernel-server")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
RECIPE = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()


class Failed(Exception):
    pass


def say(text):
    print(f"vm setup: {text}", file=sys.stderr, flush=True)


def output(*command, **options):
    """What a program prints; Failed with its last words where it fails."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", check=False, **options)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        last = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise Failed(f"{command[0]} {command[-1]}: exit code {done.returncode}: {last}")
    return done.stdout


class Apt:
    """apt with its own sources, lists and cache below `root`, and the system's list of what is installed."""

    def __init__(self, root):
        self.codename = read_codename()
        self.lists = root / "lists"
        for part in ("lists/partial", "cache/archives/partial"):
            (root / part).mkdir(parents=True, exist_ok=True)
        sources = root / "sources.list"
        sources.write_text("".join(self.source_lines()))
        settings = {"Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null",
                    "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": "/dev/null",
                    "Dir::State::lists": self.lists, "Dir::Cache": root / "cache", "Debug::NoLocking": "1",
                    "APT::Sandbox::User": "root", "Acquire::Languages": "none", "Acquire::Retries": "3"}
        self.options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]

    def source_lines(self):
        """The system's own Debian sources, and at the same place the further suites."""
        told = output("apt-get", "update", "--print-uris")
        known = sorted(set(re.findall(r"^'(\S+)/dists/([^'\s]+)/InRelease'", told, re.MULTILINE)))
        own = [(uri, suite) for uri, suite in known if re.match(rf"{self.codename}\b", suite)]
        home = next((uri for uri, suite in own if suite == self.codename), None)
        if home is None or not os.path.exists(KEYRING):
            raise Failed(f"apt has no Debian source for '{self.codename}': only Debian 12 and newer is known here")
        further = {QEMU_SUITE.get(self.codename, self.codename), KERNEL_SUITE}
        own += [(home, suite) for suite in sorted(further) if (home, suite) not in own]
        return [f"deb [signed-by={KEYRING}] {uri} {suite} main\n" for uri, suite in own]

    def update(self):
        output("apt-get", *self.options, "update", "--error-on=any")

    def to_unpack(self, names):
        """NAME=VERSION of the packages and of all they need that the host has not installed."""
        told = output("apt-get", *self.options, "-t", QEMU_SUITE.get(self.codename, self.codename),
                      "--simulate", "--no-install-recommends", "--reinstall", "install", *names)
        return [f"{name}={version}" for name, version in
                re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", told, re.MULTILINE)]

    def names(self, prefix):
        return output("apt-cache", *self.options, "pkgnames", prefix).split()

    def unpack(self, packages, target):
        with tempfile.TemporaryDirectory(dir=target.parent) as debs:
            output("apt-get", *self.options, "download", *packages, cwd=debs)
            for deb in sorted(pathlib.Path(debs).glob("*.deb")):
                output("dpkg-deb", "-x", deb, target)


def read_codename():
    try:
        told = pathlib.Path("/etc/os-release").read_text()
    except OSError:
        told = ""
    found = re.search(r'^VERSION_CODENAME="?([\w-]+)', told, re.MULTILINE)
    return found.group(1) if found else "unknown"


def fetch_tools(apt, target):
    apt.unpack(apt.to_unpack(TOOLS), target)
    # Debian 12 still has programs and libraries outside /usr.
    for busybox in target.glob("bin/busybox"):
        (target / "usr/bin").mkdir(exist_ok=True)
        busybox.rename(target / "usr/bin/busybox")


def unpack_vmlinuz(packed, zstd, environment):
    """The ELF inside a bzImage, which QEMU starts by its PVH note: unpacking it in the guest costs seconds.
    The fields are those of Linux' Documentation/arch/x86/boot.rst."""
    setup_sectors = packed[0x1f1] or 4
    offset, length = struct.unpack_from("<II", packed, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = packed[start:start + length - 4]  # the last four bytes are the unpacked size
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run([zstd, "-dc"], input=payload, capture_output=True, check=True,
                              env=environment).stdout
    raise Failed(f"the kernel is packed with neither xz nor zstd, it starts with {payload[:6].hex()}")


def fetch_kernel(apt, wanted, target, parts):
    """Puts vmlinux and modules/ into target/VERSION. Returns the version; None where the sources have none."""
    names = set(apt.names("linux-"))
    found = [re.fullmatch(r"linux-image-(\d+\.\d+\.\d+\+deb\d+-amd64)", name) for name in names]
    available = [match.group(1) for match in found if match]
    version = cache.pick(wanted.rstrip("+"), available) or cache.pick(wanted, available)
    if version is None:
        return None
    say(f"fetching kernel {version}")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        tree = pathlib.Path(folder) / "tree"
        apt.unpack([name for part in ("image", "binary", "modules", "base")
                    if (name := f"linux-{part}-{version}") in names], tree)
        modules = next(path for path in (tree / "usr/lib/modules", tree / "lib/modules") if path.exists())
        image = next(path for path in (tree / f"boot/vmlinuz-{version}", modules / version / "vmlinuz")
                     if path.exists())
        vmlinux = unpack_vmlinuz(image.read_bytes(), parts.program("zstd"), parts.environment())
        if not vmlinux.startswith(b"\x7fELF"):
            raise Failed(f"{image.name} holds no ELF file")
        (target / version).mkdir(parents=True)
        (target / version / "vmlinux").write_bytes(vmlinux)
        (modules / version).rename(target / version / "modules")
    return version


def qemu_version(parts):
    """As the unpacked program itself tells it: so it is also known to start."""
    told = output(parts.program("qemu-system-x86_64"), "--version", env=parts.environment())
    return re.search(r"version (\d+(\.\d+)+)", told).group(1)


def is_ready(root):
    try:
        parts = cache.Cache.open(root)
        return (parts.ready["recipe"] == RECIPE and qemu_version(parts) == parts.ready["qemu"]
                and all((root / "kernels" / version / "vmlinux").exists() for version in parts.ready["kernels"]))
    except (cache.NotSetUp, Failed, KeyError):
        return False


def fetch(root):
    say(f"fetching QEMU and kernels into {root}")
    apt = Apt(root / "apt")
    apt.update()
    # What an earlier setup fetched goes only now: without a network it stays of use.
    (root / "ready.json").unlink(missing_ok=True)
    for old in ("tools", "kernels", "initrd"):
        shutil.rmtree(root / old, ignore_errors=True)
    parts = cache.Cache(root)
    fetch_tools(apt, parts.tools)
    ready = {"recipe": RECIPE, "qemu": qemu_version(parts), "kernels": []}
    for wanted in KERNELS:
        version = fetch_kernel(apt, wanted, root / "kernels", parts)
        if version is None:
            say(f"WARNING: THE PACKAGE SOURCES HAVE NO KERNEL {wanted}. The jobs that need it will be skipped.")
        elif version not in ready["kernels"]:
            ready["kernels"].append(version)
    if not ready["kernels"]:
        raise Failed(f"the package sources have none of the kernels {', '.join(KERNELS)}")
    shutil.rmtree(root / "apt")
    (root / "ready.json").write_text(json.dumps(ready, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--refresh", action="store_true", help="fetch everything anew")
    refresh = parser.parse_args().refresh
    root = cache.folder()
    root.mkdir(parents=True, exist_ok=True)
    mark = root / "sidestep-vm.lock"
    if not mark.exists() and any(root.iterdir()):
        # Fetching begins with throwing away what is there.
        say(f"{root} holds something else: give SIDESTEP_VM_CACHE a folder of its own")
        return 1
    start = time.monotonic()
    with open(mark, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if refresh or not is_ready(root):
            try:
                fetch(root)
            except (Failed, OSError, subprocess.CalledProcessError) as error:
                (root / "failed.txt").write_text(f"{error}\n")
                so = ("run with what was fetched before" if (root / "ready.json").exists()
                      else "CANNOT RUN and will be skipped")
                say(f"FAILED, so the tests in virtual machines {so}: {error}")
                return 1
            (root / "failed.txt").unlink(missing_ok=True)
    parts = cache.Cache.open(root)
    say(f"QEMU {parts.ready['qemu']}, kernels {', '.join(parts.ready['kernels'])} in {root} "
        f"({time.monotonic() - start:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
