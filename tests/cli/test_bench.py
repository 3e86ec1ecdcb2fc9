"""sidestep bench: cases, report files, thresholds, comparing, and what other programs print."""

import fcntl
import json
import os
import pathlib
import signal
import stat
import subprocess
import termios
import time
import unittest

import harness
from harness import DONE, FAILED, INTERRUPTED, USAGE

MIB = 1 << 20

QUICK = ["--case", "host_small", "--case", "topology_cluster"]

# Answers as nvbandwidth does, for two GPUs; another program of that name is not on the PATH of these tests.
NVBANDWIDTH = """#!/bin/sh
echo "$@" > {seen}
cat <<'END'
{{"nvbandwidth": {{"git_version": "v0.8", "testcases": [
  {{"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.5", "54.5"]]}},
  {{"name": "device_to_host_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["53.5", "52.5"]]}}]}}}}
END
"""


class BenchTest(harness.CommandTest):
    def report(self, *arguments, name="report.json", code=DONE, **how):
        path = self.dir / name
        outcome = self.run_command("bench", "--smoke", "--save", path, *arguments, **how)
        self.assertEqual(outcome.code, code, outcome.err + outcome.out)
        return json.loads(path.read_text()), outcome.out

    def keys(self):
        return [line.split()[0] for line in self.succeed("bench", "--list").out.splitlines()]


