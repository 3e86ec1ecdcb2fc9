"""What QEMU's trace of its NVMe controllers says of each command: the drive's own DMA, seen from outside the guest."""

import pathlib
import re
from typing import NamedTuple


class Command(NamedTuple):
    kind: str                         # "read" or "write"
    begin: int                        # bytes from the start of the drive
    bytes: int
    addresses: list                   # (address, length) of the memory that the controller went to


def commands(begin_at=0, path="/run/vm-job/trace"):
    """The reads and writes in the trace from byte `begin_at` of it on, in order. QEMU handles one command after the other,
    so what is mapped after one of them is its own."""
    found = []
    for line in pathlib.Path(path).read_text(errors="replace")[begin_at:].splitlines():
        if match := re.search(r"pci_nvme_(read|write) .*nlb \d+ count (\d+) lba 0x([0-9a-f]+)", line):
            found.append(Command(match[1], int(match[3], 16) * 512, int(match[2]), []))
        elif (match := re.search(r"pci_nvme_map_addr addr 0x([0-9a-f]+) len (\d+)", line)) and found:
            found[-1].addresses.append((int(match[1], 16), int(match[2])))
    return found


def size(path="/run/vm-job/trace"):
    return len(pathlib.Path(path).read_text(errors="replace"))


def of_file(all_commands, kind, extents):
    """The commands of that kind whose blocks lie in one of the file's extents."""
    return [command for command in all_commands if command.kind == kind and
            any(extent.physical <= command.begin < extent.physical + extent.length for extent in extents)]


def window(bus_id, least):
    """(begin, end) of the memory region of a PCI device that has `least` bytes or more."""
    for line in pathlib.Path(f"/sys/bus/pci/devices/{bus_id}/resource").read_text().splitlines():
        begin, end, _ = (int(word, 16) for word in line.split())
        if end - begin + 1 >= least:
            return begin, end + 1
    raise RuntimeError(f"{bus_id} has no region of {least} bytes")
