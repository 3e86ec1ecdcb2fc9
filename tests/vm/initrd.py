"""The initramfs of a guest: the first process, busybox, and the kernel modules in the order of loading."""

import hashlib
import lzma
import os
import pathlib
import re

import cache

SOURCE = cache.HERE / "initramfs"
FOLDERS = ("bin", "dev", "host", "modules", "proc", "root", "sys", "upper")


class Modules:
    """The modules of one kernel, by name ('-' and '_' are the same to the kernel)."""

    def __init__(self, folder):
        self.files = {self.key(path.name.split(".ko")[0]): path for path in folder.rglob("*.ko*")}
        builtin = (folder / "modules.builtin").read_text().split()
        self.builtin = {self.key(pathlib.Path(name).stem) for name in builtin}

    @staticmethod
    def key(name):
        return name.replace("-", "_")

    def content(self, name):
        packed = self.files[name].read_bytes()
        return lzma.decompress(packed) if self.files[name].suffix == ".xz" else packed

    def load_order(self, names):
        """[(name, content)]: the modules and what they depend on, each after all that it needs. A name that
        ends in '?' is left out where the kernel has no such module; any other is a ValueError."""
        order = {}

        def add(name, content):
            for needed in re.search(rb"\0depends=([^\0]*)", b"\0" + content).group(1).decode().split(","):
                want(needed)
            order[name] = content

        def want(name):
            key = self.key(name.rstrip("?"))
            if not key or key in order or key in self.builtin:
                return
            if key not in self.files:
                if name.endswith("?"):
                    return
                raise ValueError(f"the kernel has no module {name}")
            add(key, self.content(key))

        for name in names:
            want(name)
        return list(order.items())


def modules_in(group):
    lines = (SOURCE / f"{group}.modules").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def cpio(files):
    """The bytes of an archive in the "newc" format: {path: None for a folder, or (mode, content)}. See Linux'
    Documentation/driver-api/early-userspace/buffer-format.rst."""
    parts = []

    def add(name, mode, content):
        encoded = name.encode() + b"\0"
        numbers = (len(parts) + 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        entry = b"070701" + "".join(f"{number:08x}" for number in numbers).encode() + encoded
        entry += bytes(-len(entry) % 4) + content
        parts.append(entry + bytes(-len(entry) % 4))

    for name, file in files.items():
        add(name, 0o040755, b"") if file is None else add(name, 0o100000 | file[0], file[1])
    add("TRAILER!!!", 0, b"")
    return b"".join(parts)


def build(parts, kernel, groups):
    """Path of the initramfs for a kernel with the modules of these groups, base first. Kept in the cache under a
    hash of all that goes into it."""
    names = [name for group in ["base", *groups] for name in modules_in(group)]
    init = (SOURCE / "init").read_bytes()
    ingredients = repr((kernel.name, names, init, pathlib.Path(__file__).read_bytes()))
    target = parts.root / "initrd" / f"{hashlib.sha256(ingredients.encode()).hexdigest()[:16]}.cpio"
    if target.exists():
        return target
    files = dict.fromkeys(FOLDERS)
    files["init"] = (0o755, init)
    files["bin/busybox"] = (0o755, parts.program("busybox").read_bytes())
    for number, (name, content) in enumerate(Modules(kernel / "modules").load_order(names)):
        files[f"modules/{number:03d}-{name}.ko"] = (0o644, content)
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(cpio(files))
    unfinished.rename(target)
    return target
