"""Every bad input: the exit code, one line that names the thing, and targets left alone."""

import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import time
import unittest

import harness
from test_load import safetensors
from harness import DONE, FAILED, PATH_UNAVAILABLE, USAGE

NOBODY = 65534


class EmptyNames(harness.CommandTest):
    """What a script makes of a variable that is not set: no file, and no success without it."""

    def test_of_files_and_folders(self):
        self.write("a.safetensors", safetensors([("w", "U8", [4], b"abcd")]))
        for line in (["topo", "--record"], ["topo", "--output"], ["inspect", "a.safetensors", "--verify-manifest"],
                     ["load", "a.safetensors", "--to", "host", "--manifest"], ["bench", "--case", "host_small", "--smoke", "--save"],
                     ["doctor", "--fleet"]):
            with self.subTest(line):
                self.refused(USAGE, line[-1], *line, "", machine="live")


class BadPlaces(harness.CommandTest):
    def test_not_a_place(self):
        for text in ["gpuu:0", "gpu:", "gpu:-1", "gpu:1x", "host:", "", "node7", "gpu:0/host"]:
            self.refused(USAGE, f"'{text}'", "copy", text, "host")
            self.refused(USAGE, f"'{text}'", "route", "host", text)

    def test_bare_path_is_refused_with_the_form_to_write(self):
        self.write("a.bin", b"x")
        self.refused(USAGE, "file:a.bin", "copy", "a.bin", "host")
        self.refused(USAGE, "file:./a.bin", "copy", "./a.bin", "host")

    def test_gpu_that_is_not_there(self):
        for line in [("copy", "host", "gpu:8"), ("copy", "gpu:99", "host"), ("route", "gpu:0", "gpu:8")]:
            self.refused(USAGE, [word for word in line if word in ("gpu:8", "gpu:99")] + ["8 GPUs, gpu:0 to gpu:7"], *line)

    def test_gpus_of_two_machines(self):
        outcome = self.refused(PATH_UNAVAILABLE, ["gpu:0", "gpu:9", "in different machines", "no backend here uses a network"],
                               "route", "gpu:0", "gpu:9", machine="dgx-h100*2")
        self.assertNotIn("pinned", outcome.err)

    def test_a_machine_without_gpus_says_why_and_what_to_try(self):
        if any(device["kind"] == "gpu" for device in json.loads(self.succeed("topo", "--json", machine="live").out)["devices"]):
            self.skipTest("this machine has GPUs")
        self.write("m.safetensors", b"\x02\0\0\0\0\0\0\0{}")
        for line in [("copy", "host", "gpu:0"), ("route", "gpu:0", "host"), ("load", "m.safetensors", "--to", "gpu:all")]:
            self.refused(USAGE, ["gpu:0 does not exist", "driver", "--machine dgx-h100"], *line, machine="live")
        for count in ["gpus", "2"]:
            self.refused(USAGE, ["has", "sidestep doctor", "--machine dgx-h100"], "run", "--no-nccl", "--no-cufile", "-n", count, "--", "true",
                         machine="live")
        self.refused(USAGE, ["'gpu'", "gpu:all"], "load", "m.safetensors", "--to", "gpu")

    def test_debug_lines_of_a_copy(self):
        env = harness.environment(SIDESTEP_LOG="debug")
        self.assertRegex(self.succeed("copy", "host", "gpu:0", "--size", "1MiB", env=env).err, "sidestep: debug: 1 MiB in .*GB/s")

    def test_numa_node_that_is_not_there(self):
        self.refused(USAGE, "host:7", "copy", "host:7", "gpu:0")

    def test_other_machine(self):
        for verb in ["copy", "route"]:
            outcome = self.run_command(verb, "node7/gpu:1", "gpu:0")
            self.assertIn(outcome.code, (FAILED, USAGE))
            self.assertIn("node7", outcome.err)

    def test_range_beyond_64_bits(self):
        self.refused(USAGE, "2^64", "copy", "file:a@16000000TiB+16000000TiB", "host")


