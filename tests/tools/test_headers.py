"""cmake/header_check.cmake: a header that does not stand alone breaks the build."""

import os
import subprocess
import unittest

from tree import ROOT, TreeTest

CMAKE = os.environ.get("CMAKE", "cmake")


class HeadersTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write("CMakeLists.txt", f"""
cmake_minimum_required(VERSION 3.22)
project(headers LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 20)
add_compile_options(-Wall -Werror)
list(APPEND CMAKE_MODULE_PATH {ROOT}/cmake)
include(header_check)
sidestep_header_check(headers ROOT ${{CMAKE_SOURCE_DIR}} FOLDERS src EXCEPT left_out)
sidestep_header_check(some ROOT ${{CMAKE_SOURCE_DIR}} FOLDERS src ONLY good)
""")
        self.write("src/good.hpp", "#pragma once\n#include <string>\ninline std::string name() { return {}; }\n")
        self.write("src/deep/er/c.h", "#include <stddef.h>\nsize_t count(void);\n")
        self.write("src/left_out.hpp", "#error this one needs a library that is not here\n")

    def run_cmake(self, *arguments):
        return subprocess.run([CMAKE, *arguments], cwd=self.root, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=200)

    def build(self):
        """(whether it was built, what was printed)"""
        if not (self.root / "b").exists():
            configured = self.run_cmake("-G", "Ninja", "-S", ".", "-B", "b")
            self.assertEqual(configured.returncode, 0, configured.stdout)
        built = self.run_cmake("--build", "b")
        return built.returncode == 0, built.stdout

    def test_headers_that_stand_alone_and_then_others_that_do_not(self):
        self.assertEqual(self.build()[0], True)
        # A new file is found without anybody listing it.
        bad = self.write("src/new.hpp", "#pragma once\ninline std::string name() { return {}; }\n")
        built, text = self.build()
        self.assertFalse(built)
        self.assertIn("new.hpp", text)
        bad.unlink()
        self.write("src/deep/er/c.h", "#include <stddef.h>\nsize_t count(void);\nnamespace cxx {}\n")
        built, text = self.build()
        self.assertFalse(built, "a C header was not compiled as C")
        self.assertIn("c.h", text)

    def test_a_source_that_includes_its_header_first_is_the_check_of_it(self):
        for first, checked in (("own.hpp", False), ("good.hpp", True)):
            self.write("src/own.hpp", "#pragma once\n")
            self.write("src/own.cpp", f'// Own.\n#include "{first}"\n#include "own.hpp"\n')
            self.run_cmake("-G", "Ninja", "-S", ".", "-B", first)
            self.assertEqual((self.root / first / "headers/src_own_hpp.cpp").exists(), checked, first)


if __name__ == "__main__":
    unittest.main()
