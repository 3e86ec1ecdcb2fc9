"""sidestep doctor: its report, exit codes and files, over the recorded machine with two H200 and this one."""

import json
import pathlib
import tarfile
import unittest

from harness import DONE, FAILED, SOURCE_DIR, USAGE, CommandTest

WARNINGS = 4
OFF = {"no-nvme", "no-rdma-card", "no-udev", "p2pdma-mode", "vm-hides-switches"}


class Doctor(CommandTest):
    def recorded(self):
        with tarfile.open(SOURCE_DIR / "tests" / "recorded" / "h200x2-vm.tgz") as archive:
            archive.extractall(self.dir)
        return str(self.dir / "h200x2-vm")

    def diagnosis(self, machine, code):
        outcome = self.run_command("doctor", "--json", machine=machine)
        self.assertEqual(outcome.code, code, outcome.err + outcome.out)
        return json.loads(outcome.out)

    def test_only_warnings_end_with_4(self):
        found = self.diagnosis(self.recorded(), WARNINGS)
        off = {finding["id"]: finding for finding in found["findings"] if finding["verdict"] == "warn"}
        self.assertEqual(set(off), OFF)
        for finding in off.values():
            self.assertTrue(finding["seen"] and finding["remedy"] and finding["command"], finding)
            self.assertTrue((SOURCE_DIR / finding["page"]).is_file(), finding["page"])
        self.assertEqual(found["fail"], 0)

    def test_a_failure_ends_with_1(self):
        machine = pathlib.Path(self.recorded())
        nvml = machine / "sidestep" / "nvml.json"
        record = json.loads(nvml.read_text())
        record["gpus"][0]["fabric"]["state"] = 1
        nvml.write_text(json.dumps(record))
        found = self.diagnosis(str(machine), FAILED)
        failing = [finding["id"] for finding in found["findings"] if finding["verdict"] == "fail"]
        self.assertIn("fabric-manager", failing)

    def test_text_names_what_is_off_and_what_to_type(self):
        outcome = self.run_command("doctor", machine=self.recorded())
        for name in OFF:
            self.assertIn(name, outcome.out)
        self.assertIn("/run/udev", outcome.out)
        self.assertIn("type", outcome.out)
        self.assertNotIn("nvmlDeviceGetMigMode", outcome.out)
        every = self.run_command("doctor", "--all", machine=str(self.dir / "h200x2-vm"))
        self.assertIn("nvmlDeviceGetMigMode", every.out)

    def test_this_machine(self):
        outcome = self.run_command("doctor", "--json", machine="live")
        self.assertIn(outcome.code, (DONE, FAILED, WARNINGS), outcome.err)
        found = json.loads(outcome.out)
        self.assertEqual(len(found["findings"]), found["pass"] + found["warn"] + found["fail"] + found["unknown"])

    def test_pages_are_written(self):
        self.succeed("doctor", "--pages", self.dir / "pages")
        ids = {page.stem for page in (self.dir / "pages").iterdir()} - {"README"}
        self.assertGreaterEqual(len(ids), 35)
        self.assertIn("acs-redirect.md", (self.dir / "pages" / "README.md").read_text())

    def test_a_modelled_machine_can_only_be_probed(self):
        self.refused(FAILED, "dgx-h100", "doctor")
        saved = self.dir / "probe.json"
        self.succeed("doctor", "--probe", "--size", "64KiB", "--save", saved)
        report = json.loads(saved.read_text())
        self.assertEqual(report["format"], "sidestep-probe")
        self.assertEqual(len(report["pairs"]), 8 * 7 * 2)
        self.assertTrue(all(pair["intact"] for pair in report["pairs"]))

    def test_what_makes_no_sense(self):
        self.refused(USAGE, "--probe", "doctor", "--save", "x")
        self.refused(USAGE, "no/such", "doctor", machine="/no/such/folder")


if __name__ == "__main__":
    unittest.main()
