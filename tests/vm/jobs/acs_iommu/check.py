"""Access control (ACS) of the root ports and the IOMMU groups that follow from it, as the kernel shows them, then
what the program says. The three machines differ in nothing but the IOMMU and the ports' ACS."""

import os

import pci
from checks import Checks
from told import Told

NOBODY = 65534
# Slots right below a root port, and slots below the switch in slot 3.
BELOW_ROOT_PORT = ("1", "2", "3", "4")
BELOW_SWITCH = ("31", "32")
# The root ports' control bits (None: no ACS at all), and what the IOMMU does.
MACHINES = {"with_acs": (pci.REDIRECTING, "translating"), "without_acs": (None, "translating"), "no_iommu": (0, "off")}
CLASSES = {("1", "2"): "PHB", ("31", "32"): "PIX", ("1", "31"): "PHB", ("1", "4"): "NODE", ("32", "4"): "NODE"}


def check_ports(checks, found, control):
    for slot in BELOW_ROOT_PORT:
        port = pci.acs(found[slot].walk[1])
        checks.same(f"ACS control of the root port of slot {slot}", port and port.control, control)
        if port:
            checks.same(f"what the root port of slot {slot} can do", port.capability & pci.REDIRECTING,
                        pci.REDIRECTING)
    for slot in BELOW_SWITCH:
        checks.same(f"ACS of the switch's port of slot {slot}", pci.acs(found[slot].walk[-2]), None)


def check_groups(checks, functions, found, control, iommu):
    checks.same("functions with an IOMMU group", any(f.group for f in functions.values()), iommu != "off")
    if iommu == "off":
        return
    for slot in BELOW_ROOT_PORT:
        port = functions[found[slot].walk[1]]
        checks.same(f"slot {slot} is in its root port's group", found[slot].group == port.group, control is None)
    # A switch's port without ACS is in one group with what hangs below it; how far that group reaches is up
    # to the ports above. So two devices in two groups do not prove that the switch between them redirects.
    for slot in BELOW_SWITCH:
        port = functions[found[slot].walk[-2]]
        checks.same(f"slot {slot} is in its port's group", found[slot].group == port.group, True)
    a, b = (found[slot].group for slot in BELOW_SWITCH)
    checks.same("the devices below the switch are in one group", a == b, control is None)


def check_properties(checks, functions, told, who, iommu):
    checks.same(f"{who}: the machine's iommu", told.properties.get("iommu"), iommu)
    for device in told.devices.values():
        properties = device.get("properties", {})
        if device["kind"] in ("nic", "drive"):
            checks.same(f"{who}: IOMMU group of {device['name']}", properties.get("iommu_group"),
                        functions[device["bus_id"]].group)
        if device["kind"] == "pcie_switch":
            # Who may not read the configuration space may not know; "on" is wrong for everyone.
            allowed = ("off (read)",) if who == "root" else ("off (inferred)", "unknown")
            checks.one_of(f"{who}: ACS of {device['name']}", properties.get("acs"), *allowed)


def check_program(checks, functions, found, iommu, who, uid):
    told = Told(uid)
    checks.same(f"{who}: devices listed",
                {d["bus_id"] for d in told.devices.values() if d["kind"] in ("gpu", "nic", "drive")},
                {f.bus_id for f in functions.values() if f.kind in ("nic", "drive")})
    names = {slot: told.at(found[slot].bus_id)["name"] for slot in ("1", "2", "4", *BELOW_SWITCH)}
    for (a, b), expected in CLASSES.items():
        checks.same(f"{who}: class of slots {a} and {b}", told.class_of(names[a], names[b]), expected)
    for device in told.devices.values():
        if device["kind"] == "pcie_switch":
            checks.same(f"{who}: {device['name']} redirects", device.get("acs_redirect", False), False)
    if told.properties is not None:
        check_properties(checks, functions, told, who, iommu)


def main():
    control, iommu = MACHINES[os.environ["VM_MACHINE"]]
    checks = Checks()
    functions, found = pci.functions(), pci.in_slots()
    for (a, b), expected in CLASSES.items():
        checks.same(f"class of slots {a} and {b} in /sys", pci.class_of(found[a], found[b]), expected)
    check_ports(checks, found, control)
    check_groups(checks, functions, found, control, iommu)
    check_program(checks, functions, found, iommu, "root", None)
    check_program(checks, functions, found, iommu, "nobody", NOBODY)
    checks.finish()


main()