class BadMachines(harness.CommandTest):
    def topology(self):
        return json.loads(self.succeed("topo", "--json").out)

    def refused_topology(self, name, content):
        self.write("machine.json", content)
        self.refused(USAGE, name, "topo", machine="./machine.json")
        self.refused(USAGE, name, "copy", "host", "host", "--size", "1", machine="machine.json")

    def test_unknown_machine(self):
        self.refused(USAGE, ["dgx-h1000", harness.MACHINE], "topo", machine="dgx-h1000")

    def test_missing_file(self):
        self.refused(USAGE, "nowhere.json", "topo", machine="./nowhere.json")

    def test_saved_machine_works(self):
        self.write("machine.json", json.dumps(self.topology()).encode())
        self.succeed("copy", "host", "gpu:0", "--size", "4KiB", machine="machine.json")

    def test_broken_json(self):
        self.refused_topology("machine.json", b'{"devices": [')
        self.refused_topology("machine.json", b"")
        self.refused_topology("machine.json", b"[1, 2]")

    def test_link_to_nowhere(self):
        topology = self.topology()
        link = topology["links"][0]
        link["b"] = "gpu:99"
        self.refused_topology("gpu:99", json.dumps(topology).encode())

    def test_variable_that_cannot_be_read(self):
        env = harness.environment(SIDESTEP_FILE_IO="carrier-pigeon")
        self.refused(USAGE, "SIDESTEP_FILE_IO", "topo", env=env)

    def test_files_that_variables_name(self):
        os.mkfifo(self.dir / "pipe")
        self.write("bad.json", b"{")
        for variable, words in [("SIDESTEP_PROBE_FILE", ["route", "gpu:0", "gpu:1"]),
                                ("SIDESTEP_TUNING", ["bench", "collective", "barrier", "--gpu", "0,1", "--smoke"])]:
            for name in ["nowhere.json", "pipe", "bad.json"]:
                path = str(self.dir / name)
                outcome = self.run_command(*words, env=harness.environment(**{variable: path}))
                with self.subTest(variable=variable, name=name):
                    self.assertNotEqual(outcome.code, DONE)
                    self.assertIn(f"{variable}: {path}", outcome.err)
                    self.assertNotIn("topology file", outcome.err)


class BadOptions(harness.CommandTest):
    def test_unknown_option(self):
        self.refused(USAGE, "--fast", "copy", "host", "gpu:0", "--fast")
        self.refused(USAGE, "--fast", "--fast", "topo")

    def test_unknown_verb(self):
        self.refused(USAGE, "frobnicate", "frobnicate")
        self.refused(USAGE, "frobnicate", "help", "frobnicate")

    def test_no_verb(self):
        self.refused(USAGE, "verb")

    def test_missing_and_surplus_arguments(self):
        self.refused(USAGE, "DST", "copy", "host")
        self.refused(USAGE, "gpu:1", "copy", "host", "gpu:0", "gpu:1")

    def test_values_that_cannot_be_read(self):
        for option, value in [
            ("--size", "many"),
            ("--size", "-1"),
            ("--chunk", "4KX"),
            ("--max-staging", "1.5B"),
            ("--deadline", "soon"),
            ("--deadline", "-3s"),
            ("--repeat", "0"),
            ("--repeat", "x"),
            ("--require", "everything"),
            ("--prefer", "turtle"),
        ]:
            self.refused(USAGE, [option.lstrip("-"), value], "copy", "host", "gpu:0", f"{option}={value}")

    def test_what_is_told_in_words(self):
        self.refused(USAGE, "--machine is given more than once", "topo", "--machine", "laptop")
        self.assertLess(len(self.refused(USAGE, "--node: Value -1 not in range 0 to", "topo", "--node", "-1").err), 120)

    def test_size_of_a_file_source(self):
        self.write("a", b"x" * 100)
        self.refused(USAGE, "--size", "copy", "file:a", "host", "--size", "50")


