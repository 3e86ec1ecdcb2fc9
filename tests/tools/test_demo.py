"""tools/demo.sh with commands that pretend: it ends with where the command is and what to type next, and only if all went well."""

import os
import re
import subprocess
import unittest

from tree import ROOT, TreeTest

# It has no direct path to an emulated GPU, and copies files.
COMMAND = """#!/bin/bash
echo "$*" >>"$LOG"
case " $* " in
*" --require direct "*) exit 3 ;;
" copy file:"*" file:"*) cp "${2#file:}" "${3#file:}" ;;
esac
"""


class DemoTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write("build/sidestep", COMMAND).chmod(0o755)
        self.write("build/example", "#!/bin/bash\n").chmod(0o755)

    def demo(self):
        ended = subprocess.run([ROOT / "tools" / "demo.sh", "build/sidestep", "build/example"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=60, cwd=self.root, env={**os.environ, "LOG": str(self.root / "log")})
        return ended.returncode, ended.stdout

    def test_it_ends_with_three_things_to_type(self):
        code, text = self.demo()
        self.assertEqual(code, 0, text)
        place, *lines = text.strip().splitlines()[-4:]
        self.assertIn("The command is build/sidestep;", place)
        typed = [re.match(r"  build/sidestep (.*?)   ", line)[1] for line in lines]
        self.assertEqual(typed, ["topo", "doctor", "--machine dgx-h100 topo"])

    def test_the_readme_says_where_the_command_is(self):
        (built,) = re.findall(r"tools/demo.sh (\S+)", (ROOT / "Makefile").read_text())
        self.assertIn(f"The command is then `{built.replace('$(PRESET)', 'release')}`.", (ROOT / "README.md").read_text())

    def test_a_path_that_was_not_to_be_had(self):
        self.write("build/sidestep", COMMAND.replace("exit 3", "exit 0")).chmod(0o755)
        code, text = self.demo()
        self.assertEqual(code, 1)
        self.assertNotIn("Three things", text)

    def test_a_copy_that_fails(self):
        self.write("build/sidestep", COMMAND.replace('cp "', 'echo "')).chmod(0o755)
        code, text = self.demo()
        self.assertNotEqual(code, 0)
        self.assertNotIn("Three things", text)


if __name__ == "__main__":
    unittest.main()
