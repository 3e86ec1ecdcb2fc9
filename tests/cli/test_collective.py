"""sidestep bench collective: the table of nccl-tests over emulated GPUs."""

import json
import signal
import unittest

import harness
from harness import FAILED, INTERRUPTED, USAGE

SMALL = ["--gpu", "0,1,2", "--smoke"]
EVERY = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather",
         "scatter", "send_recv", "barrier"]


class Collective(harness.GroupTest):
    def measure(self, *words, **how):
        return self.succeed("bench", "collective", *words, env=self.env, **how).out

    def rows(self, text):
        """The lines of figures: their words."""
        return [line.split() for line in text.splitlines() if line.startswith(" ") and line.endswith("sidestep")]

    def test_the_columns(self):
        text = self.measure("all_reduce", *SMALL, "--size", "8KiB")
        self.assertIn("all_reduce, on a stream, 3 ranks, a process a GPU", text)
        self.assertIn("emulated", text)
        heads = next(line for line in text.splitlines() if "redop" in line).lstrip("#").split()
        side = ["time", "p99", "algbw", "busbw", "#wrong"]
        self.assertEqual(heads, ["size", "count", "type", "redop", "root", *side, *side, "times"])
        [row] = self.rows(text)
        self.assertEqual(row[:5], ["8192", "2048", "float", "sum", "-1"])
        for begin in (5, 10):
            time, p99, algbw, busbw, wrong = row[begin:begin + 5]
            self.assertGreaterEqual(float(p99), float(time))
            self.assertGreater(float(time), 0)
            self.assertAlmostEqual(float(algbw), 8192 / float(time) / 1000, delta=0.011)
            self.assertAlmostEqual(float(busbw), float(algbw) * 4 / 3, delta=0.02)
            self.assertEqual(wrong, "0")

    def test_sizes_types_and_reductions(self):
        text = self.measure("all_reduce", "reduce_scatter", "--gpu", "0,1", "-b", "64", "-e", "1KiB", "-f", "4", "-d", "bf16,int8",
                            "-o", "max,avg", "-n", "1", "--samples", "1", "-w", "0")
        rows = self.rows(text)
        self.assertEqual(len(rows), 2 * 2 * 2 * 3)
        self.assertEqual({(row[2], row[3]) for row in rows},
                         {(kind, op) for kind in ("bfloat16", "int8") for op in ("max", "avg")})
        self.assertEqual({row[0] for row in rows}, {"64", "256", "1024"})
        for row in rows:
            self.assertEqual((row[9], row[14]), ("0", "0"), row)

    def test_every_operation_by_threads(self):
        report = self.dir / "report.json"
        text = self.measure(*SMALL, "--threads", "--size", "6KiB", "-r", "2", "--save", report)
        self.assertIn("one process, a thread a GPU", text)
        report = json.loads(report.read_text())
        self.assertEqual([case["key"] for case in report["cases"]], [f"collective_{name}" for name in EVERY])
        for case in report["cases"]:
            self.assertEqual(case["failed"], "")
            self.assertEqual(case["notes"], [])
            for figure in case["figures"]:
                self.assertEqual(figure["verified"], case["key"] != "collective_barrier", figure["what"])
        figures = {figure["what"]: figure for case in report["cases"] for figure in case["figures"]}
        for name in ["all_reduce float sum, stream, out of place, time", "all_gather float, stream, in place, bus bandwidth",
                     "all_to_all_v float, stream, out of place, time", "barrier, stream, time"]:
            self.assertIn(name, figures)
        self.assertEqual({row[4] for row in self.rows(text)}, {"-1", "2"})

    def test_without_verification(self):
        text = self.measure("broadcast", *SMALL, "--no-verify")
        self.assertEqual([row[9] for row in self.rows(text)], ["-"])

    def test_as_json_and_as_a_page(self):
        page = self.dir / "page.html"
        report = self.json_of("bench", "collective", "gather", *SMALL, "--html", page, env=self.env)
        self.assertEqual(report["cases"][0]["key"], "collective_gather")
        self.assertIn("gather float, stream, out of place, time", page.read_text())

    def test_an_interrupt_ends_it_with_the_rows_that_there_are(self):
        for how in ([], ["--threads"]):
            with self.subTest(how=how):
                process = self.start("bench", "collective", "all_reduce", "--gpu", "0,1,2", "-b", "8", "-e", "1MiB", "-f", "1.05", *how,
                                     "--save", self.dir / "report.json")
                shown = []
                while len(self.rows("".join(shown))) < 2:
                    shown.append(process.stdout.readline().decode())
                    self.assertTrue(shown[-1], shown)
                process.send_signal(signal.SIGINT)
                rest, errors = process.communicate(timeout=harness.LIMIT_SECONDS)
                self.assertEqual((process.returncode, errors), (INTERRUPTED, b""))
                text = "".join(shown) + rest.decode()
                self.assertIn("interrupted: not all sizes", text)
                figures = json.loads((self.dir / "report.json").read_text())["cases"][0]["figures"]
                times = [figure for figure in figures if figure["what"].endswith("out of place, time")]
                self.assertEqual([str(figure["bytes"]) for figure in times], [row[0] for row in self.rows(text)])
                self.assertLess(len(times), 200)  # of 242

    def test_thresholds(self):
        path = self.dir / "thresholds.json"
        path.write_text(json.dumps({"thresholds": [{"case": "collective_*", "figure": "*, time", "max": 0.0001}]}))
        outcome = self.run_command("bench", "collective", "all_reduce", *SMALL, "--thresholds", path, env=self.env)
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("FAIL", outcome.out)
        self.assertIn("thresholds: 0 passed, 2 failed", outcome.out)

    def test_what_makes_no_sense(self):
        for names, words in [(["'allreduce'"], ["allreduce"]), (["'floats'"], ["-d", "floats"]), (["'plus'"], ["-o", "plus"]),
                             (["2 to 16"], ["--gpu", "1"]), (["first size"], ["-b", "8", "-e", "4"]),
                             (["'x'"], ["-b", "x"]), (["gpu:8"], ["--gpu", "0,8"]), (["'-1'"], ["--gpu", "-1"]),
                             (["not 1"], ["--gpu", "0,0"]), (["''"], [""]), (["''"], ["-d", ""]), (["'-8'"], ["-b", "-8"]),
                             (["no bytes"], ["-b", "0"]), (["no bytes"], ["--size", "0"]), (["first size"], ["-e", "0"]),
                             (["factor"], ["-f", "nan"]), (["--factor"], ["-f", "1"]), (["--factor"], ["-f", "inf"]),
                             (["list or a row"], ["--size", "8", "-b", "8"]), (["small run"], ["--smoke", "-e", "8"]),
                             (["--root"], ["-r", "-1"]), (["--root"], ["-r", "16"]), (["--iterations"], ["-n", "0"]),
                             (["--iterations"], ["-n", "99999999999999999999"]), (["--samples"], ["--samples", "0"]), (["--launches"], ["-G", "0"]),
                             (["--warmup"], ["-w", "-1"]), (["--mode"], ["--mode", "tape"]), (["--type", "missing"], ["-d"]),
                             (["each of 2 ranks"], ["all_gather", "--gpu", "0,1", "--size", "4"]),
                             (["none.so"], ["--nccl", "./none.so"])]:
            with self.subTest(words=words):
                self.refused(USAGE, names, "bench", "collective", *words, env=self.env)
        self.refused(FAILED, "graphs", "bench", "collective", "--mode", "graph", env=self.env)
        self.refused(USAGE, ["no rank 2 of 2", "--root"], "bench", "collective", "broadcast", *SMALL[:1], "0,1", "--smoke", "-r", "2", env=self.env)
        self.refused(USAGE, "not a job", "bench", "collective", "--job", "{}", env=self.env)
        self.refused(FAILED, "emulated", "bench", "collective", "--nccl", "libnccl.so.2", env=self.env)
        outcome = self.run_command("bench", "collective", "all_reduce", "--gpu", "0,1", "--size", "1000TiB", env=self.env)
        self.assertEqual(outcome.code, FAILED)
        self.assertRegex(outcome.err, "^sidestep: .*memory.*\n$")

    def test_options_of_the_cases_are_refused(self):
        for words in [["--list"], ["--case", "host_link"], ["--peers"], ["--from", "host"], ["--to", "host"], ["--folder", "."]]:
            for line in (["bench", *words, "collective", *SMALL], ["bench", "collective", *SMALL, *words]):
                with self.subTest(line=line):
                    self.refused(USAGE, [words[0], "bench collective"], *line, env=self.env)
        self.refused(USAGE, "--samples", "bench", "--samples", "3", "collective", *SMALL, env=self.env)

    def test_sizes_that_are_left_out_are_named(self):
        text = self.measure("all_gather", "all_reduce", "--gpu", "0,1", "--size", "4,8", "-n", "1", "--samples", "1")
        self.assertEqual([(row[0], row[3]) for row in self.rows(text)], [("8", "none"), ("4", "sum"), ("8", "sum")])
        self.assertIn("note: all_gather float: sizes below 8 B are left out", text)


