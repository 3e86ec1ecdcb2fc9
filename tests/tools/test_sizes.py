"""tools/check_sizes.py counts functions and files, and is not misled by braces in text."""

import unittest

from tree import TreeTest

import check_sizes


def functions(text):
    return [(name, last - first + 1) for name, first, last in check_sizes.c_functions(text)]


class FunctionsTest(unittest.TestCase):
    def test_free_functions_members_and_constructors(self):
        text = """
namespace a {
class B : public C {
public:
    B() : x_{1}, y_(2) {}
    explicit B(int x)
        : x_(x),
          y_{x} {
        run();
    }
    ~B() override { stop(); }
    bool operator==(const B& other) const { return x_ == other.x_; }
    auto f() const -> int {
        if (x_) { return 1; }
        return 0;
    }
private:
    int x_ = 0, y_{3};
    std::function<void()> z_ = {};
};
}
template <typename T = int>
Result<T> a::B::get(const T& t) const noexcept {
    return t;
}
"""
        self.assertEqual(functions(text), [("B", 1), ("B", 5), ("~B", 1), ("operator==", 1), ("f", 4),
                                           ("a::B::get", 4)])

    def test_braces_that_are_no_braces(self):
        text = """
#define OPEN {
int f() {
    // }
    /* } */
    const char* a = "}\\"}";
    const char* b = R"x(} )" })x";
    char c = '}';
    int d = 1'000;
    return d;
}
int g() { return 1; }
"""
        self.assertEqual(functions(text), [("f", 9), ("g", 1)])

    def test_data_is_no_function(self):
        text = "const int table[] = {\n" + "    f(1),\n" * 90 + "};\nconst Map map{\n" + "{1, 2},\n" * 90 + "};\n"
        self.assertEqual(functions(text + "int f() {}\n"), [("f", 1)])

    def test_a_lambda_kept_by_name_is_one(self):
        found = functions("const auto f = [](int x) {\n    return x;\n};\n")
        self.assertEqual([length for _, length in found], [3])

    def test_tests_and_kernels(self):
        text = ("TEST_F(Suite, Name) {\n    x();\n}\n"
                "__global__ void __launch_bounds__(512) kernel(char* a) {\n    a[0] = 1;\n}\n"
                'extern "C" {\nint c_function(void) {\n    return 0;\n}\n}\n')
        found = functions(text)
        self.assertEqual([length for _, length in found], [3, 3, 3])
        self.assertEqual(found[0][0], "Suite.Name")


class SizesTest(TreeTest):
    def long_function(self, lines):
        return "int f() {\n" + "    g();\n" * (lines - 2) + "}\n"

    def problems(self):
        return check_sizes.check_tree(self.root)

    def test_functions(self):
        self.write("src/base/a.cpp", self.long_function(70))
        self.assertEqual(self.problems(), [])
        self.write("src/base/a.cpp", self.long_function(71))
        self.assert_problem(self.problems(), "src/base/a.cpp:1", "f has 71 lines")

    def test_kernels_and_members(self):
        self.write("backends/cuda/a.cu", "__global__ void k(int x) {\n" + "    g();\n" * 80 + "}\n")
        self.assert_problem(self.problems(), "backends/cuda/a.cu")
        self.write("backends/cuda/a.cu", "struct S {\n    void k(int x) {\n" + "    g();\n" * 80 + "    }\n};\n")
        self.assert_problem(self.problems(), "k has 82 lines")

    def test_files(self):
        self.write("src/base/a.cpp", "int a;\n" * 500)
        self.assertEqual(self.problems(), [])
        self.write("src/base/a.cpp", "int a;\n" * 501)
        self.assert_problem(self.problems(), "src/base/a.cpp", "501 lines")

    def test_python(self):
        self.write("tools/a.py", "def f():\n" + "    g()\n" * 69)
        self.assertEqual(self.problems(), [])
        self.write("tools/a.py", "class A:\n    def f(self):\n" + "        g()\n" * 70)
        self.assert_problem(self.problems(), "tools/a.py:2", "f has 71 lines")

    def test_exceptions(self):
        self.write("src/base/a.cpp", self.long_function(80))
        self.write("tools/size_exceptions.txt", "# why\nsrc/base/a.cpp:f one table of states\n")
        self.assertEqual(self.problems(), [])
        self.write("tools/size_exceptions.txt", "src/base/a.cpp:f\n")
        self.assert_problem(self.problems(), "has no reason")
        self.write("tools/size_exceptions.txt", "src/base/a.cpp:f r\nsrc/base/gone.cpp it was long\n")
        self.assert_problem(self.problems(), "src/base/gone.cpp", "not too long any more")

    def test_an_empty_tree_is_not_a_good_one(self):
        self.assert_problem(self.problems(), "nothing was checked")

    def test_exit_codes(self):
        self.write("src/base/a.cpp", self.long_function(70))
        self.assertEqual(self.run_tool("check_sizes.py", "--root", self.root)[0], 0)
        self.write("src/base/a.cpp", self.long_function(71))
        self.assertEqual(self.run_tool("check_sizes.py", "--root", self.root)[0], 1)


if __name__ == "__main__":
    unittest.main()
