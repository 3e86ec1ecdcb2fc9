"""sidestep serve, and copies to and from places of the machine that serves."""

import os
import re
import resource
import signal
import socket
import subprocess
import unittest
import urllib.error
import urllib.request

import harness
from harness import FAILED, INTERRUPTED, USAGE

SIZE = 3_000_001


class Network(harness.NodeTest):
    def test_bytes_go_there_and_back(self):
        self.serve("--allow", self.allow)
        sent = harness.bytes_that_differ(SIZE)
        source = self.write("in/sent", sent)
        self.succeed("copy", f"n/file:{source}", f"file:{self.dir}/got", "--verify", env=self.env)
        self.assertEqual((self.dir / "got").read_bytes(), sent)
        self.succeed("copy", f"file:{self.dir}/got", f"n/file:{self.dir}/out/put", "--verify", env=self.env)
        self.assertEqual((self.dir / "out/put").read_bytes(), sent)
        for ends in (("host", "n/gpu:3"), ("n/gpu:1", "gpu:0"), ("n/host", "host")):
            with self.subTest(ends=ends):
                outcome = self.succeed("copy", *ends, "--size", "5MiB", "--verify", "--explain", env=self.env)
                self.assertIn("tcp sockets", outcome.out)

    def test_what_it_says_and_how_it_ends(self):
        memory, files = self.allow.split(",file:", 1)
        process, said = self.serve("--allow", memory, "--allow", "file:" + files, "--name", "here")
        self.assertEqual(said["allowed"],
                         ["gpu:*", "host=64MiB", f"file:{self.dir}/in", f"file:{self.dir}/out=rw"])
        self.assertEqual(os.stat(self.key).st_mode & 0o777, 0o600)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertIn(process.returncode, (0, INTERRUPTED))
        outcome = self.run_command("copy", "host", "n/host", "--size", "4KiB", env=self.env)
        self.assertEqual(outcome.code, USAGE)
        self.assertIn("sidestep serve", outcome.err)

    def test_a_folder_whose_name_is_no_text(self):
        folder = os.fsencode(self.dir) + b"/\xff"
        os.mkdir(folder)
        _, said = self.serve("--allow", b"file:" + folder)
        self.assertEqual(said["allowed"], [f"file:{self.dir}/\ufffd"])

    def test_ten_thousand_connections_of_strangers(self):
        """More than the node has descriptors: who means it gets in all the same."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if before[1] < 10_100:
            self.skipTest(f"a process may have {before[1]} descriptors here, and the test needs 10100")
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        process, said = self.serve("--allow", self.allow, "--metrics", "127.0.0.1:0")
        resource.setrlimit(resource.RLIMIT_NOFILE, (10_100, before[1]))
        host, port = said["listening"][0].split(":")
        strangers = []
        for _ in range(10_000):
            strangers.append(socket.create_connection((host, int(port)), timeout=harness.LIMIT_SECONDS))
            self.addCleanup(strangers[-1].close)
        self.succeed("copy", "host", "n/gpu:1", "--size", "1MiB", "--verify", env=self.env)
        self.assertIsNone(process.poll())
        for one in strangers:
            one.close()
        with urllib.request.urlopen(f"http://{said['metrics'][0]}/metrics", timeout=harness.LIMIT_SECONDS) as page:
            refused = re.search(r'refused_total{reason="full"} (\d+)', page.read().decode("ascii"))
        self.assertGreater(int(refused[1]), 9_000)

    def test_a_full_disk_there(self):
        """The copy fails and says so; the file that was there stays, and nothing else."""
        small = self.dir / "out/small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", small], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            self.skipTest(f"no small file system can be mounted: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=False)
        (small / "file").write_bytes(b"old")
        self.serve("--allow", self.allow)
        large = self.write("large", harness.bytes_that_differ(8 << 20))
        for ends in ((f"file:{large}", f"n/file:{small}/file"), (f"file:{large}", f"n/file:{small}/new")):
            with self.subTest(ends=ends):
                outcome = self.run_command("copy", *ends, env=self.env)
                self.assertEqual(outcome.code, FAILED, outcome.err)
                self.assertIn("n says:", outcome.err)
                self.assertRegex(outcome.err, "(?i)no space|full")
                self.assertEqual(sorted(os.listdir(small)), ["file"])
                self.assertEqual((small / "file").read_bytes(), b"old")
        self.succeed("copy", f"n/file:{small}/file", f"file:{self.dir}/got", env=self.env)

    def test_what_is_refused(self):
        self.write("secret", b"secret")
        self.serve("--allow", self.allow)
        for ends in ((f"n/file:{self.dir}/secret", "host"), (f"n/file:{self.dir}/in/../secret", "host"),
                     (f"file:{self.dir}/secret", f"n/file:{self.dir}/in/new"), (f"n/file:{self.key}", "host")):
            with self.subTest(ends=ends):
                outcome = self.run_command("copy", *ends, env=self.env)
                self.assertEqual(outcome.code, FAILED)
                self.assertIn("n says:", outcome.err)
        outcome = self.run_command("copy", "host", "n/host", "--size", "65MiB", env=self.env)
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("64 MiB", outcome.err)

    def test_metrics(self):
        _, said = self.serve("--allow", self.allow, "--metrics", "127.0.0.1:0")
        self.succeed("copy", "host", "n/gpu:1", "--size", "5MiB", env=self.env)
        self.run_command("copy", "host", f"n/file:{self.dir}/secret", "--size", "4KiB", env=self.env)
        with urllib.request.urlopen(f"http://{said['metrics'][0]}/metrics", timeout=harness.LIMIT_SECONDS) as page:
            self.assertEqual(page.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            text = page.read().decode("ascii")
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                self.assertNotIn(name, samples)
                samples[name] = float(value)
        self.assertGreaterEqual(samples['sidestep_place_bytes_total{place="gpu",direction="received"}'], 5 << 20)
        self.assertEqual(samples['sidestep_requests_total{word="hello",outcome="ok"}'], 2)
        refused = [name for name, value in samples.items() if 'outcome="permission_denied"' in name and value > 0]
        self.assertTrue(refused, text)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{said['metrics'][0]}/", timeout=harness.LIMIT_SECONDS)
        caught.exception.close()
        self.assertEqual(caught.exception.code, 404)
        self.parse(text, samples)

    def parse(self, text, samples):
        """As Prometheus' own reader takes it."""
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("prometheus_client is not installed; the text was looked at without it")
        read = {}
        for family in text_string_to_metric_families(text):
            self.assertTrue(family.documentation)
            self.assertIn(family.type, ("gauge", "counter", "histogram"))
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                read[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
        self.assertEqual(read, samples)

    def test_nothing_is_told_unasked(self):
        _, said = self.serve("--allow", self.allow)
        self.assertEqual(said["metrics"], [])

    def test_another_key(self):
        self.serve("--allow", self.allow)
        other = self.write("other", b"a" * 64 + b"\n")
        os.chmod(other, 0o600)
        outcome = self.run_command("--key-file", str(other), "copy", "host", "n/host", "--size", "4KiB", env=self.env)
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("another key", outcome.err)
        os.chmod(other, 0o644)
        self.run_command("--key-file", str(other), "copy", "host", "n/host", "--size", "4KiB", env=self.env)
        self.assertEqual(outcome.code, FAILED)

    def test_bad_input(self):
        for arguments in (("serve", "--allow", "nonsense"), ("serve", "--listen", "127.0.0.1:port"),
                          ("serve", "--allow", "file:relative"), ("serve", "--allow", "host,gpu:99"),
                          ("serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:port"),
                          ("--nodes", "n=", "copy", "host", "n/host"),
                          ("--nodes", "/no/such/file", "copy", "host", "n/host")):
            with self.subTest(arguments=arguments):
                outcome = self.run_command("--key-file", str(self.key), *arguments)
                self.assertEqual(outcome.code, USAGE, outcome.err)


if __name__ == "__main__":
    unittest.main()
