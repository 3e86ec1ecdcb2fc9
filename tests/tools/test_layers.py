"""tools/check_layers.py finds each kind of broken rule, and takes what is allowed."""

import unittest

from tree import TreeTest

import check_layers


class LayersTest(TreeTest):
    def setUp(self):
        super().setUp()
        for name in ("place", "route", "context"):
            self.write(f"include/sidestep/{name}.hpp", "#pragma once\n")
        for name in ("src/base/log", "src/base/try", "src/driver/cuda", "src/topology/model", "src/backend/backend",
                     "src/route/planner", "src/transfer/engine", "src/context/impl", "backends/file/file",
                     "backends/host/host", "backends/builtin", "bench/case"):
            self.write(f"{name}.hpp", "#pragma once\n")

    def problems_of(self, file, *includes):
        self.write(file, "".join(f"#include {name}\n" for name in includes))
        return check_layers.check_tree(self.root)

    def test_what_is_allowed(self):
        good = {
            "src/base/place.cpp": ("<sidestep/place.hpp>", "<string>", "<fmt/format.h>", '"config.hpp"'),
            "src/driver/cuda.cpp": ("<cuda.h>", "<dlfcn.h>", "<sys/socket.h>", "<liburing.h>",
                                    '"driver/cuda.hpp"', '"base/log.hpp"'),
            "src/topology/nvml_reader.cpp": ('"driver/cuda.hpp"', "<fcntl.h>"),
            "src/route/planner.cpp": ('"backend/backend.hpp"', '"topology/model.hpp"', "<sidestep/route.hpp>"),
            "backends/file/file.cpp": ('"backends/file/file.hpp"', '"driver/cuda.hpp"', '"backend/backend.hpp"'),
            "backends/builtin.cpp": ('"backends/file/file.hpp"', '"backends/host/host.hpp"', '"config.hpp"'),
            "src/context/context.cpp": ('"backends/builtin.hpp"', '"transfer/engine.hpp"'),
            "cli/copy.cpp": ("<sidestep/context.hpp>", '"base/try.hpp"', '"bench/case.hpp"', "<CLI/CLI.hpp>"),
            "bench/raw_cuda.cpp": ("<cuda.h>", '"base/try.hpp"'),
            "bench/html/page.cpp": ('"bench/case.hpp"', "<nlohmann/json.hpp>"),
            "tests/unit/bench/html_test.cpp": ('"bench/case.hpp"', "<gtest/gtest.h>"),
            "tests/page/make_page.cpp": ('"bench/case.hpp"', "<fstream>"),
            "examples/01_copy/main.cpp": ("<sidestep/context.hpp>", "<cstdio>"),
            "tests/unit/base/log_test.cpp": ('"base/log.hpp"', "<gtest/gtest.h>"),
            "tests/unit/route/planner_test.cpp": ('"route/planner.hpp"', '"backend/backend.hpp"'),
            "tests/unit/driver/cuda_test.cpp": ('"driver/cuda.hpp"', "<sys/mman.h>"),
            "tests/contract/host_test.cpp": ('"backends/host/host.hpp"', '"backend/backend.hpp"'),
        }
        for file, includes in good.items():
            self.assertEqual(self.problems_of(file, *includes), [], file)

    def assert_refused(self, file, include, *parts):
        problems = self.problems_of(file, include)
        self.assert_problem(problems, file, *parts)
        (self.root / file).unlink()

    def test_layers_above(self):
        self.assert_refused("src/base/x.cpp", '"driver/cuda.hpp"', "src/base may not include src/driver")
        self.assert_refused("src/route/x.cpp", '"driver/cuda.hpp"', "src/route may not include src/driver")
        self.assert_refused("src/backend/x.cpp", '"backends/host/host.hpp"', "may not include backends/host")
        self.assert_refused("src/transfer/x.cpp", '"driver/cuda.hpp"', "src/driver")
        self.assert_refused("backends/file/x.cpp", '"route/planner.hpp"', "src/route")
        self.assert_refused("src/topology/x.cpp", '"driver/cuda.hpp"', "src/driver")

    def test_faces_see_the_public_api_alone(self):
        for file in ("cli/x.cpp", "bench/x.cpp", "bench/html/x.cpp", "examples/01/x.cpp", "tests/cli/x.cpp", "tests/install/x/x.cpp"):
            self.assert_refused(file, '"base/log.hpp"', "may not include src/base")
        self.assert_refused("examples/01/x.cpp", '"base/try.hpp"', "may not include src/base")
        self.assert_refused("bench/x.cpp", "<cuda.h>", "CUDA")
        self.assert_refused("include/sidestep/place.hpp", '"base/log.hpp"', "may not include src/base")
        self.write("include/sidestep/place.hpp")
        self.assert_refused("include/sidestep/route.hpp", "<fmt/format.h>", "fmt")

    def test_a_test_sees_what_it_tests(self):
        self.assert_refused("tests/unit/base/x.cpp", '"driver/cuda.hpp"', "tests/unit/base may not include")
        self.assert_refused("tests/unit/route/x.cpp", '"transfer/engine.hpp"', "tests/unit/route may not include")

    def test_backends_do_not_know_each_other(self):
        self.assert_refused("backends/file/x.cpp", '"backends/host/host.hpp"', "a backend never includes another")

    def test_public_headers_of_a_higher_rank(self):
        self.assert_refused("src/base/x.cpp", "<sidestep/route.hpp>", "ranks above src/base")
        self.assert_refused("include/sidestep/place.hpp", "<sidestep/context.hpp>", "ranks above")
        self.write("include/sidestep/place.hpp")
        self.write("include/sidestep/unknown.hpp")
        self.assert_refused("cli/x.cpp", "<sidestep/unknown.hpp>", "has no home")

    def test_the_one_door_to_the_system(self):
        for header in ("cuda.h", "cuda_runtime.h", "nvml.h", "cufile.h", "liburing.h", "sys/socket.h",
                       "infiniband/verbs.h", "dlfcn.h", "sys/mman.h", "linux/io_uring.h"):
            for file in ("src/base/x.cpp", "backends/file/x.cpp", "src/transfer/x.cpp", "cli/x.cpp"):
                self.assert_refused(file, f"<{header}>", "may not include")
        self.assert_refused("src/transfer/x.cpp", "<unistd.h>", "POSIX")

    def test_routes_are_pure(self):
        for header in ("fstream", "thread", "mutex", "filesystem"):
            self.assert_refused("src/route/x.cpp", f"<{header}>", "pure functions")

    def test_libraries_not_in_the_table(self):
        self.assert_refused("src/base/x.cpp", "<boost/any.hpp>", "no group known")
        self.assert_refused("src/base/x.cpp", "<nlohmann/json.hpp>", "nlohmann-json")
        self.assert_refused("src/base/x.cpp", "<gtest/gtest.h>", "GoogleTest")

    def test_how_a_header_is_named(self):
        self.assert_refused("src/base/x.cpp", '"log.hpp"', 'write "base/log.hpp"')
        self.assert_refused("src/driver/x.cpp", '"../base/log.hpp"', "climbs out")
        self.assert_refused("src/base/x.cpp", '"sidestep/place.hpp"', "angle brackets")
        self.assert_refused("src/base/x.cpp", '"base/none.hpp"', "not a file of the project")
        self.assert_refused("src/route/x.cpp", '"config.hpp"', 'may not include "config.hpp"')

    def test_folders(self):
        self.assert_refused("src/base/utils/x.cpp", "<string>", "folder called utils")
        self.assert_refused("backends/common/x.cpp", "<string>", "folder called common")
        self.assert_refused("src/unheard_of/x.cpp", "<string>", "in no row")

    def test_cycles(self):
        self.write("src/base/a.hpp", '#include "base/b.hpp"\n')
        self.write("src/base/b.hpp", '#include "base/c.hpp"\n')
        self.assert_problem(self.problems_of("src/base/c.hpp", '"base/a.hpp"'), "include each other", "b.hpp")

    def test_an_empty_tree_is_not_a_good_one(self):
        self.assert_problem(check_layers.check_tree(self.root / "none"), "nothing was checked")

    def test_exit_codes(self):
        self.assertEqual(self.run_tool("check_layers.py", "--root", self.root)[0], 0)
        self.write("src/base/x.cpp", '#include "driver/cuda.hpp"\n')
        code, text = self.run_tool("check_layers.py", "--root", self.root)
        self.assertEqual(code, 1)
        self.assertIn("src/base/x.cpp:1:", text)


