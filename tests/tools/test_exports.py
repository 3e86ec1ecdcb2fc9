"""tools/check_exports.py finds symbols too many and too few, on libraries built here."""

import os
import subprocess
import unittest

from tree import TreeTest

import check_exports

GOOD = """
extern "C" __attribute__((visibility("default"))) int sidestep_open(const char*) { return 0; }
namespace sidestep {
struct __attribute__((visibility("default"))) Context { virtual ~Context(); void open(); };
Context::~Context() {}
void Context::open() {}
namespace cuda { __attribute__((visibility("default"))) void copy() {} }
namespace driver { void hidden() {} }
}
"""
HEADER = "/* sidestep_none(int x); */\nint sidestep_open(const char* name);\n"


class ExportsTest(TreeTest):
    def build(self, text, *flags):
        source = self.write("a.cpp", text)
        library = self.root / "liba.so"
        subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-fvisibility=hidden", "-o", library,
                        source, *flags], check=True, timeout=120)
        return library

    def problems(self, text, *flags, header=HEADER):
        return check_exports.check(str(self.build(text, *flags)), self.write("a.h", header))

    def test_what_is_meant_to_be_seen(self):
        self.assertEqual(self.problems(GOOD), [])

    def test_a_foreign_symbol(self):
        self.assert_problem(self.problems(GOOD + '__attribute__((visibility("default"))) int stray;'), "stray")
        self.assert_problem(self.problems(GOOD + 'namespace fmt { __attribute__((visibility("default"))) void f() {} }'),
                            "fmt::f", "does not belong")

    def test_a_symbol_of_the_inside(self):
        text = GOOD.replace("namespace driver { void", 'namespace driver { __attribute__((visibility("default"))) void')
        self.assert_problem(self.problems(text), "sidestep::driver::hidden", "inside")

    def test_functions_of_the_c_header(self):
        header = HEADER + "void sidestep_close(void);\n"
        self.assert_problem(self.problems(GOOD, header=header), "sidestep_close", "not exported")
        more = GOOD + 'extern "C" __attribute__((visibility("default"))) void sidestep_more() {}'
        self.assert_problem(self.problems(more), "sidestep_more", "does not declare")
        self.assertIn("declares no function", " ".join(self.problems(GOOD, header="")))

    def test_a_public_function_that_is_not_shown(self):
        def problems(text):
            library = self.build(text)
            subprocess.run([os.environ.get("CXX", "c++"), "-c", "-fvisibility=hidden", self.root / "a.cpp", "-o",
                            self.root / "a.o"], check=True, timeout=120)
            subprocess.run(["ar", "rcs", self.root / "a.a", self.root / "a.o"], check=True, timeout=60)
            return check_exports.check(library, archive=self.root / "a.a")

        self.assertEqual(problems(GOOD), [])
        self.assert_problem(problems(GOOD + "namespace sidestep { int forgotten() { return 1; } }"),
                            "sidestep::forgotten()", "SIDESTEP_API")
        self.assert_problem(problems('extern "C" __attribute__((visibility("default"))) void sidestep_x() {}'),
                            "holds no public function")

    def test_a_library_too_many(self):
        other = self.root / "libother.so"
        subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", self.write("other.cpp", "int other;"),
                        "-o", other], check=True, timeout=120)
        problems = self.problems(GOOD, "-Wl,--no-as-needed", other)
        self.assert_problem(problems, " needs ", "libother.so")

    def test_a_library_that_shows_nothing(self):
        self.assertIn("exports nothing", " ".join(self.problems("static int x; int* y = &x;")))


if __name__ == "__main__":
    unittest.main()
