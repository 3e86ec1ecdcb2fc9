"""tools/bundle.sh packs programs that run elsewhere, and refuses others."""

import os
import subprocess
import tarfile
import unittest

from tree import ROOT, TreeTest


RUNTIME_INSIDE = ("-static-libstdc++", "-static-libgcc", "-Wl,--gc-sections")


class BundleTest(TreeTest):
    def build(self, name, text, *flags):
        source = self.write(f"{name}.cpp", text)
        subprocess.run([os.environ.get("CXX", "c++"), source, "-o", self.root / name, *flags], check=True,
                       timeout=120)
        return self.root / name

    def pack(self, *lines, most=()):
        archive = self.root / "sidestep-1.2.3.tar.xz"
        listed = self.write("list", "".join(f"{line}\n" for line in lines))
        code, text = self.run_tool("bundle.sh", listed, archive, *most)
        return code, text, archive

    def test_programs_and_their_labels(self):
        command = self.build("command", "int main() { return 7; }\n", *RUNTIME_INSIDE)
        test = self.build("gpu_test", "int main() {}\n", *RUNTIME_INSIDE)
        code, text, archive = self.pack(f"{command} bin -", f"{test} bin/tests contract,gpu")
        self.assertEqual(code, 0, text)
        with tarfile.open(archive) as packed:
            packed.extractall(self.root / "out")
        top = self.root / "out" / "sidestep-1.2.3"
        self.assertEqual((top / "bin/tests/programs.txt").read_text(), "gpu_test contract,gpu\n")
        self.assertEqual(subprocess.run([top / "bin/command"]).returncode, 7)
        self.assertTrue((top / "LICENSE").exists())
        self.assertTrue(os.access(top / "run-gpu-tests.sh", os.X_OK))

    def test_a_program_that_would_not_start_elsewhere(self):
        command = self.build("command", "#include <string>\nint main(int n, char**) "
                                        "{ return std::to_string(n).empty(); }\n")
        code, text, archive = self.pack(f"{command} bin -")
        self.assertEqual(code, 1)
        self.assertIn("needs libstdc++.so.6", text)
        self.assertFalse(archive.exists())

    def test_an_archive_that_grew(self):
        # 2 MiB that xz cannot make smaller.
        noise = self.root / "noise.bin"
        noise.write_bytes(os.urandom(2 << 20))
        command = self.build("command", f'asm(".data\\n.global n\\nn: .incbin \\"{noise}\\"\\n");\n'
                                        'extern char n[];\nint main() { return n[0]; }\n',
                             *RUNTIME_INSIDE, "-no-pie")
        code, text, archive = self.pack(f"{command} bin -", most=["1048576"])
        self.assertEqual(code, 1, text)
        self.assertIn("1048576 are allowed", text)
        self.assertFalse(archive.exists())


class RealBundleTest(TreeTest):
    """The build's own bundle, unpacked somewhere else."""

    def test_it_runs_from_anywhere(self):
        archive = self.root / "sidestep.tar.xz"
        code, text = self.run_tool("bundle.sh", os.environ["SIDESTEP_BUNDLE_LIST"], archive)
        self.assertEqual(code, 0, text)
        with tarfile.open(archive) as packed:
            packed.extractall(self.root / "out")
        top = self.root / "out" / "sidestep"
        environment = {"PATH": "/usr/bin:/bin"}

        def run(*command):
            return subprocess.run(command, env=environment, cwd=self.root, stdin=subprocess.DEVNULL, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200)

        self.assertRegex(run(top / "bin/sidestep", "--version").stdout, r"^sidestep \d")
        self.assertEqual(run(top / "bin/sidestep", "bench", "--list").returncode, 0)
        self.assertEqual(run(top / "bin/tests/contract_host").returncode, 0)
        # Passed where there is a GPU, skipped where there is none; failed nowhere.
        closing = run(top / "run-gpu-tests.sh").stdout.splitlines()[-1]
        self.assertRegex(closing, r"^\d+ passed, 0 failed, \d+ skipped$")


if __name__ == "__main__":
    unittest.main()
