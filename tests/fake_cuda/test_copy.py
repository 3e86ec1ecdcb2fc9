"""sidestep copy over the made-up driver: what goes ahead of the first timed copy is none of the user's.

    test_copy.py SIDESTEP
"""

import json
import os
import subprocess
import sys
import unittest

SIDESTEP = sys.argv.pop(1)


class Copy(unittest.TestCase):
    def test_the_first_use_of_a_path_has_no_part_in_the_deadline(self):
        line = [SIDESTEP, "copy", "gpu:0", "gpu:1", "--size", "1MiB", "--repeat", "2", "--deadline", "2s", "--json"]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=120,
                               env={**os.environ, "FAKE_CUDA_SLOW_PEERS": "3"}, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        receipt = json.loads(ended.stdout)
        self.assertEqual(receipt["bytes"], 1 << 20)
        self.assertEqual(len(receipt["runs"]), 2)


class Gap(unittest.TestCase):
    # NVML counts three GPUs and has lost gpu:1; CUDA shows the two others, as 0 and 1.
    def run_with_a_gap(self, code, *words):
        ended = subprocess.run([SIDESTEP, *words], capture_output=True, text=True, timeout=120,
                               env={**os.environ, "SIDESTEP_STAND_IN_LOST": "1"}, check=False)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr

    def test_the_gpus_that_are_left_keep_their_numbers(self):
        self.assertIn("gpu:2", self.run_with_a_gap(0, "topo"))
        self.assertIn("gpu:0 -> gpu:2", self.run_with_a_gap(0, "route", "gpu:0", "gpu:2"))
        for pair in (("gpu:0", "gpu:2"), ("gpu:2", "gpu:0"), ("host", "gpu:2"), ("gpu:2", "host")):
            receipt = json.loads(self.run_with_a_gap(0, "copy", *pair, "--size", "1MiB", "--verify", "--json"))
            self.assertEqual(receipt["bytes"], 1 << 20)
        self.assertIn("gpu:1 does not exist", self.run_with_a_gap(2, "copy", "host", "gpu:1", "--size", "1MiB"))

    def test_the_doctor_names_the_lost_one_and_looks_at_the_others(self):
        findings = json.loads(self.run_with_a_gap(1, "doctor", "--probe", "--size", "1MiB", "--json"))["findings"]
        verdicts = {finding["id"]: finding["verdict"] for finding in findings}
        self.assertEqual((verdicts["gpu-lost"], verdicts["p2p-wrong-data"]), ("fail", "pass"), verdicts)


if __name__ == "__main__":
    unittest.main(verbosity=2)
