"""sidestep doctor: its report, exit codes and files, over the recorded machine with two H200 and this one."""

import json
import pathlib
import re
import shutil
import tarfile
import unittest

from harness import DONE, FAILED, SOURCE_DIR, USAGE, CommandTest

WARNINGS, NO_GPU = 4, 5


class Doctor(CommandTest):
    def recorded(self):
        with tarfile.open(SOURCE_DIR / "tests" / "recorded" / "h200x2-vm.tgz") as archive:
            archive.extractall(self.dir)
        return str(self.dir / "h200x2-vm")

    def diagnosis(self, machine, code):
        outcome = self.run_command("doctor", "--json", machine=machine)
        self.assertEqual(outcome.code, code, outcome.err + outcome.out)
        return json.loads(outcome.out)

    def test_a_machine_that_is_well_ends_with_0(self):
        found = self.diagnosis(self.recorded(), DONE)
        self.assertEqual((found["health"], found["fail"], found["warn"]), ("well", 0, 0))
        self.assertGreater(found["not_applicable"], 10)
        for finding in found["findings"]:
            self.assertTrue((SOURCE_DIR / finding["page"]).is_file(), finding["page"])

    def test_only_warnings_end_with_4(self):
        machine = pathlib.Path(self.recorded())
        nvml = machine / "sidestep" / "nvml.json"
        record = json.loads(nvml.read_text())
        record["gpus"][0]["facts"]["mig"] = True
        nvml.write_text(json.dumps(record))
        found = self.diagnosis(str(machine), WARNINGS)
        self.assertEqual(found["health"], "warnings")
        first = found["findings"][0]
        self.assertEqual(first["id"], "mig-on")
        self.assertTrue(first["seen"] and first["remedy"] and first["command"], first)

    def test_without_a_driver_that_is_the_answer(self):
        machine = pathlib.Path(self.recorded())
        for name in ("nvml.json", "cuda.json"):
            (machine / "sidestep" / name).unlink()
        shutil.rmtree(machine / "proc" / "driver")
        outcome = self.run_command("doctor", machine=str(machine))
        self.assertEqual(outcome.code, NO_GPU, outcome.out)
        lines = outcome.out.splitlines()
        self.assertIn("no driver answers", lines[0])
        self.assertIn("no NVIDIA driver is loaded", "\n".join(lines[:8]))
        self.assertNotIn("Make NVML work", outcome.out)
        self.assertLess(len(lines), 60, outcome.out)
        self.assertEqual(self.diagnosis(str(machine), NO_GPU)["health"], "no driver")

    def test_without_a_gpu_that_is_the_answer(self):
        machine = self.dir / "bare"
        (machine / "proc").mkdir(parents=True)
        outcome = self.run_command("doctor", machine=str(machine))
        self.assertEqual(outcome.code, NO_GPU, outcome.err)
        self.assertTrue(outcome.out.splitlines()[0].endswith(": no GPU was found"), outcome.out)
        self.write("empty.xml", b'<system version="1"></system>')
        outcome = self.run_command("doctor", machine="empty.xml")
        self.assertEqual(outcome.code, NO_GPU, outcome.err)
        self.assertIn("topology: the file holds no GPU", outcome.out)

    def test_a_failure_ends_with_1(self):
        machine = pathlib.Path(self.recorded())
        nvml = machine / "sidestep" / "nvml.json"
        record = json.loads(nvml.read_text())
        record["gpus"][0]["fabric"]["state"] = 1
        nvml.write_text(json.dumps(record))
        found = self.diagnosis(str(machine), FAILED)
        failing = [finding["id"] for finding in found["findings"] if finding["verdict"] == "fail"]
        self.assertIn("fabric-manager", failing)

    def test_text_says_what_passes_by_name_and_all_of_it_when_asked(self):
        machine = self.recorded()
        outcome = self.run_command("doctor", machine=machine)
        self.assertIn("nothing wrong was found", outcome.out)
        self.assertIn("does not apply", outcome.out)
        self.assertNotIn("nvmlDeviceGetMigMode", outcome.out)
        every = self.run_command("doctor", "--all", machine=machine)
        self.assertIn("nvmlDeviceGetMigMode", every.out)

    def test_single_checks(self):
        machine = self.recorded()
        outcome = self.succeed("doctor", "mig-on", "memlock", machine=machine)
        self.assertIn("2 checks", outcome.out)
        self.assertIn("nvmlDeviceGetMigMode", outcome.out)
        self.refused(USAGE, ["mig-no", "did you mean 'mig-on'?"], "doctor", "mig-no", machine=machine)
        self.refused(USAGE, ["the checks are: acs-redirect"], "doctor", "nothing-like-a-check", machine=machine)

    def test_a_sick_machine_to_try(self):
        outcome = self.run_command("doctor", "--fault", "gpu:3.width=8")
        self.assertEqual(outcome.code, WARNINGS, outcome.out)
        first = outcome.out.split("\nfirst\n")[1].splitlines()
        self.assertIn("pcie-trained-down", first[0])
        self.assertIn("gpu:3", first[0])
        self.assertIn("so       odd-one-out", outcome.out)
        self.assertEqual(self.run_command("doctor", "--fault", "fabric-down").code, FAILED)
        # What a model does not tell of its other cards is no fault of theirs.
        self.assertRegex(self.run_command("doctor", "--fault", "nic:mlx5_0.down").out, r"nic-down +1 of \d+ RDMA ports are down: \S*mlx5_0")
        self.assertEqual(self.run_command("doctor", "--fault", "no-driver").code, NO_GPU)
        self.assertEqual(self.run_command("doctor", "--fault", "acs", "--fault", "gpu:0.lost").code, FAILED)
        self.refused(USAGE, ["widht", "did you mean 'width'?"], "doctor", "--fault", "gpu:3.widht=8")
        for verb in (("topo",), ("route", "host", "gpu:0", "--size", "1GiB")):
            self.refused(USAGE, "the faults are", *verb, "--fault", "unheard-of")
        self.refused(USAGE, "takes no faults", "topo", "--fault", "acs", machine="live")

    def test_lines_fit_a_terminal(self):
        for words in (["h200x2-vm"], ["h200x2-vm", "--all"], ["dgx-h100", "--fault", "gpu:3.width=8"], ["dgx-h100", "--fault", "no-driver"],
                      ["dgx-h100", "--fault", "fabric-down"], ["live"]):
            # What is to be typed stays in one piece.
            lines = [line for line in self.run_command("doctor", *words[1:], machine=words[0]).out.splitlines() if line.split()[:1] != ["type"]]
            self.assertGreater(len(lines), 3)
            self.assertEqual([line for line in lines if len(line) > 100], [], words)

    def test_a_fault_stands_before_or_after_the_verb_and_is_for_every_verb(self):
        sick = ["--fault", "gpu:3.width=8"]
        self.assertEqual(self.run_command(*sick, "doctor").out, self.run_command("doctor", *sick).out)
        self.assertIn("gen5 x8", self.succeed("copy", "host", "gpu:3", "--size", "64KiB", "--lanes", "1", "--explain", *sick).out)
        self.refused(USAGE, "--fault", "topo", "node7", *sick)

    def test_a_fault_changes_topology_and_route(self):
        route, fault = ["route", "host", "gpu:3", "--size", "1GiB", "--lanes", "1"], ["--fault", "gpu:3.width=4"]
        direct = ["--require", "direct"]
        well, sick = (self.json_of(*route, *direct, *more)["expected_gb_per_s"] for more in ([], fault))
        self.assertAlmostEqual(sick / well, 1 / 4, places=2)
        self.assertEqual(len(self.json_of(*route)["lanes"][0]["hops"]), 1)
        self.assertEqual(len(self.json_of(*route, *fault)["lanes"][0]["hops"]), 2, "past a neighbour's link")
        links = self.json_of("topo", "--fault", "gpu:3.width=8")["links"]
        self.assertEqual([link["width"] for link in links if link["a"] == "gpu:3" and link["kind"] == "pcie"], [8])

    def test_expectation(self):
        self.succeed("doctor", "--expect", "dgx-h100", "expectation")
        outcome = self.run_command("doctor", "--expect", "dgx-h100", "--fault", "gpu:6.lost", "expectation")
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("7 of 8 are there; missing: 0000:d1:00.0", outcome.out)
        golden = self.dir / "golden.json"
        self.succeed("topo", "--json", "--output", golden, machine=self.recorded())
        for expected in (golden, "h200x2-vm", "./h200x2-vm"):
            self.succeed("doctor", "--expect", expected, "expectation", machine=str(self.dir / "h200x2-vm"))
        self.refused(USAGE, "did you mean", "doctor", "--expect", "dgx-h10")

    def test_one_page_joins_doctor_drawing_and_probe(self):
        page = self.dir / "page.html"
        self.run_command("doctor", "--html", page, "--fault", "gpu:3.width=8")
        text = page.read_text()
        for words in ('class="warn" id="pcie-trained-down"', "<svg", "gpu:7", "cannot be seen"):
            self.assertIn(words, text)
        self.assertNotIn("Measured", text)
        self.assertNotIn("<?xml", text)
        self.run_command("doctor", "--html", page, "--probe", "--size", "64KiB", machine="pcie-2s")
        self.assertIn("Measured", page.read_text())

    def test_a_fleet_names_the_odd_machine(self):
        fleet = self.dir / "fleet"
        fleet.mkdir()
        for node in range(2):
            self.succeed("topo", "--json", "--output", fleet / f"node{node}.json")
        (fleet / "broken.json").write_text("{")
        self.refused(USAGE, ["takes 3", "broken.json is left out"], "doctor", "--fleet", fleet)
        (fleet / "broken.json").unlink()
        self.succeed("topo", "--json", "--output", fleet / "node2.json")
        self.assertIn("3 machines are alike", self.succeed("doctor", "--fleet", fleet).out)
        self.succeed("topo", "--json", "--output", fleet / "node3.json", "--fault", "gpu:3.width=8")
        (fleet / "notes.txt").write_text("mine")
        outcome = self.run_command("doctor", "--fleet", fleet)
        self.assertEqual(outcome.code, WARNINGS)
        self.assertIn("node3.json differs from most of the other 3", outcome.out)
        self.assertIn("gpu:3: lanes x8 instead of x16", outcome.out)
        self.assertIn("check: pcie-trained-down warn instead of pass", outcome.out)
        self.assertIn("notes.txt is left out", outcome.out)
        odd = json.loads(self.run_command("doctor", "--fleet", fleet, "--json").out)["odd"]
        self.assertEqual({one["machine"] for one in odd}, {"node3.json"})

    def test_the_matrix_of_nvidia_smi(self):
        matrix = self.write("smi.txt", b"GPU0 GPU1 NIC0 CPU Affinity\nGPU0 X NV18 PIX 0-7\nGPU1 NV18 X SYS 8-15\nNIC0 PIX SYS X\n")
        self.assertIn("NV18", self.succeed("topo", machine=matrix).out)
        self.assertIn("gpu-nic-far", self.run_command("doctor", machine=matrix).out)
        self.refused(USAGE, "no matrix of GPUs", "doctor", machine=self.write("other.txt", b"hello\n"))

    def test_the_text_of_lspci(self):
        link = "\tLnkCap: Port #0, Speed 32GT/s, Width x16\n\tLnkSta: Speed 32GT/s, Width x%d\n"
        text = "".join(f"0{i}:00.0 3D controller: NVIDIA Corporation GH100\n" + link % (8 if i == 2 else 16) for i in range(1, 5))
        outcome = self.run_command("doctor", machine=self.write("lspci.txt", text.encode()))
        self.assertEqual(outcome.code, WARNINGS, outcome.out)
        first = outcome.out.split("\nfirst\n")[1].splitlines()[0]
        self.assertIn("pcie-trained-down", first)
        self.assertIn("gpu:1", first)
        self.assertNotIn("NVLinks that this product has are down", outcome.out)

    def test_the_xml_of_hwloc(self):
        device = '<object type="PCIDev" pci_busid="0000:{:02x}:00.0" pci_type="{}" pci_link_speed="{}"></object>'
        below = device.format(0x83, "0302 [10de:2330]", 63.015385) + device.format(0x84, "0302 [10de:2330]", 31.507692)
        numa = '<object type="NUMANode" os_index="0"/><object type="Bridge" bridge_type="0-1" bridge_pci="0000:[80-9f]">'
        text = f'<topology version="2.0"><object type="Machine" os_index="0">{numa}{below}</object></object></topology>'
        outcome = self.run_command("doctor", machine=self.write("lstopo.xml", text.encode()))
        self.assertEqual(outcome.code, DONE, outcome.out + outcome.err)
        self.assertIn("2 GPUs", outcome.out.splitlines()[0])

    def test_links_that_a_virtual_machine_makes_up(self):
        def device(path, kind, vendor, number, speed, width):
            for name, value in {"class": kind, "vendor": vendor, "device": number, "current_link_speed": speed, "max_link_speed": speed,
                                "current_link_width": width, "max_link_width": width}.items():
                self.write(f"guest/sys/devices/{path}/{name}", f"{value}\n".encode())
            (devices / path.split("/")[-1]).symlink_to(f"../../../devices/{path}")

        top, devices = "pci0000:00/0000:00:01.0", self.dir / "guest/sys/bus/pci/devices"
        for folder in [devices, self.dir / "guest/proc", *(self.dir / f"guest/sys/devices/{top}/0000:01:00.0/0000:02:0{n}.0/0000:0{3 + n}:00.0"
                                                           for n in range(2))]:
            folder.mkdir(parents=True)
        self.write("guest/proc/cpuinfo", b"flags : hypervisor\n")
        device(top, "0x060400", "0x1b36", "0x000c", "32.0 GT/s PCIe", "16")
        device(f"{top}/0000:01:00.0", "0x060400", "0x104c", "0x8232", "2.5 GT/s PCIe", "1")
        for n in range(2):
            device(f"{top}/0000:01:00.0/0000:02:0{n}.0", "0x060400", "0x104c", "0x8233", "2.5 GT/s PCIe", "1")
            device(f"{top}/0000:01:00.0/0000:02:0{n}.0/0000:0{3 + n}:00.0", "0x030200", "0x10de", "0x2330", "32.0 GT/s PCIe", "16")
        found = re.sub(r"\s+", " ", self.run_command("doctor", "vm-hides-switches", machine="./guest").out)
        self.assertIn("warn vm-hides-switches this virtual machine makes up PCIe links", found)
        self.assertIn("gen1 x1 at pcie_switch:0, above quicker links", found)

    def test_names_of_machines(self):
        listed = self.json_of("machines", machine=None)["machines"]
        names = {machine["name"] for machine in listed}
        self.assertTrue({"dgx-h100", "h200x2-vm", "h200x4-vm", "hgx-h200"} <= names, names)
        self.assertIn("2 x NVIDIA H200", self.succeed("machines", machine=None).out)
        for machine in listed:
            self.assertTrue(self.succeed("topo", machine=machine["name"]).out.startswith(f"machine {machine['name']} ("), machine)
            self.assertIn(self.run_command("doctor", machine=machine["name"]).code, (DONE, WARNINGS, FAILED))
        self.recorded()
        for name in ("h200x2-vm", "./h200x2-vm"):
            self.assertIn("NV18", self.succeed("topo", machine=name).out)
        (self.dir / "empty").mkdir()
        for verb in ("topo", "doctor"):
            for folder in ("empty", "./empty"):
                self.refused(USAGE, "no record of a machine", verb, machine=folder)
            self.refused(USAGE, "did you mean 'dgx-h100'?", verb, machine="dgx-h10")

    def test_this_machine(self):
        outcome = self.run_command("doctor", "--json", machine="live")
        self.assertIn(outcome.code, (DONE, FAILED, WARNINGS, NO_GPU), outcome.err)
        found = json.loads(outcome.out)
        self.assertEqual(len(found["findings"]), sum(found[word] for word in ("pass", "warn", "fail", "unknown", "not_applicable")))

    def test_pages_are_written(self):
        self.succeed("doctor", "--pages", self.dir / "pages")
        ids = {page.stem for page in (self.dir / "pages").iterdir()} - {"README"}
        self.assertGreaterEqual(len(ids), 35)
        self.assertIn("acs-redirect.md", (self.dir / "pages" / "README.md").read_text())
        commands = [block for page in (self.dir / "pages").iterdir() for block in re.findall("^```\n(.*?)^```", page.read_text(), re.M | re.S)]
        self.assertGreater(len(commands), 20)
        # Whoever pastes a remedy keeps the machine running.
        self.assertEqual([text for text in commands if re.search("reboot|shutdown|poweroff|halt|kexec|init 6", text)], [])
        # The doctor's exit code is that of what it finds: what follows it is not to depend on that.
        self.assertEqual([text for text in commands if re.search("sidestep doctor.*&&", text)], [])

    def test_a_modelled_machine_can_be_probed(self):
        saved = self.dir / "probe.json"
        self.succeed("doctor", "--probe", "--size", "64KiB", "--save", saved)
        report = json.loads(saved.read_text())
        self.assertEqual(report["format"], "sidestep-probe")
        self.assertEqual(len(report["pairs"]), 8 * 7 * 2)
        self.assertTrue(all(pair["intact"] for pair in report["pairs"]))

    def test_what_makes_no_sense(self):
        self.refused(USAGE, "--probe", "doctor", "--save", "x")
        for words in [["--probe"], ["--peer", "n"]]:
            self.refused(USAGE, ["--size", "no bytes"], "doctor", *words, "--size", "0")
        self.refused(USAGE, "at least 4 KiB, not 8 B", "doctor", "--probe", "--size", "8")
        self.refused(USAGE, "no/such", "doctor", machine="/no/such/folder")
        self.refused(USAGE, "mig-no", "doctor", "--probe", "mig-no")
        self.refused(USAGE, "no-machine", "doctor", "--probe", "--expect", "no-machine")
        self.refused(USAGE, ["no/such", "does not exist"], "doctor", "--fleet", "no/such", machine=None)

    def test_options_that_would_not_be_followed(self):
        for one, others in [("--fleet .", ["--expect dgx-h100", "--all", "--html P", "--probe", "--peer n", "--pages D", "acs"]),
                            ("--peer n", ["--html P", "--expect dgx-h100", "--probe", "--save P", "acs"]),
                            ("--pages D", ["--html P", "--all", "--size 1", "acs"]), ("--size 1", [""])]:
            for other in others:
                with self.subTest(one=one, other=other):
                    self.refused(USAGE, one.split()[0], "doctor", *one.split(), *other.split())
        self.assertEqual(self.names(), [])


if __name__ == "__main__":
    unittest.main()
