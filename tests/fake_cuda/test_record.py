"""sidestep topo --record over the made-up driver: what only a machine with GPUs is asked for.

    test_record.py SIDESTEP
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SIDESTEP = sys.argv.pop(1)
SETTINGS = "NCCL_SHM_DISABLE=1\nNCCL_COMM_ID=10.1.2.3:99\n"


class Record(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.home = self.dir / "private"
        self.home.mkdir()

    def run_command(self, *arguments, **environment):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
        return subprocess.run([SIDESTEP, *arguments], capture_output=True, text=True, timeout=120, cwd=self.home,
                              env={**kept, "HOME": str(self.home), **environment})

    def switches(self, machine, **environment):
        said = self.run_command("doctor", "--machine", machine, "--json", **environment).stdout
        return next(one for one in json.loads(said)["findings"] if one["id"] == "environment-switch")["summary"]

    def recorded(self, **environment):
        record = str(self.dir / "record")
        made = self.run_command("topo", "--record", record, **environment)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("NCCL_SHM_DISABLE", self.switches("live", **environment))
        self.assertEqual(self.switches(record), self.switches("live", **environment))
        texts = [path.read_text(errors="replace") for path in pathlib.Path(record).rglob("*")
                 if path.is_file() and not path.is_symlink()]
        self.assertEqual([text for text in texts if "NCCL_COMM_ID" in text], ["NCCL_SHM_DISABLE=1\nNCCL_COMM_ID=masked\n"])
        return record, texts

    def test_the_file_in_the_home_folder(self):
        (self.home / ".nccl.conf").write_text(SETTINGS)
        record, texts = self.recorded()
        self.assertEqual([text for text in texts if "private" in text], [])
        self.assertEqual([path for path in pathlib.Path(record).rglob("*private*")], [])

    def test_the_file_that_a_variable_names(self):
        (self.home / ".nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
        (self.home / "mine").write_text(SETTINGS)
        self.recorded(NCCL_CONF_FILE=str(self.home / "mine"))

    def test_the_file_that_a_variable_names_in_the_working_folder(self):
        (self.home / "mine").write_text(SETTINGS)
        (self.home / "topology").write_text("<system/>")
        record, _ = self.recorded(NCCL_CONF_FILE="mine", NCCL_TOPO_FILE="topology")
        self.assertTrue((pathlib.Path(record) / "topology").is_file())
        self.assertEqual([path for path in pathlib.Path(record).rglob("*private*")], [])


if __name__ == "__main__":
    unittest.main()
