"""Every option at the ends of its range and beyond, as Python's callers give it."""

import os
import sys

import sidestep
import written
from package import PackageTest

SOURCE = os.environ["SIDESTEP_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests"))
from option_cases import cases  # noqa: E402

SIZE = 300_005
CONTENT = bytes(i * 2654435761 >> 13 & 0xFF for i in range(SIZE))
SHARED = ("chunk", "max_staging", "deadline", "stall_limit")
TIMES = ("deadline", "stall_limit")


class OptionsTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "a"
        self.file.write_bytes(CONTENT)

    def goes(self, case, call, *arguments, **named):
        """Calls as the case says; what it gives, or None where it failed as it may."""
        value = int(case.value) if case.value.lstrip("-").isdigit() else float(case.value)
        given = value / 1000 if case.option in TIMES else value
        where = f"{case.option}={given!r}, {call.__name__}"
        try:
            result = call(*arguments, **named, **{case.option: given})
        except sidestep.Error as error:
            if case.verdict == "refused":
                self.assertEqual(error.code, "invalid_argument", where)
                # A time that the library's own type does not hold is shown as it was given.
                shown = [f"{case.option} is {value}"] + ([f"{case.option} is {given} s"] if case.option in TIMES else [])
                self.assertTrue(error.message.startswith(tuple(shown)), f"{where}: {error}")
                self.assertRegex(error.hint, r"^it may be 0 \(.+\) to \d+", where)
            else:
                self.assertEqual(case.verdict, "tight", f"{where}: {error}")
                self.assertTrue(error.code in ("timed_out", "path_unavailable") or error.hint == "raise max_staging",
                                f"{where}: {error}")
            return None
        self.assertNotEqual(case.verdict, "refused", where)
        return result

    def test_of_copies(self):
        for case in cases(SOURCE, "lanes", *SHARED):
            with self.subTest(option=case.option, value=case.value):
                target = self.folder / "b"
                target.unlink(missing_ok=True)
                if self.goes(case, self.context.copy, self.file, target):
                    self.assertEqual(target.read_bytes(), CONTENT)
                memory = bytearray(SIZE)
                if self.goes(case, self.context.copy, self.file, memory):
                    self.assertEqual(memory, CONTENT)
                gpu = self.context.allocate("gpu:0", SIZE)
                if self.goes(case, self.context.copy, self.file, gpu):
                    self.assert_bytes(gpu, CONTENT)

    def test_of_routes(self):
        for case in cases(SOURCE, "lanes"):
            self.goes(case, self.context.route, "gpu:0", "gpu:1", SIZE)

    def test_of_loads(self):
        path = self.folder / "m.safetensors"
        written.write(path, {"x": ("U8", (SIZE,), CONTENT)})
        for case in cases(SOURCE, *SHARED):
            if case.option == "deadline":
                self.goes(case, self.context.open, path)
            for device in ("cpu", ["gpu:0", "gpu:1"]):
                loaded = self.goes(case, self.context.load, path, device)
                if loaded:
                    self.assert_bytes((loaded if device == "cpu" else loaded["gpu:1"])["x"], CONTENT)

    def test_of_saves(self):
        for case in cases(SOURCE, "shard_bytes", *SHARED):
            path = self.folder / f"{case.option}{case.value}"
            if case.option == "shard_bytes" and case.value != "0":
                path.mkdir()
            if self.goes(case, self.context.save, {"x": CONTENT}, path):
                self.assert_bytes(self.context.load(path, "cpu")["x"], CONTENT)

    def test_what_is_no_number(self):
        for option in ("chunk", "max_staging", "lanes", "deadline"):
            for wrong in ("1", [], {}, object, b"1"):
                error = self.fails("invalid_argument", self.context.copy, self.file, bytearray(SIZE), **{option: wrong})
                self.assertTrue(error.message.startswith(f"{option} is "), error)
                self.assertIn("it may be 0 (", error.hint)
        for wrong in (10**400, -(10**400)):
            for option in ("chunk", "deadline"):
                error = self.fails("invalid_argument", self.context.copy, self.file, bytearray(SIZE), **{option: wrong})
                self.assertIn("it may be 0 (", error.hint)
        # Not rounded to none, which 0 would be.
        error = self.fails("invalid_argument", self.context.copy, self.file, bytearray(SIZE), deadline=-0.0001)
        self.assertIn("deadline is -0.0001 s", error.message)
