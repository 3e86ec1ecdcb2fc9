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


if __name__ == "__main__":
    unittest.main(verbosity=2)
