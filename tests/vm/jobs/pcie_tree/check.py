"""Holds the class of every pair against how the machine was built (two_sockets.machine): once what the kernel shows
in /sys, then what the program says."""

import itertools

import pci
from checks import Checks
from told import Told

# By slot number. From the picture in two_sockets.machine, not from the code that is tested.
EXPECTED = """
     11   12   21   22   2    3    31   32   33   5
11   X    PIX  PXB  PXB  PHB  NODE SYS  SYS  SYS  SYS
12   PIX  X    PXB  PXB  PHB  NODE SYS  SYS  SYS  SYS
21   PXB  PXB  X    PIX  PHB  NODE SYS  SYS  SYS  SYS
22   PXB  PXB  PIX  X    PHB  NODE SYS  SYS  SYS  SYS
2    PHB  PHB  PHB  PHB  X    NODE SYS  SYS  SYS  SYS
3    NODE NODE NODE NODE NODE X    SYS  SYS  SYS  SYS
31   SYS  SYS  SYS  SYS  SYS  SYS  X    PIX  PIX  SYS
32   SYS  SYS  SYS  SYS  SYS  SYS  PIX  X    PIX  SYS
33   SYS  SYS  SYS  SYS  SYS  SYS  PIX  PIX  X    SYS
5    SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  SYS  X
"""
KINDS = {"11": "drive", "12": "nic", "21": "drive", "22": "display", "2": "nic", "3": "drive", "31": "display",
         "32": "nic", "33": "drive", "5": "nic"}
NODES = {"11": 0, "12": 0, "21": 0, "22": 0, "2": 0, "3": 0, "31": 1, "32": 1, "33": 1, "5": -1}


def expected_classes():
    header, *rows = [line.split() for line in EXPECTED.strip().splitlines()]
    return {(row[0], slot): cell for row in rows for slot, cell in zip(header, row[1:])}


def check_kernel(checks, found, expected):
    checks.same("kinds in the slots", {slot: found[slot].kind for slot in found if found[slot].kind}, KINDS)
    for slot in KINDS:
        checks.same(f"NUMA node of slot {slot} in /sys", found[slot].numa_node, NODES[slot])
    for a, b in itertools.permutations(KINDS, 2):
        checks.same(f"class of slots {a} and {b} in /sys", pci.class_of(found[a], found[b]), expected[a, b])


def listed(checks, told, found):
    """{slot: the program's device}, after a look that it lists what is there and nothing else."""
    devices = {slot: told.at(found[slot].bus_id) for slot in KINDS}
    for slot, kind in KINDS.items():
        device = devices[slot]
        if kind == "display" and device is None:
            # A display that no GPU driver knows. If the program lists it, it has to be right about it.
            print(f"the program does not list the display in slot {slot}")
            continue
        checks.same(f"kind of slot {slot}", device and device["kind"], "gpu" if kind == "display" else kind)
    devices = {slot: device for slot, device in devices.items() if device}
    checks.same("devices listed", {d["bus_id"] for d in told.devices.values() if d["kind"] in ("gpu", "nic", "drive")},
                {found[slot].bus_id for slot in devices})
    return devices


def check_properties(checks, found, devices):
    for slot, device in devices.items():
        for name, which in (("pcie_now", "current"), ("pcie_max", "max")):
            checks.same(f"{name} of slot {slot}", device["properties"].get(name), pci.link(found[slot].bus_id, which))


def check_program(checks, found, expected):
    told = Told()
    devices = listed(checks, told, found)
    for slot, device in devices.items():
        checks.same(f"NUMA node of slot {slot}", device.get("numa_node", -1), NODES[slot])
    if told.properties is not None:
        check_properties(checks, found, devices)
    matrix = told.matrix()
    if not matrix:
        print("the program prints no matrix of these devices")
    assumed = any("is not told; counted as at" in note for note in told.machine["notes"])
    for a, b in itertools.permutations(devices, 2):
        names = devices[a]["name"], devices[b]["name"]
        for where, got in (("tree of links", told.class_of(*names)), ("matrix", matrix.get(names))):
            # Where it takes a node for granted, a note has to say so.
            if "5" in (a, b) and got == "NODE" and assumed:
                continue
            if got is not None:
                checks.same(f"class of slots {a} and {b} in the {where}", got, expected[a, b])


def main():
    checks = Checks()
    found = pci.in_slots()
    expected = expected_classes()
    checks.same("classes that are expected", set(expected.values()), {"X", "PIX", "PXB", "PHB", "NODE", "SYS"})
    check_kernel(checks, found, expected)
    check_program(checks, found, expected)
    checks.finish()


main()
