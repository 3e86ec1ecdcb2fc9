"""Every option at the ends of its range and beyond, as written on the command line."""

import json
import struct
import sys
import unittest

import harness
from harness import DONE, FAILED, PATH_UNAVAILABLE, USAGE

sys.path.insert(0, str(harness.SOURCE_DIR / "tests"))
from option_cases import cases  # noqa: E402

SIZE = 300_005


class OptionsTest(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.content = harness.bytes_that_differ(SIZE)
        self.write("a", self.content)

    def goes(self, case, *words):
        """Whether the command did what it was asked for; it fails as the case says, or not at all."""
        name = "--" + case.option.replace("_", "-")
        value = case.value + ("ms" if case.option in ("deadline", "timeout") else "")
        line = [*words[:1], f"{name}={value}", *words[1:]]
        outcome = self.run_command(*line)
        said = f"{line}: {outcome.code} {outcome.err}"
        self.assertNotIn("hang", outcome.err, said)
        if case.verdict == "refused":
            self.assertEqual(outcome.code, USAGE, said)
            self.assertTrue(case.option in outcome.err or name in outcome.err, said)
            self.assertIn(case.value, outcome.err, said)
            self.assertRegex(outcome.err, r"it may be 0 \(.+\) to \d+", said)
            self.assertEqual(outcome.err.count("\n"), 1, said)
        elif case.verdict == "tight" and outcome.code != DONE:
            self.assertIn(outcome.code, (FAILED, USAGE, PATH_UNAVAILABLE), said)
            self.assertRegex(outcome.err, "passed|raise max_staging", said)
        else:
            self.assertEqual(outcome.code, DONE, said)
        return outcome.code == DONE

    def test_of_copy(self):
        for case in cases(harness.SOURCE_DIR, "chunk", "max_staging", "lanes", "deadline"):
            with self.subTest(option=case.option, value=case.value):
                (self.dir / "b").unlink(missing_ok=True)
                if self.goes(case, "copy", "file:a", "file:b"):
                    self.assertEqual((self.dir / "b").read_bytes(), self.content)
                self.goes(case, "copy", "file:a", "gpu:0", "--verify")
                self.goes(case, "copy", "file:a", "host", "--verify")
                self.goes(case, "copy", "gpu:0", "gpu:1", "--verify", "--size", str(SIZE))

    def test_of_route(self):
        for case in cases(harness.SOURCE_DIR, "chunk", "max_staging", "lanes", "deadline"):
            self.goes(case, "route", "gpu:0", "gpu:1", "--size", "1MiB")

    def test_of_load(self):
        header = json.dumps({"x": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
        self.write("m.safetensors", struct.pack("<Q", len(header)) + header + self.content)
        for case in cases(harness.SOURCE_DIR, "chunk", "max_staging", "deadline"):
            with self.subTest(option=case.option, value=case.value):
                self.goes(case, "load", "m.safetensors", "--to", "gpu:0,gpu:1", "--verify")

    def test_of_run(self):
        for case in cases(harness.SOURCE_DIR, "timeout"):
            self.goes(case, "run", "--no-nccl", "--no-cufile", "--", "true")
        self.assertEqual(self.succeed("run", "--no-nccl", "--no-cufile", "--timeout", "0", "--", "sh", "-c", "echo $SIDESTEP_GROUP_TIMEOUT").out,
                         "0\n")

    def test_times_are_rounded_up(self):
        # 0.1 ms is not none, and a year is not more than a year.
        for text, seconds in (("0.1ms", "0.001"), ("8760h", "31536000"), ("1.0001", "1.001")):
            words = ("run", "--no-nccl", "--no-cufile", "--timeout", text, "--", "sh", "-c", "echo $SIDESTEP_GROUP_TIMEOUT")
            self.assertEqual(self.succeed(*words).out, seconds + "\n")
        self.refused(USAGE, "timeout is 31536000001 ms", "run", "--timeout", "31536000.0001", "--", "true")

    def test_sizes_of_memory(self):
        for size in (2**63, 2**64 - 4096, 2**64 - 1):
            for places in (("host", "gpu:0"), ("host", "host"), ("gpu:0", "file:b"), ("host", "file:b")):
                outcome = self.run_command("copy", *places, f"--size={size}")
                self.assertEqual(outcome.code, FAILED, outcome.err)
                self.assertNotIn("hang", outcome.err)
        self.assertEqual(self.names(), ["a"])


if __name__ == "__main__":
    unittest.main()
