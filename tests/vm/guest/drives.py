"""NVMe drives of a guest, found by their serial: names change from boot to boot."""

import array
import fcntl
import pathlib
import struct
import subprocess
import time
from typing import NamedTuple

FS_IOC_FIEMAP = 0xc020660b            # linux/fiemap.h
SECTOR = 512


class Drive(NamedTuple):
    name: str                         # "nvme1"
    node: str                         # "/dev/nvme1n1"
    bus_id: str


def by_serial(serial, patience=10):
    """The drive with that serial. The driver looks for drives in the background, so this waits for it."""
    until = time.monotonic() + patience
    while True:
        for folder in pathlib.Path("/sys/class/nvme").glob("nvme*"):
            node = pathlib.Path(f"/dev/{folder.name}n1")
            if (folder / "serial").read_text().strip() == serial and node.exists():
                return Drive(folder.name, str(node), (folder / "device").resolve().name)
        if time.monotonic() > until:
            raise RuntimeError(f"no drive with the serial {serial}")
        time.sleep(0.05)


def mount_ext4(drive, folder, *options):
    """A new ext4 on the drive, mounted at `folder`. Tables are written at once, so that nothing is written later."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", *options, drive.node],
                   check=True)
    subprocess.run(["mount", "-t", "ext4", drive.node, folder], check=True)


def drop_caches():
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


class Extent(NamedTuple):
    logical: int                      # bytes from the start of the file
    physical: int                     # bytes from the start of the drive
    length: int


def extents(path):
    """Where a file's bytes lie (FIEMAP, which flushes the file first)."""
    room = 256
    query = array.array("B", struct.pack("=QQIIII", 0, 2**64 - 1, 1, 0, room, 0) + bytes(56 * room))
    with open(path, "rb") as file:
        fcntl.ioctl(file, FS_IOC_FIEMAP, query)
    count, = struct.unpack_from("=I", query, 20)
    return [Extent(*struct.unpack_from("=QQQ", query, 32 + 56 * number)) for number in range(count)]