class TableTest(TreeTest):
    def test_the_table_is_sound(self):
        self.assertEqual(check_layers.check_table(), [])

    def test_a_table_that_lets_a_layer_look_up(self):
        kept = check_layers.LAYERS
        self.addCleanup(setattr, check_layers, "LAYERS", kept)
        check_layers.LAYERS = kept + [check_layers.Layer(1, "src/low", "", ("src/context",))]
        self.assert_problem(check_layers.check_table(), "src/low", "does not rank below")

    def test_the_document_holds_the_table(self):
        path = self.write("A.md", f"# A\n{check_layers.BEGIN}\n{check_layers.END}\ntail\n")
        self.assertEqual(self.run_tool("check_layers.py", "--document", path)[0], 1)
        self.assertEqual(self.run_tool("check_layers.py", "--document", path, "--write")[0], 0)
        self.assertEqual(self.run_tool("check_layers.py", "--document", path)[0], 0)
        self.assertTrue(path.read_text().endswith("\ntail\n"))
        self.assertIn(self.run_tool("check_layers.py", "--table")[1], path.read_text())
        path.write_text(path.read_text().replace("src/route", "src/elsewhere", 1))
        self.assertEqual(self.run_tool("check_layers.py", "--document", path)[0], 1)

    def test_a_document_without_marks(self):
        code, text = self.run_tool("check_layers.py", "--document", self.write("A.md", "# A\n"))
        self.assertEqual(code, 1)
        self.assertIn("must stand there once", text)


if __name__ == "__main__":
    unittest.main()
