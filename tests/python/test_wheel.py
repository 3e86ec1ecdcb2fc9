"""The wheel: its records are right, and pip installs it into an empty environment where it works."""

import base64
import csv
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipfile

import sidestep

TOOL = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"]) / "tools" / "wheel.py"


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="sidestep-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.wheel = cls.make(cls.folder / "one")

    @staticmethod
    def make(into):
        package = pathlib.Path(sidestep.__file__).parent
        subprocess.run([sys.executable, "-B", TOOL, "--package", package, "--version", sidestep.__version__,
                        "--license", TOOL.parent.parent / "LICENSE", "--into", into], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = into.iterdir()
        return wheel

    def test_the_name_tells_python_and_machine(self):
        version = "cp%d%d" % sys.version_info[:2]
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        self.assertEqual(self.wheel.name, f"sidestep-{sidestep.__version__}-{version}-{version}-{platform}.whl")

    def test_every_file_is_recorded(self):
        with zipfile.ZipFile(self.wheel) as archive:
            self.assertIsNone(archive.testzip())
            info = f"sidestep-{sidestep.__version__}.dist-info"
            recorded = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
            self.assertEqual(set(recorded), set(archive.namelist()))
            for name, (digest, size) in recorded.items():
                if name == f"{info}/RECORD":
                    self.assertEqual((digest, size), ("", ""))
                    continue
                data = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, int(size)), (f"sha256={expected}", len(data)), name)
            self.assertEqual([name for name in archive.namelist() if name.endswith(".so")],
                             ["sidestep/_core" + sysconfig.get_config_var("EXT_SUFFIX")])
            self.assertTrue({"sidestep/py.typed", "sidestep/_core.pyi", f"{info}/LICENSE", f"{info}/WHEEL"} <= set(recorded))

    def test_the_same_input_gives_the_same_bytes(self):
        self.assertEqual(self.make(self.folder / "two").read_bytes(), self.wheel.read_bytes())

    def test_pip_installs_it(self):
        place = self.folder / "environment"
        if subprocess.run([sys.executable, "-m", "venv", place], capture_output=True).returncode != 0:
            self.skipTest("this Python makes no virtual environments (python3-venv)")
        python = place / "bin" / "python"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([python, "-m", "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check", self.wheel],
                       check=True, env=clean)
        program = """
import sidestep
context = sidestep.Context("dgx-h100")
tensor, back = context.allocate("gpu:3", 1 << 20), bytearray(1 << 20)
data = bytes(range(256)) * 4096
context.copy(data, tensor)
context.copy(tensor, back)
assert bytes(back) == data
print(sidestep.__file__)
"""
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, env=clean, cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith(str(place)), done.stdout)
        subprocess.run([python, "-m", "pip", "uninstall", "--yes", "--quiet", "sidestep"], check=True, env=clean)


if __name__ == "__main__":
    unittest.main()
