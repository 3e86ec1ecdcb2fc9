"""What the kernel itself shows of PCI in /sys: the independent road that the checks compare the program with."""

import pathlib
import re
import struct
from typing import NamedTuple, Optional

DEVICES = pathlib.Path("/sys/bus/pci/devices")
KINDS = {0x0108: "drive", 0x0200: "nic", 0x0380: "display"}
UPSTREAM_PORT = 5                     # PCIe capability, device/port type (PCIe base specification 7.5.3.2)
ACS_CAPABILITY = 0x000d               # 7.7.11; control: 0x01 source validation, 0x04 and 0x08 redirect, 0x10 upstream
REDIRECTING = 0x1d


class Function(NamedTuple):
    bus_id: str
    kind: Optional[str]
    numa_node: int
    walk: tuple                       # ("pci0000:40", "0000:40:00.0", ..., bus_id)
    group: Optional[str]              # of the IOMMU


class Acs(NamedTuple):
    capability: int
    control: int


def number(path):
    return int(path.read_text().strip(), 0)


def read(bus_id):
    folder = DEVICES / bus_id
    walk = tuple(folder.resolve().parts)
    group = folder / "iommu_group"
    return Function(bus_id, KINDS.get(number(folder / "class") >> 8), number(folder / "numa_node"),
                    walk[[bool(re.match("pci[0-9a-f]{4}:", part)) for part in walk].index(True):],
                    group.resolve().name if group.exists() else None)


def functions():
    """Every function of the machine, by bus id."""
    return {path.name: read(path.name) for path in sorted(DEVICES.iterdir())}


def in_slots():
    """{slot number: Function}: what sits in a port, by the number that the machine's description gave the port."""
    found = {}
    for slot in pathlib.Path("/sys/bus/pci/slots").iterdir():
        bus_id = (slot / "address").read_text().strip() + ".0"
        if (DEVICES / bus_id).exists():
            found[slot.name] = read(bus_id)
    return found


def config(bus_id):
    return (DEVICES / bus_id / "config").read_bytes()


def port_type(bus_id):
    """The device/port type of a PCIe function; None of one without a PCIe capability."""
    space = config(bus_id)
    at = space[0x34]
    while at:
        if space[at] == 0x10:
            return (space[at + 2] >> 4) & 0xf
        at = space[at + 1]
    return None


def acs(bus_id):
    """The access control of a port, which only root reads; None where it has none."""
    space = config(bus_id)
    if len(space) < 4096:
        raise PermissionError(f"{bus_id}: {len(space)} bytes of configuration space, root would read 4096")
    at = 0x100
    while at:
        header, = struct.unpack_from("<I", space, at)
        if header & 0xffff == ACS_CAPABILITY:
            return Acs(*struct.unpack_from("<HH", space, at + 4))
        at = header >> 20
    return None


def class_of(a, b):
    """nvidia-smi's letters for two functions: from the common part of their real paths in /sys, the switches on the
    way told by the type of their upstream ports. One NUMA node is needed for NODE; a node that is not told counts
    only where the machine has just one."""
    common = 0
    while common < min(len(a.walk), len(b.walk)) and a.walk[common] == b.walk[common]:
        common += 1
    if common > 1:
        way = {a.walk[common - 1], *a.walk[common:], *b.walk[common:]}
        return "PXB" if sum(port_type(bus_id) == UPSTREAM_PORT for bus_id in way) > 1 else "PIX"
    if common == 1:
        return "PHB"
    single = pathlib.Path("/sys/devices/system/node/online").read_text().strip() == "0"
    same = a.numa_node == b.numa_node and a.numa_node >= 0
    return "NODE" if same or single else "SYS"


def link(bus_id, which):
    """ "gen1 x1": the PCIe link of a function, as it is (current) or could be (max)."""
    folder = DEVICES / bus_id
    speeds = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
    speed = (folder / f"{which}_link_speed").read_text().split()[0]
    return f"gen{speeds[speed]} x{number(folder / f'{which}_link_width')}"
