"""The Debian packages: what each holds, and that dpkg installs them into an empty root, where the command runs."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from test_install import BUILD, run

CPACK = os.environ["CPACK"]
# Where each package's files are, by a file that it must hold.
HOLDS = {"sidestep": ["usr/bin/sidestep", "usr/share/man/man1/sidestep-copy.1", "usr/share/zsh/site-functions/_sidestep"],
         "libsidestep0": ["usr/lib/libsidestep.so.0"],
         "libsidestep-dev": ["usr/include/sidestep/sidestep.hpp", "usr/lib/libsidestep.so", "usr/lib/pkgconfig/sidestep.pc"],
         "sidestep-nccl": ["usr/lib/sidestep/nccl/libnccl.so.2"],
         "sidestep-cufile": ["usr/lib/sidestep/cufile/libcufile.so.0"]}


class DebianPackages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ["dpkg", "dpkg-shlibdeps"]:
            if shutil.which(tool) is None:
                raise unittest.SkipTest(f"{tool} is not here (dpkg-dev)")
        folder = tempfile.TemporaryDirectory(prefix="sidestep-packages-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        run(CPACK, "--config", f"{BUILD}/CPackConfig.cmake", "-G", "DEB", "-B", cls.folder)
        cls.packages = {path.name.split("_")[0]: path for path in cls.folder.glob("*.deb")}

    def test_each_holds_its_part_and_no_other(self):
        self.assertEqual(sorted(self.packages), sorted(HOLDS))
        seen = {}
        for name, path in self.packages.items():
            files = [line.split()[5].removeprefix("./") for line in run("dpkg-deb", "--contents", path).splitlines()]
            self.assertLessEqual(set(HOLDS[name]), set(files), name)
            for file in files:
                self.assertIn(seen.setdefault(file, name), (name,) if not file.endswith("/") else HOLDS, file)

    def test_they_say_what_they_need(self):
        field = lambda name, key: run("dpkg-deb", "--field", self.packages[name], key).strip()
        self.assertIn("libc6", field("sidestep", "Depends"))
        self.assertNotIn("libstdc++", field("sidestep", "Depends"))
        self.assertIn("libstdc++", field("libsidestep0", "Depends"))
        self.assertRegex(field("libsidestep-dev", "Depends"), r"libsidestep0 \(= [0-9.]+\)")
        self.assertEqual(field("sidestep", "Recommends"), "sidestep-nccl, sidestep-cufile")

    def test_dpkg_installs_them_and_the_command_runs(self):
        if os.getuid() != 0:
            self.skipTest("dpkg installs as root alone")
        root = self.folder / "root"
        (root / "var/lib/dpkg/info").mkdir(parents=True)
        (root / "var/lib/dpkg/updates").mkdir()
        (root / "var/lib/dpkg/status").touch()
        # The C library and the shell are this system's, not the root's; its list of libraries stays as it is.
        stub = self.folder / "bin" / "ldconfig"
        stub.parent.mkdir()
        stub.write_text(f"#!/bin/sh\ntouch {self.folder}/ldconfig-ran\n")
        stub.chmod(0o755)
        environment = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
        dpkg = ["dpkg", f"--root={root}", f"--log={self.folder}/log", "--force-depends", "--force-script-chrootless"]
        run(*dpkg, "--install", *self.packages.values(), env=environment)
        self.assertTrue((self.folder / "ldconfig-ran").exists())
        command = root / "usr/bin/sidestep"
        self.assertRegex(run(command, "--version"), r"^sidestep \d")
        self.assertIn("gpu:7", run(command, "--machine", "dgx-h100", "topo"))
        preloaded = run(command, "--quiet", "run", "--", "sh", "-c", "echo $LD_PRELOAD").strip().split(":")
        self.assertEqual(preloaded, [str(root / "usr/lib/sidestep" / name) for name in ["nccl/libnccl.so.2", "cufile/libcufile.so.0"]])
        run(*dpkg, "--purge", *self.packages, env=environment)
        self.assertFalse(command.exists())


class ShortWays(unittest.TestCase):
    def test_make_install_builds_no_tests(self):
        lines = run("make", "-n", "install", cwd=pathlib.Path(__file__).parents[2])
        targets = re.search(r"tools/build\.sh release \d+ (.*)", lines)[1].split()
        commands = run("ninja", "-C", BUILD, "-t", "commands", *targets)
        self.assertIn("cli/sidestep", commands)
        self.assertNotRegex(commands, r"[ /]tests/(unit|contract|capi)")

    def test_make_docs_compiles_no_kernels(self):
        lines = run("make", "-n", "docs", "PRESET=none-such", cwd=pathlib.Path(__file__).parents[2])
        self.assertIn("SIDESTEP_GPU_ARCHITECTURES='none' tools/build.sh none-such", lines)


if __name__ == "__main__":
    unittest.main()