class BadFiles(harness.CommandTest):
    """Each: nothing written, nothing left behind."""

    def setUp(self):
        super().setUp()
        self.source = self.write("source", harness.bytes_that_differ(100_000))
        self.target = self.write("target", b"old target")

    def untouched(self, code, names, *arguments, **how):
        before = self.names()
        self.refused(code, names, "copy", *arguments, **how)
        self.assertEqual(self.target.read_bytes(), b"old target")
        self.assertEqual(self.source.read_bytes(), harness.bytes_that_differ(100_000))
        self.assertEqual(self.names(), before)

    def test_missing_source(self):
        self.untouched(USAGE, "file:nowhere", "file:nowhere", "file:target")
        self.untouched(USAGE, "file:nowhere", "file:nowhere", "gpu:0")
        self.untouched(USAGE, "nowhere", "file:nowhere/x", "file:target")

    def test_missing_folder_of_the_target(self):
        self.untouched(USAGE, "nowhere", "file:source", "file:nowhere/target")

    def test_missing_target_of_a_range(self):
        self.untouched(USAGE, "fresh", "file:source@0+10", "file:fresh@0+10")

    def test_file_onto_itself(self):
        self.untouched(USAGE, "source", "file:source", "file:source")
        self.untouched(USAGE, "source", "file:source", "file:./source")

    def test_file_onto_itself_by_a_link(self):
        os.symlink("source", self.dir / "symbolic")
        os.link(self.source, self.dir / "hard")
        for name in ["symbolic", "hard"]:
            self.untouched(USAGE, name, "file:source", f"file:{name}")
            self.untouched(USAGE, name, f"file:{name}", "file:source")

    def test_overlapping_ranges(self):
        os.link(self.source, self.dir / "hard")
        self.untouched(USAGE, "source", "file:source@0+1000", "file:source@999+1000")
        self.untouched(USAGE, "hard", "file:source@0+1000", "file:hard@500+1000")

    def test_sizes_that_do_not_fit(self):
        self.untouched(USAGE, "target", "file:source@0+9", "file:target@0+5")
        self.untouched(USAGE, "target", "host", "file:target@0+5", "--size", "9")

    def test_range_beyond_the_end(self):
        self.untouched(FAILED, "source", "file:source@99999+2", "file:target")
        self.untouched(FAILED, "source", "file:source@99999+2", "gpu:0")
        # A target may grow, but gets no hole.
        self.untouched(FAILED, "target", "file:source@0+4", "file:target@11+4")

    def test_things_that_are_no_files(self):
        (self.dir / "folder").mkdir()
        os.mkfifo(self.dir / "pipe")
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        here = os.open(".", os.O_RDONLY)
        os.chdir(self.dir)  # the path of a socket is limited to 108 bytes
        try:
            listener.bind("socket")
        finally:
            os.fchdir(here)
            os.close(here)
        for name in ["folder", "pipe", "socket", "/dev/null"]:
            self.untouched(USAGE, name, f"file:{name}", "file:target")
            self.untouched(USAGE, name, f"file:{name}", "gpu:0")
            self.untouched(USAGE, name, "file:source", f"file:{name}")
            self.untouched(USAGE, name, "gpu:0", f"file:{name}", "--size", "4KiB")

    def test_name_that_is_too_long(self):
        self.untouched(USAGE, "File name too long", "file:" + "x" * 300, "file:target")


class Permissions(harness.CommandTest):
    """Run as an ordinary user: root is refused nothing."""

    def setUp(self):
        super().setUp()
        self.how = {}
        if os.getuid() == 0:
            self.how = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            # The build folder may be closed to others.
            self.binary = pathlib.Path(shutil.copy(harness.BINARY, self.dir / "sidestep"))
            self.binary.chmod(0o755)
            self.addCleanup(setattr, harness, "BINARY", harness.BINARY)
            harness.BINARY = str(self.binary)
        self.dir.chmod(0o755)
        self.source = self.write("source", b"new")

    def test_source_that_may_not_be_read(self):
        self.source.chmod(0)
        for target in ["file:/tmp/sidestep-test-never", "gpu:0"]:
            self.refused(FAILED, ["source", "ermission denied"], "copy", "file:source", target, **self.how)
        self.assertFalse(os.path.exists("/tmp/sidestep-test-never"))

    def test_folder_that_may_not_be_written(self):
        self.source.chmod(0o644)
        closed = self.dir / "closed"
        closed.mkdir()
        target = closed / "target"
        target.write_bytes(b"old")
        closed.chmod(0o555)
        self.addCleanup(closed.chmod, 0o755)
        self.refused(FAILED, ["closed", "ermission denied"], "copy", "file:source", "file:closed/target", **self.how)
        self.assertEqual(target.read_bytes(), b"old")
        self.assertEqual(os.listdir(closed), ["target"])


