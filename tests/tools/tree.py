"""A small tree of files in a temporary folder, for tests that need a bad example."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_tool(self, tool, *arguments):
        """(exit code, output) of a script of tools/."""
        ended = subprocess.run([str(ROOT / "tools" / tool), *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=600)
        return ended.returncode, ended.stdout

    def assert_problem(self, problems, *parts):
        """Exactly one problem, which names all the parts."""
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])
