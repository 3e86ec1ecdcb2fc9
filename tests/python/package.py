"""What the tests of the package have alike: sidestep, NumPy, and a folder that goes with the test."""

import os
import pathlib
import tempfile
import unittest

try:
    import numpy
except ImportError:  # the classes below skip, with the reason
    numpy = None

import sidestep

MACHINE = "dgx-h100"  # its GPUs are emulated in host memory


class PackageTest(unittest.TestCase):
    """Tests that need NumPy: it is what results are compared with."""

    @classmethod
    def setUpClass(cls):
        if numpy is None:
            raise unittest.SkipTest("this Python has no NumPy (python3-numpy)")
        cls.context = sidestep.Context(MACHINE)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sidestep-python-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_bytes(self, tensor, expected):
        """The bytes of a sidestep.Tensor."""
        self.assertEqual(bytes(memoryview(tensor.as_bytes())), expected)

    def fails(self, code, call, *arguments, **named):
        """The Error that the call raises."""
        with self.assertRaises(sidestep.Error) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        return caught.exception

    def rewrite(self, path, content):
        """In place, and at another time. The clock of the file system may stand still for some milliseconds."""
        before = path.stat()
        while path.stat().st_mtime_ns == before.st_mtime_ns:
            path.write_bytes(content)


def environment(**more):
    """That of a child process: this one's, with the package on its path."""
    return {**os.environ, **more}
