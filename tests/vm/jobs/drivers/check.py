"""What the program says of a kernel, a drive and a Soft-RoCE card, whose drivers job.sh has brought up."""

import pathlib
import platform

from checks import Checks
from told import Told


def main():
    checks = Checks()
    told = Told()
    drive = told.devices.get("drive:nvme0")
    checks.same("kind of the drive", drive and drive["kind"], "drive")
    if told.properties is None:
        checks.finish()
    release = platform.release()
    checks.same("kernel", told.properties.get("kernel"), release)
    # Debian's kernels have it from 6.13.7 on; the unpacked kernel here has no configuration file in /boot.
    newer = tuple(int(number) for number in release.split("+")[0].split(".")) >= (6, 13, 7)
    checks.same("kernel_p2pdma", told.properties.get("kernel_p2pdma"), "yes" if newer else "no")
    checks.same("driver of the drive", drive["properties"].get("driver"), "nvme")
    if pathlib.Path("/sys/class/infiniband/rxe0").exists():
        card = told.devices.get("nic:rxe0", {"kind": "none"})
        checks.same("kind of the Soft-RoCE card", (card["kind"], card.get("bus_id")), ("nic", None))
        told_of_it = card.get("properties", {})
        for name, value in (("rdma", "rxe0"), ("netdev", "dummy0"), ("port1.state", "4: ACTIVE")):
            checks.same(f"{name} of the Soft-RoCE card", told_of_it.get(name), value)
    checks.finish()


main()