class RequiredPath(harness.CommandTest):
    def test_no_direct_path(self):
        self.write("a", b"x" * 5000)
        self.write("b", b"old")
        self.refused(PATH_UNAVAILABLE, "file:a", "copy", "file:a", "file:b", "--require", "direct")
        self.refused(PATH_UNAVAILABLE, "file:a", "route", "file:a", "file:b", "--require", "direct")
        self.assertEqual((self.dir / "b").read_bytes(), b"old")

    def test_deadline(self):
        self.write("b", b"old")
        harness.write_long(self.dir / "a", 1 << 30)
        self.refused(FAILED, [], "copy", "file:a", "file:b", "--quiet", "--deadline", "1ms")
        self.assertEqual((self.dir / "b").read_bytes(), b"old")
        # Not for the few bytes that go ahead of a copy between memories.
        self.refused(FAILED, f"of {1 << 30} bytes copied", "copy", "host", "gpu:0", "--size", "1GiB", "--quiet", "--deadline", "1ms")

    def test_files_that_cannot_be_written(self):
        """Said before anything is measured; where it comes out later, what was measured is there to read."""
        (self.dir / "folder").mkdir()
        for option, words in [("--save", ["bench", "--smoke", "--case", "host_small"]), ("--html", ["bench", "--smoke", "--case", "host_small"]),
                              ("--save", ["bench", "collective", "barrier", "--gpu", "0,1", "--smoke"]),
                              ("--save", ["doctor", "--probe", "--size", "4KiB"]), ("--html", ["doctor"]), ("--to", ["tune", "--ranks", "2"])]:
            for path in ["nowhere/file", "folder"]:
                self.refused(USAGE, path, *words, option, path)
            with self.subTest(words=words, option=option):
                outcome = self.run_command(*words, option, "/dev/full")
                self.assertEqual(outcome.code, FAILED)
                self.assertGreater(outcome.out.count("\n"), 2)
                self.assertIn("/dev/full", outcome.err)
                outcome = self.run_command(*words, option, "/dev/full", "--json")
                self.assertEqual(outcome.code, FAILED)
                self.assertNotIn("error", json.loads(outcome.out))
                self.assertIn("/dev/full", outcome.err)

    def test_file_that_finds_no_space(self):
        """The old content stays, and nothing half-written takes a name."""

        def little_space():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

        self.write("old.json", b"old")
        for path, words in [("old.json", ["--output", "old.json"]), ("new.json", ["--output", "new.json"]), ("record/", ["--record", "record"])]:
            machine = None if path == "record/" else harness.MACHINE
            self.refused(FAILED, ["File too large", path], "topo", *words, machine=machine, preexec_fn=little_space)
            self.assertEqual(self.names(), ["old.json"])
            self.assertEqual((self.dir / "old.json").read_bytes(), b"old")

    def test_files_where_nobody_reads_the_output(self):
        def start(words, stdout):
            return harness.subprocess.Popen(
                [harness.BINARY, "--machine", harness.MACHINE, *words, "file.json"],
                stdout=stdout,
                stderr=harness.subprocess.DEVNULL,
                cwd=self.dir,
                env=harness.environment(),
            )

        for words in [["bench", "--smoke", "--case", "host_small", "--save"], ["bench", "collective", "barrier", "--gpu", "0,1", "--smoke", "--save"]]:
            reader, writer = os.pipe()
            os.close(reader)
            self.assertEqual(start(words, writer).wait(harness.LIMIT_SECONDS), FAILED)
            os.close(writer)
            self.assertGreater(len(json.loads((self.dir / "file.json").read_text())["cases"][0]["figures"]), 0)
            (self.dir / "file.json").unlink()
        # Its reader leaves after the plan: before that nothing was measured.
        tune = start(["tune", "--ranks", "2", "--to"], harness.subprocess.PIPE)
        tune.stdout.readline()
        tune.stdout.close()
        tune.wait(harness.LIMIT_SECONDS)
        self.assertTrue(json.loads((self.dir / "file.json").read_text()))

    def test_descriptors_that_are_closed(self):
        """What opens a file then gets no number at which output goes into it."""
        for number, words, code in [(0, ["topo"], DONE), (1, ["topo"], FAILED), (1, ["copy", "host", "gpu:0", "--size", "4KiB"], FAILED),
                                    (2, ["topo"], DONE), (1, ["topo", "--output", "machine.json"], DONE)]:
            outcome = self.run_command(*words, preexec_fn=lambda: os.close(number))
            with self.subTest(number=number, words=words):
                self.assertEqual(outcome.code, code, outcome.err)
                self.assertEqual("Bad file descriptor (standard output)" in outcome.err, code == FAILED, outcome.err)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            outcome = harness.subprocess.run(
                [harness.BINARY, "--machine", harness.MACHINE, "topo"],
                stdout=full,
                stderr=harness.subprocess.PIPE,
                timeout=harness.LIMIT_SECONDS,
                env=harness.environment(),
                check=False,
            )
        self.assertEqual(outcome.returncode, FAILED)
        self.assertIn(b"standard output", outcome.stderr)


