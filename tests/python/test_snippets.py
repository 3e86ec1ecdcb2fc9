"""What README and the guide to the package show runs as pasted, in an empty folder, without a GPU."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"])


class SnippetTest(unittest.TestCase):
    def test_python(self):
        for document in ["README.md", "docs/python.md"]:
            snippets = re.findall(r"^```python\n(.*?)^```", (SOURCE / document).read_text(), re.M | re.S)
            self.assertTrue(snippets, document)
            for snippet in snippets:
                with self.subTest(snippet), tempfile.TemporaryDirectory() as folder:
                    done = subprocess.run([sys.executable, "-c", snippet], cwd=folder, capture_output=True, text=True,
                                          timeout=120, check=False)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn("gpu:5", done.stdout)


if __name__ == "__main__":
    unittest.main()
