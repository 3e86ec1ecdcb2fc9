"""Statistics of the library that stands in for cuFile: the layout of 1.19, and what `sidestep cufile stats` sees of a process."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

LIBRARY = os.environ["SIDESTEP_CUFILE_LIBRARY"]
BINARY = os.environ["SIDESTEP_BINARY"]
LIMIT_SECONDS = 120

# What the programs below begin with: `handle` is of a file of 1 MiB, `memory` as large.
BEGIN = """
import ctypes, os, struct, sys
class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
library = ctypes.CDLL(os.environ["SIDESTEP_CUFILE_LIBRARY"])
def call(name, *arguments):
    function = getattr(library, name)
    function.restype = Error
    error = function(*arguments)
    assert error.err == 0, (name, error.err)
for name in ["cuFileRead", "cuFileWrite", "cuFileReadv"]:
    getattr(library, name).restype = ctypes.c_ssize_t
call("cuFileDriverOpen")
handle = ctypes.c_void_p()
descriptor = os.open(sys.argv[1], os.O_RDWR)
call("cuFileHandleRegister", ctypes.byref(handle), struct.pack("<iiq8x", 1, 0, descriptor))
memory = ctypes.create_string_buffer(1 << 20)
def read(size):
    return library.cuFileRead(handle, memory, ctypes.c_size_t(size), ctypes.c_long(0), ctypes.c_long(0))
"""


class Stats(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sidestep-cufile-")
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "file"
        self.file.write_bytes(bytes(1 << 20))
        self.env = dict(os.environ, SIDESTEP_MACHINE="dgx-h100",
                        CUFILE_ENV_PATH_JSON=str(pathlib.Path(__file__).parent / "empty.json"))

    def start(self, program, **variables):
        process = subprocess.Popen([sys.executable, "-c", BEGIN + program, self.file], env=dict(self.env, **variables),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_structures_of_1_19(self):
        process = self.start("""
call("cuFileSetStatsLevel", 3)
parts = (Part * 2)(Part(ctypes.addressof(memory), 1000), Part(ctypes.addressof(memory) + 1000, 24))
assert library.cuFileReadv(handle, parts, ctypes.c_size_t(2), ctypes.c_long(0), 0) == 1024
for level in (1, 2, 3):
    room = ctypes.create_string_buffer(b"\\xee" * 8192, 8192)
    call(f"cuFileGetStatsL{level}", room)
    print(len(room.raw.rstrip(b"\\xee")), *struct.unpack_from("<4Q", room, 512))
""", SIDESTEP_CUFILE_VERSION="1.19")
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
        # readv_ops, writev_ops: of the parts of one call, each is counted.
        self.assertEqual(out.decode().split("\n")[:3], [f"{size} 2 0 0 0" for size in (624, 1136, 5112)])

    def test_a_process_that_runs(self):
        process = self.start("""
assert read(1 << 20) == 1 << 20 and read(4096) == 4096
assert library.cuFileRead(handle, None, ctypes.c_size_t(1), ctypes.c_long(0), ctypes.c_long(0)) < 0
child = os.fork()  # has the descriptor too
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
""")
        child = int(process.stdout.readline())
        outcome = subprocess.run([BINARY, "cufile", "stats", "--json"], stdout=subprocess.PIPE, check=True, timeout=LIMIT_SECONDS)
        found = {one["process"]: one for one in json.loads(outcome.stdout)["processes"]}
        self.assertNotIn(child, found)
        operations = found[process.pid]["operations"]["read"]
        self.assertEqual((operations["done"], operations["failed"], operations["bytes"]), (2, 1, (1 << 20) + 4096))
        self.assertEqual(sum(operations[way] for way in ["gpu_direct_bytes", "o_direct_bytes", "page_cache_bytes"]), operations["bytes"])
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, signal.SIGKILL)
        outcome = subprocess.run([BINARY, "cufile", "stats", str(process.pid)], capture_output=True, timeout=LIMIT_SECONDS, check=False)
        self.assertEqual(outcome.returncode, 2)
        self.assertIn(f"there is no process {process.pid}", outcome.stderr.decode())


if __name__ == "__main__":
    unittest.main()
