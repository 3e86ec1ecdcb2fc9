"""sidestep doctor --probe over the made-up driver: a bridge that corrupts bytes is found, kept in mind and avoided.

    test_probe.py SIDESTEP
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SIDESTEP = sys.argv.pop(1)


def run(*arguments, **environment):
    ended = subprocess.run([SIDESTEP, *arguments], capture_output=True, text=True, timeout=120,
                           env={**os.environ, **environment})
    return ended.returncode, ended.stdout


class Probe(unittest.TestCase):
    def finding(self, diagnosis, name):
        return next(finding for finding in diagnosis["findings"] if finding["id"] == name)

    def test_a_sound_pair_is_intact(self):
        code, text = run("doctor", "--probe", "--size", "1MiB", "--json")
        self.assertIn(code, (0, 1, 4), text)
        self.assertEqual(self.finding(json.loads(text), "p2p-wrong-data")["verdict"], "pass", text)

    def test_without_a_probe_it_cannot_be_known(self):
        self.assertEqual(self.finding(json.loads(run("doctor", "--json")[1]), "p2p-wrong-data")["verdict"], "unknown")

    def test_a_pair_that_corrupts_bytes_is_found_and_avoided(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = str(pathlib.Path(folder) / "probe.json")
            code, text = run("doctor", "--probe", "--size", "1MiB", "--save", saved, "--json", FAKE_CUDA_CORRUPT_PEER="1")
            self.assertEqual(code, 1, text)
            finding = self.finding(json.loads(text), "p2p-wrong-data")
            self.assertEqual(finding["verdict"], "fail", text)
            pairs = json.loads(pathlib.Path(saved).read_text())["pairs"]
            wrong = [pair for pair in pairs if not pair["intact"]]
            self.assertEqual({(pair["from"], pair["to"]) for pair in wrong}, {(0, 1), (1, 0)}, pairs)
            self.assertEqual(wrong[0]["wrong_at"], 512 * 1024)

            code, text = run("route", "gpu:0", "gpu:1", "--json")
            self.assertTrue(json.loads(text)["direct"], text)
            code, text = run("route", "gpu:0", "gpu:1", "--json", SIDESTEP_PROBE_FILE=saved)
            route = json.loads(text)
            self.assertFalse(route["direct"], text)
            self.assertIn("wrong bytes", json.dumps(route["refused"]))
            # The same bytes arrive whole when they avoid the pair.
            code, text = run("copy", "gpu:0", "gpu:1", "--size", "1MiB", "--verify", FAKE_CUDA_CORRUPT_PEER="1",
                             SIDESTEP_PROBE_FILE=saved)
            self.assertEqual(code, 0, text)
            code, text = run("copy", "gpu:0", "gpu:1", "--size", "1MiB", "--verify", FAKE_CUDA_CORRUPT_PEER="1")
            self.assertEqual(code, 1, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
