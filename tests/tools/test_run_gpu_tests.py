"""tools/run_gpu_tests.sh counts what programs print, and is not fooled by one that ends early."""

import os
import shutil
import subprocess
import unittest

from tree import ROOT, TreeTest

PASS = "echo '[ RUN      ] A.one'; echo '[       OK ] A.one (3 ms)'"
SKIP = ("echo '[ RUN      ] A.two'; echo 'a.cpp:7: Skipped'; echo 'no GPU here'; echo; "
        "echo '[  SKIPPED ] A.two (0 ms)'")
FAIL = "echo '[ RUN      ] A.three'; echo '[  FAILED  ] A.three (1 ms)'; echo '[  FAILED  ] A.three'; exit 1"


class RunGpuTestsTest(TreeTest):
    def setUp(self):
        super().setUp()
        (self.root / "bin" / "tests").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "run_gpu_tests.sh", self.root / "run-gpu-tests.sh")

    def run_programs(self, *flags, env=None, **programs):
        """(exit code, lines) of the runner over programs given as shell text, all labelled gpu."""
        for name, text in programs.items():
            self.write(f"bin/tests/{name}", f"#!/bin/bash\n{text}\n").chmod(0o755)
        names = self.write("bin/tests/programs.txt", "".join(f"{name} contract,gpu\n" for name in programs))
        names.write_text(names.read_text() + "unit_x unit\n")
        ended = subprocess.run([self.root / "run-gpu-tests.sh", *flags], stdin=subprocess.DEVNULL, text=True, env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        return ended.returncode, ended.stdout.splitlines()

    def test_all_pass(self):
        code, lines = self.run_programs(a=PASS, b=PASS + ";" + SKIP)
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))
        self.assertIn("skipped, 1 no GPU here", lines)

    def test_a_failed_test(self):
        code, lines = self.run_programs(a=PASS, b=FAIL, c=PASS)
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))
        self.assertIn("[  FAILED  ] A.three (1 ms)", lines)

    def test_a_program_that_crashes_in_a_test(self):
        code, lines = self.run_programs(a=PASS + "; echo '[ RUN      ] A.four'; kill -SEGV $$", b=PASS)
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))
        self.assertIn("failed: a ended with code 139", lines)

    def test_a_program_that_crashes_outside_of_tests(self):
        code, lines = self.run_programs(a=PASS + "; exit 3")
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_program_that_is_not_there(self):
        self.run_programs(a=PASS)
        (self.root / "bin/tests/a").unlink()
        ended = subprocess.run([self.root / "run-gpu-tests.sh"], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(ended.returncode, 0)

    def test_nothing_but_skips_proves_nothing(self):
        code, lines = self.run_programs(a=SKIP)
        self.assertEqual((code, lines[-1]), (1, "0 passed, 0 failed, 1 skipped"))

    def test_flags_reach_the_programs(self):
        code, lines = self.run_programs("--gtest_filter=x", a='echo "got $1"; ' + PASS)
        self.assertEqual(code, 0)
        self.assertIn("got --gtest_filter=x", lines)

    def test_ranks_that_share_the_only_gpu_have_more_queues(self):
        for gpus, given, queues in ((1, {}, "32"), (1, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "8"), (2, {}, ""), (0, {}, "")):
            with self.subTest(gpus=gpus, given=given):
                lists = f"for i in $(seq {gpus}); do echo GPU; done" if gpus else "exit 9"
                self.write("smi/nvidia-smi", f"#!/bin/bash\n{lists}\n").chmod(0o755)
                env = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
                env |= {"PATH": f"{self.root / 'smi'}:{env['PATH']}"} | given
                code, lines = self.run_programs(env=env, a=PASS + '; echo "queues: $CUDA_DEVICE_MAX_CONNECTIONS"')
                self.assertEqual(code, 0)
                self.assertIn(f"queues: {queues}", lines)


if __name__ == "__main__":
    unittest.main()
