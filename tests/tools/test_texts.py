"""tools/check_texts.py finds words that do not belong in the tree, and links that lead nowhere."""

import unittest

from tree import TreeTest

import check_texts


class TextsTest(TreeTest):
    def problems(self):
        return check_texts.check_tree(self.root)

    def test_words(self):
        bad = ("/" "work/main/x", "/" "home/ann/x", "/" "root/x", "TO" "DO: later", "FIX" "ME", "pypi." "org")
        for text in bad:
            for name in ("src/a.cpp", "docs/a.md", "tools/a.sh", ".ci/run", "Makefile"):
                path = self.write(name, f"fine\nsome {text} here\n")
                self.assert_problem(self.problems(), f"{name}:2: ")
                path.unlink()

    def test_words_that_are_fine(self):
        self.write("src/a.cpp", "// the work/ folder, a hacksaw, todo lists and the root\n")
        self.assertEqual(self.problems(), [])

    def test_links(self):
        self.write("docs/b.md", "# Some Heading: here\n\n```\n# no heading\n```\n")
        self.write("README.md", "[b](docs/b.md) [h](docs/b.md#some-heading-here) [w](https://example.com)\n"
                                "`[x](nowhere.md)`\n```\n[y](nowhere.md)\n```\n")
        self.assertEqual(self.problems(), [])
        for target in ("docs/c.md", "/docs/b.md", "docs/b.md#other", "docs/b.md#no-heading", "#here"):
            self.write("README.md", f"# Top\n\n[b]({target})\n")
            self.assert_problem(self.problems(), "README.md:3", target)
        self.write("README.md", "![picture](docs/none.png)\n")
        self.assert_problem(self.problems(), "none.png")

    def test_links_start_at_their_own_document(self):
        self.write("docs/a.md", "[b](b.md)\n")
        self.assert_problem(self.problems(), "docs/a.md:1")
        self.write("docs/b.md", "x\n")
        self.assertEqual(self.problems(), [])

    def test_lists(self):
        self.write("docs/a.md", "# A\n- one\n  more\n- two\n\ntext\n\n- three\n```\ntext\n- no list\n```\n")
        self.assertEqual(self.problems(), [])
        self.write("docs/a.md", "text\n\nmore\n- one\n")
        self.assert_problem(self.problems(), "docs/a.md:4: no empty line before a list")

    def test_an_empty_tree_is_not_a_good_one(self):
        self.assert_problem(self.problems(), "nothing was checked")

    def test_exit_codes(self):
        self.write("a.md", "x\n")
        self.assertEqual(self.run_tool("check_texts.py", "--root", self.root)[0], 0)
        self.write("a.md", "[b](b.md)\n")
        self.assertEqual(self.run_tool("check_texts.py", "--root", self.root)[0], 1)


if __name__ == "__main__":
    unittest.main()
