"""What the program under test says of the machine."""

import json
import os
import subprocess


def run(*arguments, uid=None):
    """The output of the program; ends the check where it fails. `uid`: as that user."""
    program = os.environ["SIDESTEP_BIN"]
    if uid is not None:
        # The user may not be let into the folder that it was built in.
        copy = "/dev/shm/program"
        subprocess.run(["install", "-m", "755", program, copy], check=True)
        program = copy
    return subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, check=True, user=uid).stdout


class Told:
    """`sidestep topo --json`, looked at as a tree of PCI: each device's parent is the far end of its PCIe link
    towards a cpu."""

    DEPTH = {"cpu": 0, "host_bridge": 1}

    def __init__(self, uid=None):
        self.machine = json.loads(run("topo", "--json", uid=uid))
        self.devices = {device["name"]: device for device in self.machine["devices"]}
        self.neighbours = {name: [] for name in self.devices}
        for link in self.machine["links"]:
            if link["kind"] == "pcie":
                self.neighbours[link["a"]].append(link["b"])
                self.neighbours[link["b"]].append(link["a"])
        # What a program without properties does not tell cannot be wrong; one that has them is held to all.
        self.properties = self.machine.get("properties")
        if self.properties is None:
            print("the program tells no properties: they are not checked")
        self.above = {}
        level = [name for name, device in self.devices.items() if device["kind"] == "cpu"]
        self.above.update(dict.fromkeys(level))
        while level:
            below = [(child, name) for name in level for child in self.neighbours[name] if child not in self.above]
            self.above.update(below)
            level = [child for child, _ in below]

    def at(self, bus_id):
        """The device with that bus id, or None."""
        return next((device for device in self.devices.values() if device.get("bus_id") == bus_id), None)

    def chain(self, name):
        """From a device up to its cpu."""
        chain = []
        while name is not None:
            chain.append(name)
            name = self.above.get(name)
        return chain

    def class_of(self, a, b):
        """nvidia-smi's letters for two devices of the tree, by name."""
        up, down = self.chain(a), self.chain(b)
        shared = [name for name in up if name in down]
        if not shared:
            return "SYS"
        top = self.devices[shared[0]]["kind"]
        if top in ("cpu", "host_bridge"):
            return {"cpu": "NODE", "host_bridge": "PHB"}[top]
        way = set(up[:up.index(shared[0]) + 1] + down[:down.index(shared[0]) + 1])
        return "PXB" if sum(self.devices[name]["kind"] == "pcie_switch" for name in way) > 1 else "PIX"

    def matrix(self):
        """{(name, name): class}: of the matrix that `sidestep topo` prints; empty where it prints none."""
        # "drive:nvme0" stands there as "nvme0".
        names = {short: name for name, device in self.devices.items() if device["kind"] in ("gpu", "nic", "drive")
                 for short in (name, name.partition(":")[2])}
        rows = [line.split() for line in run("topo").splitlines()]
        cells, columns = {}, []
        for row in rows:
            if columns and row and row[0] in names:
                cells.update({(names[row[0]], column): cell for column, cell in zip(columns, row[1:])})
            elif cells:
                break
            elif row and row[0] in names:
                columns = [names[word] for word in row if word in names]
        return cells