class ErrorsAsJson(harness.CommandTest):
    def error(self, code, *arguments):
        outcome = self.run_command(*arguments, "--json")
        self.assertEqual(outcome.code, code)
        self.assertEqual(outcome.err, "")
        error = json.loads(outcome.out)
        self.assertEqual(list(error), ["error"])
        self.assertEqual(list(error["error"]), ["code", "message", "where", "hint"])
        for value in error["error"].values():
            self.assertIsInstance(value, str)
        self.assertNotEqual(error["error"]["message"], "")
        return error["error"]["code"]

    def test_codes(self):
        self.write("a", b"x")
        self.assertEqual(self.error(USAGE, "copy", "host", "gpu:8"), "not_found")
        self.assertEqual(self.error(USAGE, "copy", "hostt", "gpu:0"), "invalid_argument")
        self.assertEqual(self.error(USAGE, "copy", "host", "gpu:0", "--fast"), "invalid_argument")
        self.assertEqual(
            self.error(PATH_UNAVAILABLE, "copy", "file:a", "file:b", "--require", "direct"), "path_unavailable"
        )

    def test_interrupted(self):
        """At any time: also before there is anything to cancel."""
        for words in [["bench", "--case", "peer_engine", "--samples", "10000"], ["copy", "host", "gpu:0", "--size", "1GiB", "--repeat", "1000"],
                      ["doctor", "--probe", "--size", "64MiB"], ["tune"]]:
            process = harness.subprocess.Popen(
                [harness.BINARY, "--machine", harness.MACHINE, *words, "--json"], stdin=harness.subprocess.DEVNULL,
                stdout=harness.subprocess.PIPE, stderr=harness.subprocess.PIPE, cwd=self.dir, env=harness.environment())
            try:
                until = time.monotonic() + harness.LIMIT_SECONDS
                status = pathlib.Path(f"/proc/{process.pid}/status")
                while not int(status.read_text().split("SigBlk:")[1].split()[0], 16) & 1 << signal.SIGINT - 1:
                    self.assertLess(time.monotonic(), until)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=harness.LIMIT_SECONDS)
            finally:
                process.kill()
                process.communicate()
            with self.subTest(words=words):
                self.assertEqual((process.returncode, err), (harness.INTERRUPTED, b""))
                self.assertEqual(json.loads(out)["error"]["code"], "cancelled")

    def test_success_is_no_error(self):
        self.assertEqual(self.run_command("topo", "--json").code, DONE)


if __name__ == "__main__":
    unittest.main()
