"""The wheel: pip builds it from pyproject.toml and installs it into an empty environment, where the package, the command and
the NCCL drop-in work. SIDESTEP_WHEEL_PYTHON names the interpreter, which need not be the one that runs the test."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import sidestep

PYTHON = os.environ.get("SIDESTEP_WHEEL_PYTHON", sys.executable)
SOURCE = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"])
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
# As the build folder, so that the compiler cache has everything.
BUILD = {**CLEAN, "SKBUILD_CMAKE_DEFINE": "SIDESTEP_WERROR=ON", "SIDESTEP_GPU_ARCHITECTURES": "none"}


def version_of(interpreter):
    """As names of wheels have it. Skips where the interpreter is missing."""
    try:
        asked = subprocess.run([interpreter, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"], env=CLEAN,
                               capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise unittest.SkipTest(f"there is no {interpreter} on PATH") from None
    if asked.returncode != 0:
        raise unittest.SkipTest(f"{interpreter} does not run: {asked.stderr.strip()}")
    return asked.stdout.strip()


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.version = version_of(PYTHON)
        if PYTHON != sys.executable and cls.version == version_of(sys.executable):
            raise unittest.SkipTest("the wheel of this Python has a test of its own")
        folder = tempfile.TemporaryDirectory(prefix="sidestep-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.place = cls.folder / "environment"
        if subprocess.run([PYTHON, "-m", "venv", cls.place], capture_output=True, check=False).returncode != 0:
            raise unittest.SkipTest("this Python makes no virtual environments (python3-venv)")
        asked = cls.pip("download", "--quiet", "--no-deps", "--dest", cls.folder / "asked", "scikit-build-core", check=False)
        if asked.returncode != 0:
            raise unittest.SkipTest("no package index is reached, which has scikit-build-core")
        subprocess.run([SOURCE / "tools" / "wheel.sh", cls.folder / "made", PYTHON], check=True, env=BUILD,
                       stdout=subprocess.DEVNULL)
        (cls.wheel,) = (cls.folder / "made").iterdir()
        cls.pip("install", "--no-index", "--quiet", cls.wheel)

    @classmethod
    def pip(cls, *words, check=True):
        return subprocess.run([cls.place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", *words], env=CLEAN,
                              check=check, capture_output=True)

    def run_there(self, *words):
        done = subprocess.run([self.place / "bin" / words[0], *words[1:]], capture_output=True, text=True, env=CLEAN,
                              cwd=self.folder, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_the_name_tells_python_and_the_c_library(self):
        self.assertRegex(self.wheel.name, rf"^sidestep-{sidestep.__version__}-{self.version}-{self.version}-manylinux_2_\d+_\w+\.whl$")

    def test_what_it_holds(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            entries = archive.read(f"sidestep-{sidestep.__version__}.dist-info/entry_points.txt").decode()
        self.assertIn(f"sidestep/_core.cpython-{self.version[2:]}-", "".join(names))
        self.assertIn("[vllm.general_plugins]\nsidestep = sidestep.vllm:register\n", re.sub(" *= *", " = ", entries))
        for name in ["sidestep/py.typed", "sidestep/_core.pyi", "sidestep/bin/sidestep", "sidestep/lib/sidestep/nccl/libnccl.so.2",
                     "sidestep/lib/sidestep/cufile/libcufile.so.0"]:
            self.assertIn(name, names)
        self.assertTrue(all(name.split("/")[0] in ("sidestep", f"sidestep-{sidestep.__version__}.dist-info") for name in names))

    def test_the_package_copies(self):
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
        self.assertTrue(self.run_there("python", "-c", program).startswith(str(self.place)))

    def test_the_command_and_the_drop_in(self):
        for command in [["sidestep"], ["python", "-m", "sidestep"]]:
            self.assertEqual(self.run_there(*command, "--version"), f"sidestep {sidestep.__version__}\n")
            self.assertIn("gpu:7", self.run_there(*command, "--machine", "dgx-h100", "topo"))
        preloaded = self.run_there("sidestep", "--quiet", "run", "--", "sh", "-c", "echo $LD_PRELOAD").strip().split(":")
        for library in ["nccl/libnccl.so.2", "cufile/libcufile.so.0"]:
            self.assertTrue(any(path.endswith(f"sidestep/lib/sidestep/{library}") for path in preloaded), preloaded)


class CommandTest(unittest.TestCase):
    def test_python_m_sidestep(self):
        done = subprocess.run([sys.executable, "-m", "sidestep", "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, f"sidestep {sidestep.__version__}\n")


if __name__ == "__main__":
    unittest.main()
