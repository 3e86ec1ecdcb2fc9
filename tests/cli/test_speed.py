"""How soon the command answers. Each limit is for the quickest of some tries: other programs may have held up the others."""

import os
import pty
import subprocess
import tarfile
import time
import unittest

import harness
from test_load import safetensors

TRIES = 20


class Speed(harness.CommandTest):
    def seconds(self, words, ends):
        """Until its first bytes are on a terminal, or until it ends."""
        master, slave = pty.openpty()
        env = harness.environment(TERM="xterm", NO_COLOR="1", SIDESTEP_PEER_FOLDER=str(self.dir / "peers"))
        start = time.monotonic()
        process = subprocess.Popen([harness.BINARY, *words], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, cwd=self.dir, env=env)
        os.close(slave)
        try:
            self.assertTrue(os.read(master, 4096), words)
            if ends:
                process.wait(harness.LIMIT_SECONDS)
            return time.monotonic() - start
        finally:
            process.kill()
            process.wait()
            os.close(master)

    def assert_soon(self, limit, *words, ends=False):
        with self.subTest(words=words):
            tries = []
            while len(tries) < TRIES and min(tries, default=limit) >= limit:
                tries.append(self.seconds(words, ends))
            self.assertLess(min(tries), limit)

    def test_doctor_of_a_recorded_machine(self):
        self.assert_soon(0.1, "doctor", "--machine", "hgx-h200", ends=True)
        with tarfile.open(harness.SOURCE_DIR / "tests" / "recorded" / "h200x2-vm.tgz") as archive:
            archive.extractall(self.dir)
        self.assert_soon(0.1, "doctor", "--machine", "./h200x2-vm", ends=True)

    def test_first_line_of_every_verb(self):
        self.write("m.safetensors", safetensors([("x", "U8", [4096], harness.bytes_that_differ(4096))]))
        machine = ["--machine", harness.MACHINE]
        # A driver takes longer to start than this.
        live = [] if os.path.exists("/dev/nvidiactl") else [["topo"], ["doctor"]]
        lines = [*live, ["topo", *machine], ["doctor", *machine], ["doctor", "--probe", *machine],
                 ["route", "host", "gpu:0", "--size", "1GiB", *machine], ["copy", "gpu:0", "gpu:1", "--size", "1GiB", *machine],
                 ["load", "m.safetensors", *machine], ["inspect", "m.safetensors"], ["save", "m.safetensors", "n.safetensors", *machine],
                 ["bench", *machine], ["bench", "collective", *machine], ["tune", *machine], ["run", *machine, "--", "true"],
                 ["publish", "gpu:0", "kv", "--size", "64MiB", *machine], ["serve", "--listen", "127.0.0.1:0", "--key-file", "key", *machine],
                 ["machines"], ["ps"], ["cufile", "stats"], ["repair", "."], ["help"], ["completion", "bash"],
                 ["topo", "diff", "dgx-h100", "dgx-a100"]]
        verbs = harness.subprocess.run([harness.BINARY, "completion", "words", "--", ""], capture_output=True, check=True).stdout
        self.assertEqual({line.split("\t")[0] for line in verbs.decode().splitlines()} - {words[0] for words in lines}, set())
        for words in lines:
            self.assert_soon(0.2, *words)


if __name__ == "__main__":
    unittest.main()
