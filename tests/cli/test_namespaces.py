"""Three machines as three network namespaces of this one: copies between them, a link that goes down, a node that is killed."""

import filecmp
import os
import shutil
import signal
import subprocess
import time
import unittest

import harness
from harness import FAILED

SIZE = 5_000_001
# A silent machine is taken for dead after 5 s; what is busy beside may hold it up.
# Another connection is tried for 10 s more.
SILENCE_SECONDS = 40


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Namespaces(harness.CommandTest):
    """The client is joined to node a by two pairs of virtual Ethernet cards, and to node b by one; the nodes by two."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise unittest.SkipTest("namespaces of networks need root and ip (iproute2)")
        try:
            ip("netns", "add", f"sidestep-probe-{os.getpid()}")
            ip("netns", "del", f"sidestep-probe-{os.getpid()}")
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(f"this machine gives no namespace: {error.stderr.strip()}") from None

    def setUp(self):
        super().setUp()
        self.names = {name: f"sidestep-{name}-{os.getpid()}" for name in ("client", "a", "b")}
        for space in self.names.values():
            ip("netns", "add", space)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", space], check=False)
            self.inside(space, "ip", "link", "set", "lo", "up")
        self.nodes = {}
        for number, here, there in ((1, "client", "a"), (2, "client", "b"), (3, "client", "a"), (4, "a", "b"), (5, "a", "b")):
            self.join(number, here, there)
        for name, links in (("a", (1, 3)), ("b", (2, 4, 5))):
            self.nodes[name] = self.serve(links, name)
        self.env = harness.environment(SIDESTEP_NODES="a=10.99.1.2,b=10.99.2.2,a=10.99.3.2,b=10.99.4.2,b=10.99.5.2",
                                       SIDESTEP_KEY_FILE=str(self.dir / "key"))

    @staticmethod
    def inside(space, *words):
        subprocess.run(["ip", "netns", "exec", space, *words], check=True, capture_output=True)

    def join(self, number, client, node):
        here, there = f"ssc{number}", f"ssn{number}"
        client, node = self.names[client], self.names[node]
        self.inside(client, "ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", node)
        for space, card, address in ((client, here, f"10.99.{number}.1/24"), (node, there, f"10.99.{number}.2/24")):
            self.inside(space, "ip", "addr", "add", address, "dev", card)
            self.inside(space, "ip", "link", "set", card, "up")

    def serve(self, links, name):
        folder = self.dir / name
        folder.mkdir()
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[name], harness.BINARY, "--machine", harness.MACHINE, "serve", "--listen",
             ",".join(f"10.99.{number}.2" for number in links), "--allow", f"gpu:*,host=1GiB,file:{folder}=rw", "--key-file", self.dir / "key"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self.dir,
            env=harness.environment())
        self.addCleanup(self.end, process)
        self.assertIn("listening", process.stdout.readline().decode())
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def command(self, *words):
        return ["ip", "netns", "exec", self.names["client"], harness.BINARY, "--machine", harness.MACHINE, *words]

    def copy(self, *words):
        return subprocess.run(self.command("copy", *words), capture_output=True, text=True, env=self.env,
                              timeout=harness.LIMIT_SECONDS, check=False)

    def long_copy(self, node):
        """One that goes on for minutes, and has moved bytes by now."""
        process = subprocess.Popen(self.command("copy", "host", f"{node}/host", "--size", "64MiB", "--repeat", "100000"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.env)
        self.addCleanup(self.end, process)
        self.wait_for_bytes({"a": 1, "b": 2}[node], 64 << 20)
        self.assertIsNone(process.poll())
        return process

    def bytes_over(self, link, client="client"):
        statistics = f"/sys/class/net/ssc{link}/statistics/tx_bytes"
        told = subprocess.run(["ip", "netns", "exec", self.names[client], "cat", statistics], check=True,
                              capture_output=True, text=True)
        return int(told.stdout)

    def wait_for_one(self, before, count, client="client"):
        """The link of these by which the client has sent so many bytes more than before, once there is one."""
        until = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < until:
            for link, sent in before.items():
                if self.bytes_over(link, client) >= sent + count:
                    return link
            time.sleep(0.02)
        self.fail(f"less than {count} bytes went over {before}")

    def wait_for_bytes(self, link, count):
        self.wait_for_one({link: 0}, count)

    def test_files_and_memory_go_from_node_to_node(self):
        sent = harness.bytes_that_differ(SIZE)
        source = self.write("source", sent)
        for words in ((f"file:{source}", f"a/file:{self.dir}/a/one"), (f"a/file:{self.dir}/a/one", f"file:{self.dir}/two"),
                      (f"file:{self.dir}/two", f"b/file:{self.dir}/b/three"), ("gpu:0", "a/gpu:1"), ("b/gpu:2", "gpu:0")):
            outcome = self.copy(*words, "--verify")
            self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual((self.dir / "b/three").read_bytes(), sent)

    def link(self, number, state, client="client"):
        self.inside(self.names[client], "ip", "link", "set", f"ssc{number}", state)

    def write_large(self, path):
        part = harness.bytes_that_differ(64 << 20)
        with open(path, "wb") as large:
            for number in range(16):
                large.write(number.to_bytes(8, "little") + part)

    def test_bytes_between_nodes_pass_the_client_by(self):
        """One of the two links between them goes down midway."""
        self.write_large(self.dir / "a/large")
        for target in (f"b/file:{self.dir}/b/target", "b/gpu:1"):
            source = f"a/file:{self.dir}/a/large"
            before = {link: self.bytes_over(link, "a") for link in (4, 5)}
            process = subprocess.Popen(self.command("copy", source, target, "--explain"), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env)
            self.addCleanup(self.end, process)
            used = self.wait_for_one(before, 64 << 20, "a")
            self.assertIsNone(process.poll(), "it was over before the link went down")
            self.link(used, "down", "a")
            told, warned = process.communicate(timeout=SILENCE_SECONDS)
            self.assertEqual(process.returncode, 0, warned)
            self.assertIn("a sent them to b itself, by tcp", told + warned)
            self.link(used, "up", "a")
            if "file:" in target:  # memory is written to by the command, before it is copied to
                self.assertLess(sum(self.bytes_over(link) for link in (1, 2, 3)), 64 << 20)
        self.assertTrue(filecmp.cmp(self.dir / "a/large", self.dir / "b/target", shallow=False))

    def test_a_link_that_goes_down_midway_loses_nothing(self):
        self.write_large(self.dir / "large")
        target = self.dir / "a/target"
        process = subprocess.Popen(self.command("copy", f"file:{self.dir}/large", f"a/file:{target}"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=self.env)
        self.addCleanup(self.end, process)
        self.wait_for_bytes(1, 64 << 20)
        self.assertIsNone(process.poll(), "it was over before the link went down")
        self.link(1, "down")
        _, warned = process.communicate(timeout=SILENCE_SECONDS)
        self.assertEqual(process.returncode, 0, warned)
        self.assertIn("the connection to a was lost once; they went on over 10.99.3.2:47900", warned)
        self.assertTrue(filecmp.cmp(self.dir / "large", target, shallow=False))

    def test_a_link_that_flaps_loses_nothing(self):
        process = self.long_copy("b")
        self.link(2, "down")
        time.sleep(6.5)
        self.link(2, "up")
        time.sleep(4)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, warned = process.communicate(timeout=SILENCE_SECONDS)
        self.assertIn("b is reached again, at 10.99.2.2:47900", warned)

    def test_a_link_that_stays_down_ends_its_copies_alone(self):
        process = self.long_copy("b")
        self.link(2, "down")
        began = time.monotonic()
        other = self.copy("host", "a/host", "--size", "1MiB", "--verify")
        self.assertEqual(other.returncode, 0, other.stderr)
        _, told = process.communicate(timeout=SILENCE_SECONDS)
        self.assertEqual(process.returncode, FAILED, told)
        self.assertLess(time.monotonic() - began, SILENCE_SECONDS)
        self.link(2, "up")
        again = self.copy("host", "b/host", "--size", "1MiB", "--verify")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_a_node_that_is_killed_ends_its_copies(self):
        process = self.long_copy("b")
        self.nodes["b"].send_signal(signal.SIGKILL)
        _, told = process.communicate(timeout=SILENCE_SECONDS)
        self.assertEqual(process.returncode, FAILED, told)
        other = self.copy("host", "a/host", "--size", "1MiB", "--verify")
        self.assertEqual(other.returncode, 0, other.stderr)

    def test_an_interrupted_file_leaves_the_old_one(self):
        old = self.dir / "a/file"
        old.write_bytes(b"old")
        with open(self.dir / "large", "wb") as large:
            large.truncate(4 << 30)
        process = subprocess.Popen(self.command("copy", f"file:{self.dir}/large", f"a/file:{old}"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=self.env)
        self.addCleanup(self.end, process)
        time.sleep(0.3)
        process.kill()
        process.wait()
        time.sleep(1)
        self.assertEqual(old.read_bytes(), b"old")
        self.assertEqual(sorted(os.listdir(self.dir / "a")), ["file"])


if __name__ == "__main__":
    unittest.main()
