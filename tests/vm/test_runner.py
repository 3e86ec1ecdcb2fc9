"""What run.py makes of a guest that ends in every way there is. Needs the cache that setup.py fills."""

import pathlib
import subprocess
import sys
import unittest

import cache
import run as runner

HERE = pathlib.Path(__file__).resolve().parent
HELLO = HERE / "jobs/hello"


def setUpModule():
    try:
        cache.Cache.open().kernel("any")
    except cache.NotSetUp as reason:
        print(f"vm: SKIPPED: {reason}")
        raise unittest.SkipTest(str(reason))


def run(ending, *options, kernel="any"):
    return subprocess.run([sys.executable, "-B", HERE / "run.py", f"--set=ENDING={ending}", *options, kernel, HELLO],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


class Verdicts(unittest.TestCase):
    def check(self, done, code, *texts):
        self.assertEqual(done.returncode, code, done.stdout)
        for text in texts:
            self.assertIn(text, done.stdout)

    def test_exit_code_0_on_every_kernel(self):
        for kernel in cache.Cache.open().ready["kernels"]:
            with self.subTest(kernel=kernel):
                version = ".".join(kernel.split(".")[:2])
                done = run("0", kernel=version)
                self.check(done, 0, f"hello from Linux {version}.")
                self.assertNotIn("console ends with", done.stdout)

    def test_exit_code_of_the_job_is_handed_on_and_not_tried_again(self):
        done = run("3")
        self.check(done, 3, "hello from Linux", "console ends with")
        self.assertEqual(done.stdout.count("exit code 3"), 1, done.stdout)

    def test_crash_of_the_job(self):
        done = run("crash")
        self.check(done, 139, "hello from Linux")
        self.assertEqual(done.stdout.count("exit code 139"), 1, done.stdout)

    def test_what_the_guest_writes_stays_in_the_guest(self):
        self.check(run("write"), 0, "\ngone\n")
        self.assertFalse((HELLO / "written").exists())


class NoVerdict(unittest.TestCase):
    def check(self, done, *texts):
        self.assertEqual(done.returncode, 99, done.stdout)
        self.assertEqual(done.stdout.count("once more"), 1, done.stdout)
        for text in texts:
            self.assertIn(text, done.stdout)

    def test_panic_of_the_guest(self):
        self.check(run("panic"), "Kernel panic", "it ended before the job did")

    def test_panic_with_an_exit_code_in_the_file(self):
        self.check(run("lie"), "Kernel panic", "the job's exit code is 0, and QEMU's status 0 does not fit it")

    def test_hang_of_the_job(self):
        self.check(run("hang", "--limit=6"), "it was not done within 6 s")

    def test_machine_that_qemu_refuses(self):
        done = subprocess.run([sys.executable, "-B", HERE / "run.py", "any", HELLO, "-device", "no-such-device"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.check(done, "no-such-device")


class TellingEnd(unittest.TestCase):
    def test_starts_at_a_panic_however_long_its_trace_is(self):
        console = "\n".join(["boot"] * 90 + ["[ 3.0] Kernel panic - not syncing"] + ["frame"] * 90)
        self.assertEqual(runner.telling_end(console)[0], "[ 3.0] Kernel panic - not syncing")
        self.assertEqual(len(runner.telling_end(console)), 91)

    def test_is_40_lines_otherwise(self):
        self.assertEqual(runner.telling_end("\n".join(map(str, range(100)))), [str(n) for n in range(60, 100)])
        self.assertEqual(runner.telling_end("one\ntwo"), ["one", "two"])


if __name__ == "__main__":
    unittest.main()
