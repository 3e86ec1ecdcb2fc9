"""Copies between GPUs of the made-up driver and a node, by a network plugin that takes their memory. That driver cannot have a
GPU see what a card has written: so neither end uses it, and both say why.

    test_network.py SIDESTEP PLUGIN
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

PLUGIN = sys.argv.pop(2)
SIDESTEP = sys.argv.pop(1)
NOT_SEEN = "cuFlushGPUDirectRDMAWrites"


class Network(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.env = {**os.environ, "SIDESTEP_NCCL_NET": PLUGIN, "SIDESTEP_NETWORK": "ncclnet",
                    "SIDESTEP_KEY_FILE": os.path.join(folder.name, "key")}
        node = subprocess.Popen([SIDESTEP, "serve", "--listen", "127.0.0.1:0", "--allow", "gpu:*"], env=self.env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(node.communicate)
        self.addCleanup(node.kill)
        self.env["SIDESTEP_NODES"] = "n=" + re.search(r"127\.0\.0\.1:\d+", node.stdout.readline()).group()

    def run_sidestep(self, *words):
        ended = subprocess.run([SIDESTEP, *words], env=self.env, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr

    def test_memory_that_a_gpu_would_not_see_goes_through_the_host(self):
        for way in (("gpu:0", "n/gpu:1"), ("n/gpu:1", "gpu:0")):
            self.assertRegex(self.run_sidestep("route", *way, "--size", "24MiB"),
                             "(?s)refused.*the cards do not reach gpu:0: .*" + NOT_SEEN)
            self.assertRegex(self.run_sidestep("copy", *way, "--size", "24MiB", "--verify"),
                             "n moved them .* its cards do not reach gpu:1: .*" + NOT_SEEN)


if __name__ == "__main__":
    unittest.main(verbosity=2)
