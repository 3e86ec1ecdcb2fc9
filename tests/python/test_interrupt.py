"""Ctrl-C while the package waits, and what never answers."""

import signal
import subprocess
import sys
import threading
import time
import unittest

import sidestep
from package import PackageTest, environment

# Small chunks make a copy slow on any machine: a quarter of a million of them.
SLOW = {"chunk": 4096}
SIZE = 1 << 30


class InterruptTest(PackageTest):
    def slow_file(self):
        path = self.folder / "long"  # and of data: holes are left out of a copy
        with open(path, "wb") as file:
            for _ in range(SIZE >> 20):
                file.write(b"data" * (1 << 18))
        return path

    def test_a_signal_during_a_copy(self):
        target = self.context.allocate("cpu", SIZE)

        def progress(done, total):
            signal.raise_signal(signal.SIGINT)

        with self.assertRaises(KeyboardInterrupt):
            self.context.copy(self.slow_file(), target, progress=progress, **SLOW)

    def test_what_progress_raises_cancels(self):
        written = self.folder / "written"

        def progress(done, total):
            raise ZeroDivisionError("of progress")

        with self.assertRaisesRegex(ZeroDivisionError, "of progress"):
            self.context.copy(self.slow_file(), written, progress=progress, **SLOW)
        self.assertFalse(written.exists())  # the copy was cancelled, not left to itself

    def test_a_signal_from_outside(self):
        # No `progress`, whose Python code would see the signal too. A copy that went on to its end would leave the file.
        written = self.folder / "written"
        program = f"""
import time, sidestep
context = sidestep.Context("dgx-h100")
try:
    print("running", flush=True)
    context.copy({str(self.slow_file())!r}, {str(written)!r}, chunk=4096)
    print("ended")
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
"""
        child = subprocess.Popen([sys.executable, "-B", "-c", program], stdout=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "running\n")
        time.sleep(0.1)  # so that it is most likely in the copy; before it, the result is the same
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        words = child.communicate(timeout=120)[0].split()
        self.assertEqual(words[:1], ["interrupted"])
        self.assertFalse(written.exists())
        # Nobody promises a time on a busy machine; on a quiet one the package does.
        print(f"KeyboardInterrupt came {float(words[1]) - sent:.3f} s after the signal", file=sys.stderr)

    def test_a_signal_while_a_group_waits_for_its_ranks(self):
        # Nothing but the signal ends this wait.
        program = """
import sidestep
context = sidestep.Context("dgx-h100")
try:
    print("running", flush=True)
    context.group("gpu:0", id=sidestep.new_group_id(), rank=0, ranks=2, timeout=0)
except KeyboardInterrupt:
    print("interrupted")
"""
        child = subprocess.Popen([sys.executable, "-B", "-c", program], stdout=subprocess.PIPE, text=True,
                                 env=environment(SIDESTEP_PEER_FOLDER=str(self.folder / "peers")))
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "running\n")
        time.sleep(0.2)  # as above
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.communicate(timeout=60)[0], "interrupted\n")

    def test_what_a_hung_read_writes_to_stays(self):
        (self.folder / "hang.c").write_text("""
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
ssize_t pread(int file, void* to, size_t size, off_t at) {
    struct stat read, hung;
    if (fstat(file, &read) == 0 && stat(getenv("HANGS"), &hung) == 0 && read.st_ino == hung.st_ino)
        while (access(getenv("GOES_ON"), F_OK) != 0) usleep(1000);
    const struct iovec one = {to, size};
    return preadv(file, &one, 1, at);
}
ssize_t pread64(int, void*, size_t, off_t) __attribute__((alias("pread")));
""")
        built = subprocess.run(["cc", "-shared", "-fPIC", "-o", "hang.so", "hang.c"], cwd=self.folder, capture_output=True, text=True,
                               check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        source, goes_on = self.folder / "source", self.folder / "goes on"
        source.write_bytes(b"x" * (1 << 20))
        program = f"""
import time, weakref, numpy, sidestep
context = sidestep.Context("dgx-h100")
def copy(source):
    array = numpy.zeros(1 << 20, "u1")
    try:
        context.copy(source, array, deadline=0.2, page_cache="use")
    except sidestep.Error as error:
        print(error)
    return weakref.ref(array)
array = copy({str(source)!r})
print("in flight:", array() is not None and not array().any())
open({str(goes_on)!r}, "w").close()
until = time.monotonic() + 60
while array() is not None and time.monotonic() < until:
    time.sleep(0.001)
print("gone:", array() is None)
print("nothing there:", copy({str(self.folder / "none")!r})() is None)
"""
        done = subprocess.run([sys.executable, "-B", "-c", program], stdout=subprocess.PIPE, text=True, timeout=120, check=False,
                              env=environment(LD_PRELOAD=str(self.folder / "hang.so"), HANGS=str(source), GOES_ON=str(goes_on),
                                              SIDESTEP_FILE_IO="threads"))
        lines = done.stdout.splitlines()
        self.assertIn("still in flight", lines[0])
        self.assertEqual([*lines[1:3], lines[-1]], ["in flight: True", "gone: True", "nothing there: True"])

    def test_other_threads_are_not_interrupted(self):
        results = []

        def work():
            results.append(self.context.copy(bytes(1 << 20), self.context.allocate("gpu:0", 1 << 20)).bytes)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(results, [1 << 20])


if __name__ == "__main__":
    unittest.main()
