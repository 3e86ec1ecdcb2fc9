"""sidestep publish: memory of one process that another copies to and from."""

import signal
import subprocess
import unittest

import harness
import test_save
from harness import FAILED, INTERRUPTED, USAGE

SIZE = 3 << 20


class Publish(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.env = harness.environment(SIDESTEP_PEER_FOLDER=str(self.dir / "peers"))

    def publish(self, place, name):
        """Starts a publisher, and waits until it says that the memory is there."""
        process = subprocess.Popen(
            [harness.BINARY, "--machine", harness.MACHINE, "publish", place, name, "--size", str(SIZE)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir, env=self.env)
        self.addCleanup(self.end, process)
        said = process.stdout.readline().decode()
        self.assertIn(f"as shared:{name}", said, process.stderr.read().decode() if not said else said)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def test_bytes_go_there_and_back(self):
        for place in ("gpu:3", "host"):
            with self.subTest(place=place):
                process = self.publish(place, "kv")
                sent = harness.bytes_that_differ(SIZE)
                source = self.write("sent", sent)
                self.succeed("copy", f"file:{source}", "shared:kv", "--verify", env=self.env)
                self.succeed("copy", "shared:kv", f"file:{self.dir}/back", env=self.env)
                self.assertEqual((self.dir / "back").read_bytes(), sent)
                self.end(process)

    def test_a_part_of_it(self):
        self.publish("gpu:0", "kv")
        self.succeed("copy", "shared:kv@1MiB+4KiB", f"file:{self.dir}/part", env=self.env)
        self.assertEqual((self.dir / "part").stat().st_size, 4096)

    def test_it_becomes_a_checkpoint(self):
        sent = harness.bytes_that_differ(SIZE)
        source = self.write("sent", sent)
        for name, place in (("g", "gpu:3"), ("h", "host")):
            self.publish(place, name)
            self.succeed("copy", f"file:{source}", f"shared:{name}", env=self.env)
        self.succeed("save", "whole=shared:g,dtype=f32", "part=shared:h@1MiB+24,dtype=i32,shape=2x3",
                     f"file=file:{source}@8+8", "out.safetensors", "--verify", env=self.env)
        self.assertEqual(test_save.parse((self.dir / "out.safetensors").read_bytes())[0],
                         {"whole": ("F32", [SIZE // 4], sent), "part": ("I32", [2, 3], sent[1 << 20 : (1 << 20) + 24]),
                          "file": ("U8", [8], sent[8:16])})
        self.refused(USAGE, ["reaches past"], "save", "w=shared:g@1MiB+3MiB", "out.safetensors", env=self.env)

    def test_a_name_that_is_taken(self):
        self.publish("gpu:0", "kv")
        self.refused(USAGE, "kv", "publish", "gpu:1", "kv", env=self.env)

    def test_nothing_is_there_after_it_ends(self):
        process = self.publish("gpu:0", "kv")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertIn(process.returncode, (0, INTERRUPTED))
        outcome = self.run_command("copy", "shared:kv", f"file:{self.dir}/x", env=self.env)
        self.assertIn(outcome.code, (FAILED, USAGE))
        self.assertIn("nothing is published as kv", outcome.err)
        self.assertNotIn("x", self.names())

    def test_a_killed_publisher_leaves_its_name_free(self):
        process = self.publish("gpu:0", "kv")
        self.end(process)
        outcome = self.run_command("copy", "shared:kv", f"file:{self.dir}/x", env=self.env)
        self.assertIn(outcome.code, (FAILED, USAGE))
        self.publish("gpu:1", "kv")
        self.succeed("copy", "shared:kv", f"file:{self.dir}/x", env=self.env)


if __name__ == "__main__":
    unittest.main()