class Tune(harness.GroupTest):
    def test_what_it_stores_is_used(self):
        path = self.dir / "figures.json"
        text = self.succeed("tune", "--ranks", "2", "--to", path, env=self.env).out
        for word in ["one-shot packets", "one-shot Lamport", "two-phase packets", "slices", "256 KiB", f"SIDESTEP_TUNING={path}"]:
            self.assertIn(word, text)
        figures = json.loads(path.read_text())
        self.assertEqual(set(figures), {"version", "machine", "launch_us", "hop_us", "link_gb_per_s", "push_gb_per_s", "packet_gb_per_s",
                                        "one_shot_max", "lamport_min", "lamport_max", "packets_max", "lines_max"})
        self.assertEqual(figures["machine"], harness.MACHINE)
        # A group reads it, and would refuse a file of another form.
        figures["one_shot_max"] = figures["lamport_min"] = figures["lamport_max"] = figures["packets_max"] = figures["lines_max"] = 1
        figures["push_gb_per_s"] = 0  # whatever this moment says of it
        path.write_text(json.dumps(figures))
        words = ["bench", "collective", "all_reduce", "--gpu", "0,1", "--smoke", "--size", "1KiB"]
        report = self.json_of(*words, env=dict(self.env, SIDESTEP_TUNING=str(path)))
        self.assertTrue(report["cases"][0]["figures"][0]["path"].startswith("slices"), report["cases"][0]["figures"][0]["path"])
        path.write_text('{"version": 1, "colour": 3}')
        outcome = self.run_command(*words, env=dict(self.env, SIDESTEP_TUNING=str(path)))
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("rank 0: ", outcome.err)  # and not what the others, who waited for it, were ended with
        self.assertIn("colour", outcome.err)

    def test_a_ring_is_measured_where_links_are_slow(self):
        path = self.dir / "figures.json"
        text = self.succeed("tune", "--ranks", "4", "--to", path, machine="pcie-2s", env=self.env).out
        self.assertRegex(text, "above these slices at [0-9.]+ GB/s, pushed ones at [0-9.]+, a ring at [0-9.]+\n")
        figures = json.loads(path.read_text())
        self.assertGreater(figures["ring_gb_per_s"], 0)
        # What was measured is this moment's, and may say otherwise.
        figures.update({"launch_us": 2, "hop_us": 1, "link_gb_per_s": 10, "push_gb_per_s": 0, "ring_gb_per_s": 30})
        figures["one_shot_max"] = figures["lamport_min"] = figures["lamport_max"] = figures["packets_max"] = figures["lines_max"] = 1
        path.write_text(json.dumps(figures))
        words = ["bench", "collective", "all_reduce", "--gpu", "0,1,2,3", "--smoke", "--size", "8MiB"]
        report = self.json_of(*words, machine="pcie-2s", env=dict(self.env, SIDESTEP_TUNING=str(path)))
        self.assertTrue(report["cases"][0]["figures"][0]["path"].startswith("ring"), report["cases"][0]["figures"][0]["path"])

    def test_what_makes_no_sense(self):
        self.refused(USAGE, "8 ranks", "tune", "--ranks", "9", env=self.env)
        for ranks in ["1", "0", "-2", "x", "17"]:
            self.refused(USAGE, "--ranks", "tune", "--ranks", ranks, env=self.env)
        for words in [["--ranks"], ["--to"]]:
            self.refused(USAGE, [words[0], "missing"], "tune", *words, env=self.env)
        self.refused(USAGE, "'more'", "tune", "more", env=self.env)
        self.refused(FAILED, "two GPUs", "tune", machine="laptop", env=self.env)


if __name__ == "__main__":
    unittest.main()
