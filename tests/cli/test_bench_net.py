"""sidestep bench net: copies to a node that serves and back, beside plain sockets and other programs."""

import json
import shutil
import signal
import socket
import subprocess
import time
import unittest

import harness
from harness import FAILED, USAGE

ENDS = [("host", "n/host"), ("host", "n/gpu:0"), ("gpu:0", "n/host"), ("gpu:0", "n/gpu:0")]
WAYS = ENDS + [(there, here) for here, there in ENDS]

# As iperf3 answers: 8e9 bits a second to the server, 16e9 with -R.
IPERF3 = """#!/bin/sh
echo "$@" >> {seen}
case "$*" in *-R*) rate=16e9 ;; *) rate=8e9 ;; esac
echo '{{"start": {{"version": "iperf 3.99"}}, "end": {{"sum_received": {{"bits_per_second": '$rate'}}}}}}'
"""

UCX_PERFTEST = """#!/bin/sh
echo "| Test | # iterations |"
echo "Final:                20     1.0     1.5     2.0     900.00     1000.00     8200     8201"
"""


class NetTest(harness.NodeTest):
    def setUp(self):
        super().setUp()
        self.bin = self.dir / "bin"
        self.bin.mkdir()

    def environment(self, **changes):
        """What reaches the node, with no program on PATH but those of the test."""
        return {**self.env, "PATH": str(self.bin), **changes}

    def program(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def report(self, *arguments, **how):
        outcome = self.succeed("bench", "net", "n", "--smoke", *arguments, "--json", env=self.environment(), **how)
        report = json.loads(outcome.out)
        return report, {case["key"]: case for case in report["cases"]}


class BenchNet(NetTest):
    def test_every_end_both_ways_with_plain_sockets_beside(self):
        self.serve("--allow", "gpu:*,host", "--name", "far")
        report, cases = self.report()
        self.assertEqual(list(cases), ["net_latency", "net_bandwidth", "net_batch"])
        batches = [(one["what"], one["unit"], one["bytes"], one["verified"], one["median"] > 0)
                   for one in cases["net_batch"]["figures"]]
        self.assertCountEqual(batches, [(f"1000 pieces, {source} -> {target}", unit, size, True, True) for source, target in WAYS
                                   for unit, size in (("M/s", 8), ("GB/s", 16 << 10))])
        for key, unit, size in (("net_latency", "us", 8), ("net_bandwidth", "GB/s", 1 << 20)):
            with self.subTest(case=key):
                self.assertEqual(cases[key]["failed"], "")
                copies = [one for one in cases[key]["figures"] if one["from"]]
                self.assertEqual(sorted((one["from"], one["to"]) for one in copies), sorted(WAYS))
                for one in copies:
                    self.assertEqual((one["unit"], one["bytes"], one["verified"]), (unit, size, True))
                    self.assertGreater(one["median"], 0)
                    self.assertIn("plain sockets", one["limit_source"])
                    self.assertEqual(one["limit"], one["peers"][0]["median"])
                    self.assertRegex(one["path"], r"\(sockets\).*; \d+ sockets?$")
                plain = [one for one in cases[key]["figures"] if one["what"].startswith("plain sockets")]
                self.assertGreaterEqual(len(plain), 2)
                for one in plain:
                    self.assertGreater(one["median"], 0)
        self.assertIn("other programs were not measured", " ".join(cases["net_bandwidth"]["notes"]))

    def test_the_table(self):
        self.serve("--allow", "gpu:*,host", "--name", "far")
        saved = self.dir / "report.json"
        outcome = self.succeed("bench", "net", "n", "--size", "8,4KiB,2MiB", "--samples", "3", "--save", saved,
                               env=self.environment())
        lines = outcome.out.splitlines()
        self.assertTrue(lines[0].startswith("machine dgx-h100; "), lines[0])
        self.assertTrue(any(line.startswith("here ") for line in lines[:4]), lines)
        self.assertTrue(any(line.startswith("node n: far at 127.0.0.1:") and "tcp" in line for line in lines[:4]),
                        lines)
        for here, there in WAYS:
            for size, unit in (("8 B", "us"), ("4 KiB", "us"), ("2 MiB", "GB/s")):
                self.assertRegex(outcome.out, rf"(?m)^  {here} -> {there} +{size} +[\d.]+ {unit}"
                                 r" +\[[\d.]+ \.\. [\d.]+\] +[\d.]+ x plain sockets.*  verified$")
        self.assertRegex(outcome.out, r"(?m)^  plain sockets: there and back +8 B +[\d.]+ us")
        self.assertRegex(outcome.out, r"(?m)^  plain sockets \(\d+\): here -> n +2 MiB +[\d.]+ GB/s")
        self.assertRegex(outcome.out, r"(?m)^  plain sockets \(\d+\): n -> here +2 MiB +[\d.]+ GB/s")
        figures = [one for case in json.loads(saved.read_text())["cases"] for one in case["figures"]]
        self.assertTrue(all(len(one["samples"]) == 3 for one in figures))

    def test_encrypted(self):
        self.serve("--allow", "host")
        outcome = self.succeed("bench", "net", "n", "--smoke", "--encrypt", env=self.environment())
        self.assertRegex(outcome.out, r"(?m)^  host -> n/host +1 MiB +[\d.]+ GB/s .* x plain sockets")
        self.assertRegex(outcome.out, r"(?m)^    by .*encrypted sockets")

    def test_between_two_nodes(self):
        self.serve("--allow", "gpu:*,host")
        at = self.env["SIDESTEP_NODES"]
        self.env["SIDESTEP_NODES"] = f"{at},m={at.partition('=')[2]}"
        _, cases = self.report("m")
        ends = [(here, there.replace("n/", "m/")) for here in ("n/host", "n/gpu:0") for _, there in ENDS[:2]]
        for key in ("net_latency", "net_bandwidth", "net_batch"):
            self.assertEqual(cases[key]["failed"], "")
            figures = cases[key]["figures"]
            self.assertEqual({(one["from"], one["to"]) for one in figures},
                             {*ends, *((there, here) for here, there in ends)})
            for one in figures:
                self.assertTrue(one["verified"] and one["median"] > 0)
                if key != "net_batch":
                    self.assertEqual([peer["name"] for peer in one["peers"]], ["two copies by this machine"])
                    self.assertNotRegex(one["path"], r"; \d+ sockets?$")
        self.assertEqual(cases["net_bandwidth"]["notes"], [])
        self.refused(USAGE, "one node", "bench", "net", "n", "n", env=self.environment())
        self.assertNotEqual(self.run_command("bench", "net", "n", "nowhere.invalid", env=self.environment()).code, 0)

    def test_ends_that_are_refused_have_a_row(self):
        self.serve("--allow", "host=1MiB")
        outcome = self.succeed("bench", "net", "n", "--size", "4KiB,2MiB", "--samples", "1", env=self.environment())
        for here, there in WAYS:
            why = "64 KiB|1 MiB" if "gpu" not in there and "n/gpu" not in here else "n says:"
            size = "2 MiB" if "n/gpu" not in here + there else ""
            self.assertRegex(outcome.out, rf"(?m)^  {here} -> {there} +{size} *not measured: .*({why})")
        self.assertRegex(outcome.out, r"(?m)^  n/host -> host +4 KiB +[\d.]+ us")
        _, cases = self.report()
        self.assertEqual(sum("n/gpu:0" in note for note in cases["net_bandwidth"]["notes"]), 4)

    def test_a_machine_without_gpus(self):
        self.serve("--allow", "host")
        outcome = self.succeed("bench", "net", "n", "--smoke", env=self.environment(), machine="live")
        self.assertRegex(outcome.out, r"(?m)^  host -> n/host +1 MiB +[\d.]+ GB/s")
        if "no GPU" in outcome.out:
            self.assertRegex(outcome.out, r"(?m)^  gpu:0 -> n/host +not measured: this machine has no GPU$")

    def test_nothing_is_allowed(self):
        self.serve()
        outcome = self.succeed("bench", "net", "n", "--smoke", env=self.environment())
        sizes_of_pieces = 2
        self.assertEqual(outcome.out.count("not measured: n says:"), len(WAYS) * (1 + sizes_of_pieces))

    def test_rows_come_as_they_are_measured_and_are_kept(self):
        node, _ = self.serve("--allow", "gpu:*,host")
        process = subprocess.Popen([harness.BINARY, "--machine", harness.MACHINE, "bench", "net", "n", "--size", "8,1KiB",
                                    "--samples", "200", "--save", "report.json"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self.dir, env=self.environment())
        self.addCleanup(self.end, process)
        while not process.stdout.readline().startswith(b"  host -> n/host "):
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, harness.INTERRUPTED)
        report = json.loads((self.dir / "report.json").read_text())
        latency = next(case for case in report["cases"] if case["key"] == "net_latency")["figures"]
        self.assertEqual((latency[0]["what"], len(latency[0]["samples"])), ("host -> n/host", 200))
        self.assertLess(len(latency), 2 * len(WAYS))
        self.assertIn("interrupted: not all figures were measured", report["notes"])
        node.kill()

    def test_the_node_goes(self):
        node, _ = self.serve("--allow", "gpu:*,host")
        process = subprocess.Popen([harness.BINARY, "--machine", harness.MACHINE, "bench", "net", "n", "--size", "8",
                                    "--samples", "10000"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, cwd=self.dir, env=self.environment())
        self.addCleanup(self.end, process)
        while not process.stdout.readline().startswith(b"node n: "):
            self.assertIsNone(process.poll())
        time.sleep(0.2)
        node.kill()
        out, err = process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, FAILED, (out + err).decode())
        self.assertIn(b"failed: ", out)

    def test_what_makes_no_sense(self):
        self.env = harness.environment(SIDESTEP_KEY_FILE=str(self.key), SIDESTEP_NODES="n=127.0.0.1:1")
        self.write("key", b"a" * 64 + b"\n").chmod(0o600)
        outcome = self.run_command("bench", "net", "n", env=self.environment())
        self.assertEqual(outcome.code, USAGE)
        self.assertIn("sidestep serve", outcome.err)
        self.assertNotEqual(self.run_command("bench", "net", env=self.environment()).code, 0)
        for option in (["--case", "host_link"], ["--list"], ["--peers"], ["--folder", "."], ["--from", "host"]):
            with self.subTest(option=option):
                self.refused(USAGE, [option[0], "bench net"], "bench", "net", "n", *option, env=self.environment())
        self.refused(USAGE, "no bytes", "bench", "net", "n", "--size", "0", env=self.environment())

    def test_thresholds(self):
        self.serve("--allow", "gpu:*,host")
        limits = self.write("limits.json", json.dumps({"thresholds": [{"case": "net_bandwidth", "min": 1e6}]}).encode())
        outcome = self.run_command("bench", "net", "n", "--smoke", "--thresholds", limits, env=self.environment())
        self.assertEqual(outcome.code, FAILED, outcome.err)
        self.assertIn("FAIL", outcome.out)


class Others(NetTest):
    """Programs that measure between two machines; stand-ins, but for the last."""

    def rows(self, tool):
        _, cases = self.report()
        self.assertEqual(cases["net_bandwidth"]["failed"], "")
        notes = " ".join(cases["net_bandwidth"]["notes"])
        return [(one["what"], one["median"]) for one in cases["net_bandwidth"]["figures"] if tool in one["what"]], notes

    def test_that_are_not_here(self):
        self.serve("--allow", "host")
        rows, notes = self.rows("iperf")
        self.assertEqual(rows, [])
        for tool in ("iperf3", "ib_write_bw", "ucx_perftest"):
            self.assertIn(f"{tool}: not on PATH here", notes)

    def test_figures(self):
        self.serve("--allow", "host")
        seen = self.dir / "seen"
        self.program("iperf3", IPERF3.format(seen=seen))
        self.program("ucx_perftest", UCX_PERFTEST)
        rows, notes = self.rows("iperf 3.99")
        self.assertEqual([what.split(": ")[1] for what, _ in rows], ["here -> n", "n -> here"])
        self.assertEqual([rate for _, rate in rows], [1.0, 2.0])
        self.assertNotIn("iperf3", notes)
        for line in seen.read_text().splitlines():
            self.assertIn("-c 127.0.0.1 -J", line)
        rows, notes = self.rows("ucx_perftest")
        self.assertEqual([round(rate, 9) for _, rate in rows], [1.048576])
        self.assertIn("ib_write_bw", notes)

    def test_nobody_answers(self):
        self.serve("--allow", "host")
        self.program("iperf3", "#!/bin/sh\necho '{\"error\": \"unable to connect to server: Connection refused\"}'\n")
        self.program("ucx_perftest", "#!/bin/sh\necho 'connect() failed: Connection refused' >&2\nexit 255\n")
        rows, notes = self.rows("iperf")
        self.assertEqual(rows, [])
        self.assertIn("iperf3: nothing answers at 127.0.0.1:5201, start `iperf3 -s` on n", notes)
        self.assertIn("ucx_perftest: nothing answers at 127.0.0.1:13337, start `ucx_perftest` on n", notes)

    def test_what_they_say_that_is_no_figure(self):
        self.serve("--allow", "host")
        for text in ("{}", "nonsense", "[1]", '{"end": {"sum_received": {"bits_per_second": "x"}}}', '{"end": 1}'):
            with self.subTest(text=text):
                self.program("iperf3", f"#!/bin/sh\necho '{text}'\n")
                rows, notes = self.rows("iperf")
                self.assertEqual(rows, [])
                self.assertIn("iperf3: ", notes)
        self.program("iperf3", "#!/bin/sh\necho 'something broke' >&2\nexit 3\n")
        self.assertIn("iperf3: something broke", self.rows("iperf")[1])

    def test_iperf3_itself(self):
        program = shutil.which("iperf3")
        if not program:
            self.skipTest("iperf3 is not installed; a stand-in is tried above")
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", 5201))
            except OSError:
                self.skipTest("something uses port 5201, at which iperf3 listens")
        (self.bin / "iperf3").symlink_to(program)
        server = subprocess.Popen([program, "-s", "-B", "127.0.0.1"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.end, server)
        self.serve("--allow", "host")
        for _ in range(50):  # until it listens
            try:
                socket.create_connection(("127.0.0.1", 5201), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        time.sleep(0.5)
        rows, notes = self.rows("iperf 3.")
        self.assertEqual(len(rows), 2, notes)
        self.assertTrue(all(rate > 0 for _, rate in rows))


if __name__ == "__main__":
    unittest.main()
