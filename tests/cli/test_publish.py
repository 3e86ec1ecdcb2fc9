"""sidestep publish: memory of one process that another copies to and from."""

import fcntl
import os
import signal
import subprocess
import unittest

import harness
import test_save
from harness import FAILED, INTERRUPTED, USAGE

SIZE = 3 << 20


def end(process):
    process.kill()
    process.communicate()


def publish(test, place, name, env):
    """Starts a publisher, and waits until it says that the memory is there."""
    process = subprocess.Popen(
        [harness.BINARY, "--machine", harness.MACHINE, "publish", place, name, "--size", str(SIZE)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=test.dir, env=env)
    test.addCleanup(end, process)
    said = process.stdout.readline().decode()
    test.assertIn(f"as shared:{name}", said, process.stderr.read().decode() if not said else said)
    return process


class Publish(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.env = harness.environment(SIDESTEP_PEER_FOLDER=str(self.dir / "peers"))

    def publish(self, place, name):
        return publish(self, place, name, self.env)

    def test_bytes_go_there_and_back(self):
        for place in ("gpu:3", "host"):
            with self.subTest(place=place):
                process = self.publish(place, "kv")
                sent = harness.bytes_that_differ(SIZE)
                source = self.write("sent", sent)
                self.succeed("copy", f"file:{source}", "shared:kv", "--verify", env=self.env)
                self.succeed("copy", "shared:kv", f"file:{self.dir}/back", env=self.env)
                self.assertEqual((self.dir / "back").read_bytes(), sent)
                end(process)

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
        self.refused(USAGE, "kv", "publish", "gpu:1", "kv", "--size", "4KiB", env=self.env)

    def test_a_deadline(self):
        folder = self.dir / "peers"
        folder.mkdir(mode=0o700)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.refused(FAILED, ["deadline of 30 ms", "shared:kv"], "publish", "gpu:0", "kv", "--size", "4KiB", "--deadline", "30ms",
                     env=self.env)

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
        end(process)
        outcome = self.run_command("copy", "shared:kv", f"file:{self.dir}/x", env=self.env)
        self.assertIn(outcome.code, (FAILED, USAGE))
        self.publish("gpu:1", "kv")
        self.succeed("copy", "shared:kv", f"file:{self.dir}/x", env=self.env)


class OnANode(harness.NodeTest):
    """Memory that a program of another machine published."""

    def setUp(self):
        super().setUp()
        self.there = str(self.dir / "peers")
        self.sent = harness.bytes_that_differ(SIZE)
        source = self.write("sent", self.sent)
        env = harness.environment(SIDESTEP_PEER_FOLDER=self.there)
        self.publishers = [publish(self, place, name, env) for name, place in (("g", "gpu:3"), ("h", "host"), ("no", "gpu:0"))]
        for name in "gh":
            self.succeed("copy", f"file:{source}", f"shared:{name}", env=env)
        # This machine finds none of it in its own folder.
        self.serve("--allow", "shared:g,shared:h", SIDESTEP_PEER_FOLDER=self.there)
        self.env["SIDESTEP_PEER_FOLDER"] = str(self.dir / "peers here")

    def test_it_becomes_a_checkpoint(self):
        self.succeed("save", "whole=n/shared:g,dtype=f32", "part=n/shared:h@1MiB+24,dtype=i32,shape=2x3", "rest=n/shared:g@2MiB+1MiB",
                     f"file=file:{self.dir}/sent@8+8", "out.safetensors", "--verify", "--chunk", "256KiB", env=self.env)
        self.assertEqual(test_save.parse((self.dir / "out.safetensors").read_bytes())[0],
                         {"whole": ("F32", [SIZE // 4], self.sent), "part": ("I32", [2, 3], self.sent[1 << 20 : (1 << 20) + 24]),
                          "rest": ("U8", [1 << 20], self.sent[2 << 20 :]), "file": ("U8", [8], self.sent[8:16])})

    def test_a_part_is_copied(self):
        self.succeed("copy", "n/shared:h@1MiB+24", "file:part", env=self.env)
        self.assertEqual((self.dir / "part").read_bytes(), self.sent[1 << 20 : (1 << 20) + 24])
        self.succeed("copy", "file:part", "n/shared:h@8+24", env=self.env)
        self.succeed("copy", "n/shared:h@0+32", "file:part", env=self.env)
        self.assertEqual((self.dir / "part").read_bytes(), self.sent[:8] + self.sent[1 << 20 : (1 << 20) + 24])

    def test_what_cannot_be_taken(self):
        end(self.publishers[1])
        for code, words, place in [
            (FAILED, ["n says", "shared:no is not among", "has to allow it"], "n/shared:no"),
            (USAGE, ["n says", "nothing is published as h", "is its process running"], "n/shared:h"),
            (USAGE, ["nothing is published as h", "is its process running"], "n/shared:h@0+8"),
            (USAGE, ["n says", "reaches past", f"{SIZE} bytes"], "n/shared:g@1MiB+3MiB"),
            (USAGE, ["did you mean 'n/shared:g'"], "n/shard:g"),
            (USAGE, ["n/gpu:3 has no bytes", "publishes"], "n/gpu:3"),
            (USAGE, ["nosuch.invalid", "sidestep serve"], "nosuch.invalid/shared:g"),
        ]:
            with self.subTest(place):
                self.refused(code, words, "save", f"w={place}", "out.safetensors", env=self.env)
                self.assertNotIn("out.safetensors", self.names())


if __name__ == "__main__":
    unittest.main()
