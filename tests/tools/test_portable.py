"""tools/check_portable.py finds programs that would not start elsewhere."""

import os
import subprocess
import unittest

from tree import TreeTest

import check_portable


RUNTIME_INSIDE = ("-static-libstdc++", "-static-libgcc", "-Wl,--gc-sections")


class PortableTest(TreeTest):
    def build(self, *flags):
        source = self.write("a.cpp", "#include <string>\nint main(int n, char**) "
                                     "{ return std::to_string(n).empty(); }\n")
        program = self.root / "a"
        subprocess.run([os.environ.get("CXX", "c++"), source, "-o", program, *flags], check=True, timeout=120)
        return program

    def test_a_program_with_its_runtime_inside(self):
        program = self.build(*RUNTIME_INSIDE)
        self.assertEqual(check_portable.check(program, check_portable.built_on()), [])
        code, text = self.run_tool("check_portable.py", program)
        self.assertEqual(code, 0, text)

    def test_a_program_that_needs_a_runtime(self):
        program = self.build()
        problems = check_portable.check(program, check_portable.built_on())
        self.assertIn(f"{program} needs libstdc++.so.6", problems)
        self.assertEqual(self.run_tool("check_portable.py", program)[0], 1)

    def test_a_program_that_needs_a_newer_c_library(self):
        program = self.build(*RUNTIME_INSIDE)
        self.assert_problem(check_portable.check(program, "2.3"), "needs glibc 2.", "2.3 is allowed")
        self.assertEqual(self.run_tool("check_portable.py", "--glibc", "2.3", program)[0], 1)


if __name__ == "__main__":
    unittest.main()
