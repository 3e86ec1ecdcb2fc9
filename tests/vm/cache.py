"""What setup.py puts down for the virtual machines, where it lies, and how to ask for a part of it."""

import json
import os
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent


class NotSetUp(Exception):
    """Something is not in the cache; the text says what, why, and what to do."""


def folder():
    """SIDESTEP_VM_CACHE, else a folder of the user's own caches."""
    own = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("SIDESTEP_VM_CACHE") or pathlib.Path(own) / "sidestep-vm")


def series(version):
    """(6, 12, 117) of "6.12.117+deb12-amd64", to compare with."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    if not numbers:
        raise ValueError(f"'{version}' is not a version; such as 6.12, 7.2+ or any")
    return tuple(int(number) for number in numbers.group().split("."))


def pick(wanted, versions):
    """The newest of the kernels that fit: "6.12" that series, "7.2+" that series or a newer one, "any".
    None where none fits."""
    least = () if wanted == "any" else series(wanted.rstrip("+"))
    fitting = [v for v in versions if wanted == "any" or series(v)[:len(least)] == least
               or (wanted.endswith("+") and series(v) >= least)]
    return max(fitting, key=series, default=None)


class Cache:
    """The folder, whether or not everything is in it yet."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.tools = self.root / "tools"
        self.ready = None  # what setup.py says when it is done: recipe, version of QEMU, kernels

    @classmethod
    def open(cls, root=None):
        """The cache that setup.py has filled; raises NotSetUp where it has not."""
        found = cls(root or folder())
        try:
            found.ready = json.loads((found.root / "ready.json").read_text())
        except (OSError, ValueError):
            raise NotSetUp(f"{found.root} holds no virtual machine: {found.why_not()}") from None
        return found

    def why_not(self):
        try:
            return f"setup.py failed: {(self.root / 'failed.txt').read_text().strip()}"
        except OSError:
            return f"run {HERE / 'setup.py'}"

    def kernel(self, wanted):
        """The folder of a kernel (vmlinux, modules/), by pick()."""
        version = pick(wanted, self.ready["kernels"])
        if version is None:
            raise NotSetUp(f"no kernel {wanted} in {self.root}, only {', '.join(self.ready['kernels'])}: the package "
                           "sources had none at the time of setup.py; setup.py --refresh looks again")
        return self.root / "kernels" / version

    def program(self, name):
        return self.tools / "usr/bin" / name

    def environment(self):
        """What programs of the cache need to find the libraries that were unpacked beside them."""
        folders = [self.tools / "usr/lib/x86_64-linux-gnu", self.tools / "lib/x86_64-linux-gnu"]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