class Bench(BenchTest):
    def test_list_names_every_case(self):
        keys = self.keys()
        for key in ["host_large", "host_link", "peer_engine", "peer_kernel", "peer_both_ways", "all_gpus",
                    "latency_load", "latency_flag", "atomics", "file", "topology_live"]:
            self.assertIn(key, keys)
        for other in ("--save a", "--html a", "--thresholds a", "--samples 3", "--smoke"):
            self.refused(harness.USAGE, "--list", "bench", "--list", *other.split())
        listed = json.loads(self.succeed("bench", "--list", "--json").out)
        self.assertEqual([case["key"] for case in listed["cases"]], keys)

    def test_every_case_in_small_on_an_emulated_machine(self):
        report, text = self.report()
        self.assertEqual([case["key"] for case in report["cases"]], self.keys())
        self.assertTrue(report["emulated"])
        self.assertIn("emulated", " ".join(report["notes"]))
        by_key = {case["key"]: case for case in report["cases"]}
        for case in report["cases"]:
            self.assertEqual(case["failed"], "", case["key"])
            self.assertTrue(case["skipped"] or case["figures"], case["key"])
            self.assertIn(f"{case['key']}: {case['description']}", text)
        # Kernels of the benchmark need real GPUs; everything else runs.
        skipped = {key for key, case in by_key.items() if case["skipped"]}
        self.assertTrue({"latency_load", "latency_flag", "atomics"} <= skipped, skipped)
        self.assertEqual(len(by_key["peer_engine"]["figures"]), 8 * 7)
        self.assertEqual(len(by_key["peer_both_ways"]["figures"]), 8 * 7 / 2)
        for key in ["host_large", "host_link", "peer_engine", "peer_kernel", "all_gpus", "file"]:
            for figure in by_key[key]["figures"]:
                self.assertTrue(figure["verified"], figure["what"])
                self.assertGreater(figure["median"], 0)
        self.assertEqual(by_key["file"]["figures"][0]["what"], "file -> host, page cache")

    def test_this_machine(self):
        report, _ = self.report(*QUICK, machine="live")
        self.assertFalse(report["emulated"])
        self.assertEqual(report["command"], f"sidestep --machine live bench --smoke --save {self.dir}/report.json "
                         + " ".join(QUICK))
        self.assertRegex(report["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertRegex(report["kernel"], r"^Linux \d")
        self.assertRegex(report["processor"], r", [0-9]+ CPUs$")
        self.assertEqual(report["topology"]["format"], "sidestep-topology")

    def test_json_instead_of_text(self):
        report = self.json_of("bench", "--smoke", *QUICK)
        self.assertEqual([case["key"] for case in report["cases"]], ["host_small", "topology_cluster"])
        self.assertEqual(report["format"], "sidestep-bench")

    def test_sizes_gpus_and_ends(self):
        report, _ = self.report("--case", "peer_engine", "--gpu", "1,4", "--size", "4KiB,64KiB", "--samples", "3")
        figures = report["cases"][0]["figures"]
        self.assertEqual({(figure["from"], figure["to"]) for figure in figures}, {("gpu:1", "gpu:4"), ("gpu:4", "gpu:1")})
        self.assertEqual(sorted({figure["bytes"] for figure in figures}), [4096, 65536])
        report, _ = self.report("--case", "host_link", "--from", "gpu:2", "--to", "host")
        self.assertEqual([figure["what"] for figure in report["cases"][0]["figures"]], ["gpu:2 -> host"])
        outcome = self.succeed("bench", "--case", "host_link", "--gpu", "0", "--size", "64KiB", "--samples", "3", "--json",
                               "--no-verify")
        for figure in json.loads(outcome.out)["cases"][0]["figures"]:
            self.assertEqual(len(figure["samples"]), 3)
            self.assertFalse(figure["verified"])

    def test_files_are_made_in_the_folder_and_removed(self):
        folder = self.dir / "files"
        folder.mkdir()
        self.report("--case", "file", "--folder", folder)
        self.assertEqual(list(folder.iterdir()), [])
        report, _ = self.report("--case", "file", "--folder", self.dir / "none", code=FAILED)
        self.assertIn("none", report["cases"][0]["failed"])

    def test_what_makes_no_sense(self):
        self.refused(USAGE, "no_such", "bench", "--case", "no_such")
        self.refused(USAGE, "gpu:8", "bench", "--gpu", "8")
        self.refused(USAGE, "'x'", "bench", "--gpu", "x")
        self.refused(USAGE, "no bytes", "bench", "--size", "0")
        self.refused(USAGE, "gpu:9", "bench", "--from", "gpu:9")
        self.refused(USAGE, "file", "bench", "--from", "file:x")
        self.refused(USAGE, "thresholds.json", "bench", "--thresholds", "thresholds.json")
        self.refused(USAGE, "no-such-machine", "bench", machine="no-such-machine")

    def test_html_is_one_page(self):
        path = self.dir / "page.html"
        self.report(*QUICK, "--html", path)
        text = path.read_text()
        self.assertIn("<html", text)
        self.assertIn("host -&gt; host", text.replace("->", "-&gt;"))


class Thresholds(BenchTest):
    def thresholds(self, *lines):
        return self.write("limits.json", json.dumps({"thresholds": list(lines)}).encode())

    def test_met(self):
        path = self.thresholds({"case": "host_small", "max": 1e9})
        report, text = self.report(*QUICK, "--thresholds", path)
        self.assertIn("1 passed, 0 failed", text)
        self.assertEqual(report["cases"][0]["figures"][0]["verdict"], "pass")
        self.assertEqual(report["cases"][1]["figures"][0]["verdict"], "none")

    def test_missed(self):
        path = self.thresholds({"case": "host_small", "max": 1e-9}, {"case": "never", "min": 1})
        report, text = self.report(*QUICK, "--thresholds", path, code=FAILED)
        self.assertIn("0 passed, 2 failed", text)
        self.assertIn("FAIL", text)
        self.assertIn("thresholds[1]", " ".join(report["notes"]))

    def test_what_judges_nothing_fails(self):
        for line, words in (({"case": "never", "min": 1}, "thresholds[0]"), ({"case": "host_small", "min": 1e-9}, "needs 'max'")):
            report, text = self.report(*QUICK, "--thresholds", self.thresholds(line), code=FAILED)
            self.assertIn("0 passed, 1 failed", text)
            self.assertIn(words, " ".join(report["notes"]))

    def test_a_bad_file_is_refused_before_anything_runs(self):
        path = self.thresholds({"case": "host_small", "leest": 1})
        self.refused(USAGE, ["leest", "thresholds[0]"], "bench", "--smoke", "--thresholds", path)


class Compare(BenchTest):
    def change(self, report, factor, name):
        changed = json.loads(json.dumps(report))
        figure = changed["cases"][0]["figures"][0]
        figure["samples"] = [value * factor for value in [1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0]]
        path = self.dir / name
        path.write_text(json.dumps(changed))
        return path

    def test_page_of_a_saved_report(self):
        report, _ = self.report(*QUICK)
        page = self.dir / "page.html"
        self.succeed("bench", "page", self.dir / "report.json", page)
        text = page.read_text()
        self.assertIn(report["cases"][0]["description"], text)
        self.assertTrue(text.lower().startswith("<!doctype html>"))
        self.refused(USAGE, "none.json", "bench", "page", "none.json", page)

    def test_only_what_changed_is_shown(self):
        report, _ = self.report(*QUICK)
        before, same = self.change(report, 1, "before.json"), self.change(report, 1.005, "same.json")
        slower = self.change(report, 1.5, "slower.json")
        quiet = self.succeed("bench", "compare", before, same, "--fail-on-regression")
        self.assertNotIn("host -> host", quiet.out)
        self.assertIn("0 worse", quiet.out)
        self.assertIn("host -> host", self.succeed("bench", "compare", before, same, "--all").out)
        outcome = self.run_command("bench", "compare", before, slower, "--fail-on-regression")
        self.assertEqual(outcome.code, FAILED)
        self.assertRegex(outcome.out, r"worse .*host -> host.*\+50\.0 %")
        # Microseconds: less is better.
        self.assertRegex(self.succeed("bench", "compare", slower, before).out, r"better .*host -> host.*-33\.3 %")
        self.assertEqual(self.json_of("bench", "compare", before, slower)["worse"], 1)

    def test_a_case_that_fails_is_a_regression(self):
        report, _ = self.report(*QUICK)
        before = self.change(report, 1, "before.json")
        report["cases"][1].update(failed="no memory", figures=[])
        broken = self.change(report, 1, "broken.json")
        outcome = self.run_command("bench", "compare", before, broken, "--fail-on-regression")
        self.assertEqual(outcome.code, FAILED)
        self.assertIn(f"failed after {report['cases'][1]['key']}: no memory", outcome.out)
        self.assertEqual(len(self.json_of("bench", "compare", before, broken)["failed_after"]), 1)
        self.succeed("bench", "compare", broken, broken, "--fail-on-regression")

    def test_files_that_are_no_reports(self):
        report, _ = self.report(*QUICK)
        good = self.change(report, 1, "good.json")
        self.refused(USAGE, "none.json", "bench", "compare", good, "none.json")
        self.refused(USAGE, "format", "bench", "compare", self.write("other.json", b"{}"), good)
        del report["cases"][1]["figures"][0]["unit"]
        bad = self.change(report, 1, "bad.json")
        self.refused(USAGE, ["cases[1].figures[0].unit", "bad.json"], "bench", "compare", bad, good)


class Peers(BenchTest):
    def path_with(self, name, text):
        folder = self.dir / "bin"
        folder.mkdir(exist_ok=True)
        if name:
            program = folder / name
            program.write_text(text)
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return harness.environment(PATH=str(folder))

    def test_what_is_not_there_is_said(self):
        report, text = self.report("--case", "file", "--peers", machine="live", env=self.path_with("", ""))
        self.assertIn("fio is not on PATH", report["notes"])
        self.assertIn("note: fio is not on PATH", text)

    def test_fio_stands_beside_the_file_figures(self):
        answer = ('#!/bin/sh\necho \'{"fio version": "fio-3.33", "jobs": [{"error": 0, "read": {"bw_bytes": 2867200000},'
                  ' "write": {"bw_bytes": 1867200000}}]}\'\n')
        report, text = self.report("--case", "file", "--peers", machine="live", env=self.path_with("fio", answer))
        figures = {figure["what"]: figure for figure in report["cases"][0]["figures"]}
        peers = {peer["name"]: peer["median"] for peer in figures["file -> host, O_DIRECT"]["peers"]}
        self.assertAlmostEqual(peers["fio-3.33"], 2.8672)
        peers = {peer["name"]: peer["median"] for peer in figures["host -> file, O_DIRECT"]["peers"]}
        self.assertAlmostEqual(peers["fio-3.33"], 1.8672)
        self.assertNotIn("fio-3.33", [peer["name"] for peer in figures["file -> host, page cache"]["peers"]])
        self.assertIn("fio-3.33: 2.867", text)

    def test_a_program_that_fails_is_said(self):
        env = self.path_with("fio", "#!/bin/sh\necho 'cannot do it' >&2\nexit 7\n")
        report, _ = self.report("--case", "file", "--peers", machine="live", env=env)
        self.assertIn("fio ended with 7: cannot do it", report["notes"])

    def test_not_on_emulated_machines(self):
        report, _ = self.report(*QUICK, "--peers")
        self.assertIn("other programs cannot be run on an emulated machine", report["notes"])

    @unittest.skipUnless(os.environ.get("SIDESTEP_STAND_IN"), "needs the made-up driver: see tests/fake_cuda")
    def test_on_the_stand_in(self):
        seen = self.dir / "seen"
        env = self.path_with("nvbandwidth", NVBANDWIDTH.format(seen=seen))
        env["LD_LIBRARY_PATH"] = os.environ["SIDESTEP_STAND_IN"]
        env["PATH"] += ":" + os.environ["PATH"]
        report, text = self.report("--peers", machine="live", env=env, code=1)  # collectives fail, see below
        by_key = {case["key"]: case for case in report["cases"]}
        for case in report["cases"]:
            # The stand-in's kernels of collectives move nothing, which has to be found out.
            wrong = r"\d+ elements are wrong" if case["key"] == "collective_all_reduce" else ".*" if \
                case["key"].startswith("collective_") else "^$"
            self.assertRegex(case["failed"], wrong, case["key"])
            # Nobody names one here; tests/cli/test_s3.py does.
            skipped = "it needs an object: --object s3://BUCKET/KEY" if case["key"] == "object" else ""
            self.assertEqual(case["skipped"], skipped, case["key"])
        self.assertIn("-j -t host_to_device_memcpy_ce device_to_host_memcpy_ce", pathlib.Path(seen).read_text())
        peers = {(figure["from"], figure["to"]): [peer["median"] for peer in figure["peers"]]
                 for figure in by_key["host_link"]["figures"]}
        self.assertIn(54.5, peers[("host", "gpu:1")])
        self.assertIn(53.5, peers[("gpu:0", "host")])
        self.assertIn("driver's copy engine", text)
        for key in ["host_link", "peer_engine", "host_both_ways", "all_gpus"]:
            for figure in by_key[key]["figures"]:
                self.assertTrue(figure["verified"] and figure["limit_source"].startswith("link"), figure)
        for figure in by_key["latency_flag"]["figures"]:
            self.assertGreater(figure["median"], 0)
        self.assertEqual(len(by_key["atomics"]["figures"]), 6)
        # A warm load stands beside threads that do the same by hand, and so does a save into memory's own files.
        beside = {figure["what"]: [peer["name"] for peer in figure["peers"]] for figure in by_key["checkpoint"]["figures"]}
        self.assertRegex(beside["file -> gpu:0, warm"][0], r"pread and cuMemcpyAsync, \d+ threads")
        self.assertRegex(beside["gpu:0 -> file, tmpfs"][0], r"cuMemcpyAsync and a copy into a map, \d+ threads")


class Interrupted(harness.GroupTest):
    """Files of gigabytes in memory, and programs that hold GPUs, are nothing to leave behind."""

    def interrupt(self, process, number):
        process.send_signal(number)
        process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, INTERRUPTED)

    def wait_for(self, there):
        until = time.monotonic() + harness.LIMIT_SECONDS
        while not there():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def test_cases_that_are_over_are_kept(self):
        process = self.start("bench", "--case", "host_small", "--case", "peer_engine", "--samples", "200", "--save", "report.json")
        while not process.stdout.readline().startswith(b"host_small"):
            pass
        self.interrupt(process, signal.SIGINT)
        report = json.loads((self.dir / "report.json").read_text())
        self.assertEqual([case["key"] for case in report["cases"]], ["host_small"])
        self.assertIn("interrupted: not all figures were measured", report["notes"])

    def test_at_the_end_there_is_one_report(self):
        process = self.start("bench", "--smoke", "--case", "host_small", "--json")
        size = fcntl.fcntl(process.stdout, 1031, 4096)  # F_SETPIPE_SZ
        self.wait_for(lambda: int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)), "little") == size)  # it is being printed
        process.send_signal(signal.SIGINT)
        status = pathlib.Path(f"/proc/{process.pid}/status")
        self.wait_for(lambda: int(status.read_text().split("ShdPnd:")[1].split()[0], 16) == 0)
        out, _ = process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertEqual([case["key"] for case in json.loads(out)["cases"]], ["host_small"])

    def test_files_are_removed(self):
        folder = self.dir / "files"
        folder.mkdir()
        for case, number in [("file", signal.SIGINT), ("checkpoint", signal.SIGTERM)]:
            process = self.start("bench", "--case", case, "--folder", str(folder), "--size", "16MiB", "--samples", "10000")
            self.wait_for(lambda: any(path.stat().st_size >= 16 * MIB for path in folder.iterdir()))
            self.interrupt(process, number)
            self.assertEqual(list(folder.iterdir()), [])

    def test_programs_are_ended(self):
        (self.dir / "fio").write_text("#!/bin/sh\necho $$ > started\nmv started number\nexec sleep 1000\n")
        (self.dir / "fio").chmod(stat.S_IRWXU)
        self.env["PATH"] = f"{self.dir}:{self.env['PATH']}"
        process = subprocess.Popen(
            [harness.BINARY, "bench", "--smoke", "--case", "file", "--peers"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir, env=self.env)
        self.addCleanup(self.end, process)
        self.wait_for((self.dir / "number").exists)
        self.interrupt(process, signal.SIGINT)
        number = (self.dir / "number").read_text().strip()
        self.wait_for(lambda: not pathlib.Path(f"/proc/{number}/cmdline").exists()
                      or pathlib.Path(f"/proc/{number}/cmdline").read_bytes() == b"")


if __name__ == "__main__":
    unittest.main()
