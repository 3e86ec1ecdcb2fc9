"""sidestep run: ranks of a program on this host, and NCCL programs."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import time
import unittest

import harness
from harness import FAILED, USAGE


class RunTest(harness.GroupTest):
    def setUp(self):
        super().setUp()
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD"]:
            self.env.pop(name, None)

    def start_ranks(self, *words):
        return self.start("run", "--no-nccl", "--no-cufile", *words)

    def run_ranks(self, count, script, *options, **how):
        return self.run_command("run", "--no-nccl", "--no-cufile", "-n", count, *options, "--", "sh", "-c", script, env=self.env, **how)

    def wait_for(self, path):
        for _ in range(int(harness.LIMIT_SECONDS * 50)):
            if path.exists() and path.read_text():
                return path.read_text()
            time.sleep(0.02)
        self.fail(f"{path} did not appear")

    def wait_until_gone(self, pid):
        for _ in range(int(harness.LIMIT_SECONDS * 50)):
            try:
                if pathlib.Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] in "ZX":
                    return
            except (FileNotFoundError, ProcessLookupError):
                return
            time.sleep(0.02)
        self.fail(f"process {pid} is still there")


class Environment(RunTest):
    def test_every_rank_knows_who_it_is(self):
        outcome = self.run_ranks(3, 'echo "$SIDESTEP_RANK $SIDESTEP_RANKS $SIDESTEP_GROUP_ID $RANK $WORLD_SIZE '
                                 '$LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $SIDESTEP_MACHINE"')
        self.assertEqual(outcome.code, 0, outcome.err)
        lines = sorted(outcome.out.splitlines())
        self.assertEqual(len(lines), 3)
        ids, ports = set(), set()
        for rank, line in enumerate(lines):
            found = re.fullmatch(rf"\[{rank}\] {rank} 3 ([0-9a-f]{{32}}) {rank} 3 {rank} 3 127\.0\.0\.1 (\d+) dgx-h100", line)
            self.assertTrue(found, line)
            ids.add(found.group(1))
            ports.add(int(found.group(2)))
        self.assertEqual((len(ids), len(ports)), (1, 1))
        self.assertGreater(ports.pop(), 1023)
        other = self.run_ranks(2, 'echo "$SIDESTEP_GROUP_ID"')
        self.assertNotIn(ids.pop(), other.out)

    def test_a_rank_for_each_gpu(self):
        outcome = self.run_command("run", "--no-nccl", "--no-cufile", "-n", "gpus", "--", "sh", "-c", "echo $RANK", env=self.env)
        self.assertEqual(sorted(outcome.out.splitlines()), [f"[{rank}] {rank}" for rank in range(8)])

    def test_one_process_without_a_number(self):
        outcome = self.run_command("run", "--no-nccl", "--no-cufile", "--", "sh", "-c", 'echo "rank:$RANK$SIDESTEP_RANK"; exit 7', env=self.env)
        self.assertEqual((outcome.code, outcome.out), (7, "rank:\n"))

    def test_one_rank_is_the_process_itself(self):
        process = self.start_ranks("-n", "1", "--", "sh", "-c", "echo $$ $RANK/$WORLD_SIZE")
        out, _ = process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(out.decode(), f"{process.pid} 0/1\n")

    def test_the_timeout_and_what_was_set_before(self):
        self.env.update(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
        outcome = self.run_ranks(2, "echo $SIDESTEP_GROUP_TIMEOUT $MASTER_ADDR:$MASTER_PORT", "--timeout", "2m", "--plain")
        self.assertEqual(outcome.out, "120 10.0.0.1:29500\n" * 2)

    def test_queues_of_gpus(self):
        self.env.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        self.assertEqual(self.run_ranks(1, "echo $CUDA_DEVICE_MAX_CONNECTIONS").out, "32\n")
        self.env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        self.assertEqual(self.run_ranks(1, "echo $CUDA_DEVICE_MAX_CONNECTIONS").out, "1\n")

    def test_the_words_of_the_program_are_its_own(self):
        outcome = self.run_command("run", "--no-nccl", "--no-cufile", "--", "printf", "%s,", "--json", "--", "-n", "run", "a b", env=self.env)
        self.assertEqual(outcome.out, "--json,--,-n,run,a b,")

    def test_rank_0_reads_standard_input(self):
        done = subprocess.run([harness.BINARY, "--machine", harness.MACHINE, "run", "--no-nccl", "--no-cufile", "-n", "2", "--", "sh", "-c", "wc -c"],
                              input=b"12345", capture_output=True, env=self.env, timeout=harness.LIMIT_SECONDS, check=False)
        self.assertEqual(sorted(line.replace(" ", "") for line in done.stdout.decode().splitlines()), ["[0]5", "[1]0"])


class Output(RunTest):
    def test_lines_have_their_rank_before_them(self):
        outcome = self.run_ranks(2, 'printf "one\\ntwo"; printf "wrong\\n" >&2')
        for rank in (0, 1):
            self.assertEqual([line for line in outcome.out.splitlines() if line.startswith(f"[{rank}]")],
                             [f"[{rank}] one", f"[{rank}] two"])
        self.assertEqual(sorted(outcome.err.splitlines()), ["[0] wrong", "[1] wrong"])

    def test_lines_stay_whole(self):
        outcome = self.run_ranks(4, "i=0; while [ $i -lt 300 ]; do echo line$i-$RANK-end; i=$((i+1)); done")
        lines = outcome.out.splitlines()
        self.assertEqual(len(lines), 1200)
        for line in lines:
            self.assertRegex(line, r"^\[(\d)\] line\d+-\1-end$")

    def test_plain(self):
        self.assertEqual(self.run_ranks(2, "echo same", "--plain").out, "same\nsame\n")

    def test_much_of_it(self):
        outcome = self.run_ranks(2, "head -c 300000 /dev/zero | tr '\\0' x; echo")
        self.assertEqual(outcome.out.count("x"), 600000)

    def test_ranks_go_on_where_nobody_reads_it(self):
        """As they do where their own output is a file: a pager that was left ends no training. Their signals are as they were."""
        job = self.start_ranks("-n", "2", "--", "sh", "-c", "until [ -e go ]; do sleep 0.02; done; echo a; echo b; grep SigIgn /proc/self/status > $RANK")
        job.stdout.close()
        job.stderr.close()
        self.write("go", b"")
        self.assertEqual(job.wait(harness.LIMIT_SECONDS), 0)
        for rank in ("0", "1"):
            self.assertEqual(int((self.dir / rank).read_text().split()[1], 16) >> (signal.SIGPIPE - 1) & 1, 0)

    def test_a_bar_moves(self):
        self.assertIn("[1] 10%\r[1] 20%\r", self.run_ranks(2, 'printf "10%%\\r20%%\\r"').out)


class Ends(RunTest):
    def test_the_code_of_the_rank_that_failed(self):
        outcome = self.run_ranks(3, "[ $RANK = 1 ] && exit 5; sleep 600")
        self.assertEqual(outcome.code, 5)
        self.assertRegex(outcome.err, r"^sidestep: rank 1 \(process \d+\) ended with exit code 5; the others were ended\n$")

    def test_one_process_that_was_killed(self):
        for options in [[], ["-n", "1"]]:
            outcome = self.run_command("run", "--no-nccl", "--no-cufile", *options, "--", "sh", "-c", "kill -9 $$", env=self.env)
            self.assertIn(outcome.code, (128 + signal.SIGKILL, -signal.SIGKILL))  # it is the process that was started

    def test_a_rank_that_was_killed(self):
        outcome = self.run_ranks(2, "[ $RANK = 0 ] && kill -9 $$; sleep 600")
        self.assertEqual(outcome.code, 128 + signal.SIGKILL)
        self.assertRegex(outcome.err, r"^sidestep: rank 0 \(process \d+\) was ended by signal 9 \(Killed\); the others")

    def test_the_others_may_tidy_up(self):
        outcome = self.run_ranks(2, 'if [ $RANK = 1 ]; then while [ ! -e ready ]; do sleep 0.02; done; exit 3; fi; '
                                 'trap "echo tidied; exit 0" TERM; touch ready; while :; do sleep 0.05; done')
        self.assertEqual((outcome.code, outcome.out), (3, "[0] tidied\n"))

    def test_one_that_ignores_the_signal_is_killed(self):
        begun = time.monotonic()
        outcome = self.run_ranks(2, 'if [ $RANK = 1 ]; then while [ ! -e ready ]; do sleep 0.02; done; exit 3; fi; '
                                 'trap "" TERM; touch ready; while :; do sleep 0.05; done')
        self.assertEqual(outcome.code, 3)
        self.assertGreaterEqual(time.monotonic() - begun, 4.5)  # it was given its time

    def test_what_a_rank_started_ends_with_it(self):
        self.run_ranks(2, "sh -c 'echo $$ > child$RANK; sleep 600' & if [ $RANK = 1 ]; then while [ ! -s child0 ] || "
                       "[ ! -s child1 ]; do sleep 0.02; done; exit 3; fi; wait")
        for rank in (0, 1):
            self.wait_until_gone(int((self.dir / f"child{rank}").read_text()))

    def test_what_made_a_session_of_its_own_ends_with_the_job(self):
        self.run_ranks(2, "setsid sh -c 'echo $$ > child$RANK; sleep 600' & if [ $RANK = 1 ]; then while [ ! -s child0 ] || "
                       "[ ! -s child1 ]; do sleep 0.02; done; exit 3; fi; wait")
        for rank in (0, 1):
            self.wait_until_gone(int((self.dir / f"child{rank}").read_text()))

    def test_all_well(self):
        outcome = self.run_ranks(2, "[ $RANK = 0 ] || sleep 0.2; exit 0")
        self.assertEqual((outcome.code, outcome.err, outcome.out), (0, "", ""))

    def test_signals_are_passed_on(self):
        for number, name in ((signal.SIGTERM, "TERM"), (signal.SIGINT, "INT")):
            with self.subTest(signal=name):
                for rank in (0, 1):
                    (self.dir / f"ready{rank}").unlink(missing_ok=True)
                process = self.start_ranks("-n", "2", "--", "sh", "-c", f'trap "echo got; exit 0" {name}; '
                                     "echo 1 > ready$RANK; while :; do sleep 0.05; done")
                for rank in (0, 1):
                    self.wait_for(self.dir / f"ready{rank}")
                process.send_signal(number)
                out, err = process.communicate(timeout=harness.LIMIT_SECONDS)
                self.assertEqual((process.returncode, sorted(out.decode().splitlines())), (0, ["[0] got", "[1] got"]), err)

    def test_an_interrupt_ends_with_130(self):
        process = self.start_ranks("-n", "2", "--", "sh", "-c", "echo 1 > ready$RANK; exec sleep 600")
        for rank in (0, 1):
            self.wait_for(self.dir / f"ready{rank}")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, 130)

    def test_ranks_end_with_a_killed_command(self):
        process = self.start_ranks("-n", "2", "--", "sh", "-c", "echo $$ > pid$RANK; exec sleep 600")
        pids = [int(self.wait_for(self.dir / f"pid{rank}")) for rank in (0, 1)]
        process.kill()
        for pid in pids:
            self.wait_until_gone(pid)

    def test_a_terminal_is_not_read(self):
        # A background group that reads a terminal is stopped; ranks must not hang so.
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen(
            [harness.BINARY, "--machine", harness.MACHINE, "run", "--no-nccl", "--no-cufile", "-n", "2", "--", "wc", "-c"],
            stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env, start_new_session=True)
        os.close(slave)
        out, _ = process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(out.decode(), "[0] 0\n[1] 0\n" if out.startswith(b"[0]") else "[1] 0\n[0] 0\n")


class Refused(RunTest):
    def test_what_makes_no_sense(self):
        self.refused(USAGE, "after --", "run", env=self.env)
        self.refused(USAGE, "after --", "run", "--no-nccl", "--no-cufile", "echo", "x", env=self.env)
        self.refused(USAGE, "after --", "run", "--no-nccl", "--no-cufile", "--", env=self.env)
        for count in ["0", "-1", "x", "2000", "2x"]:
            self.refused(USAGE, ["-n", f"'{count}'"], "run", "--no-nccl", "--no-cufile", f"-n{count}", "--", "true", env=self.env)
        self.refused(USAGE, ["9 ranks", "has 8"], "run", "--no-nccl", "--no-cufile", "-n", "9", "--", "true", env=self.env)
        for time in ["soon", "-5", "1us", ""]:
            self.refused(USAGE, f"'{time}'", "run", "--no-nccl", "--no-cufile", "--timeout", time, "--", "true", env=self.env)
        for words in [["-n"], ["--timeout"], ["--nccl-library"], ["--cufile-library"]]:
            self.refused(USAGE, [words[0], "missing"], "run", *words, "--", "true", env=self.env)
        self.refused(USAGE, "--colour", "run", "--colour", "--", "true", env=self.env)
        for name in ["nccl", "cufile"]:
            self.refused(USAGE, [f"--no-{name}", f"--{name}-library"], "run", f"--no-{name}", f"--{name}-library", "x", "--", "true",
                         env=self.env)

    def test_what_is_behind_the_words_of_another_verb_stays_its_own(self):
        self.refused(USAGE, "'run' is not a place", "copy", "run", "--", "-x", env=self.env)

    def test_a_machine_that_is_none(self):
        for options in [[], ["-n", "1"]]:
            self.refused(USAGE, "no-such-machine", "run", "--no-nccl", "--no-cufile", *options, "--", "true", machine="no-such-machine",
                         env=self.env)

    def test_errors_as_json(self):
        outcome = self.run_command("--json", "run", "--no-nccl", "--no-cufile", "-n", "9", "--", "true", env=self.env)
        self.assertEqual(outcome.code, USAGE)
        self.assertEqual(json.loads(outcome.out)["error"]["where"], "-n")

    def test_no_such_program(self):
        for options in [[], ["-n", "1"], ["-n", "2"]]:
            with self.subTest(options=options):
                self.refused(USAGE, "no-such-program", "run", "--no-nccl", "--no-cufile", *options, "--", "no-such-program", env=self.env)
        (self.dir / "text").write_text("no program")
        (self.dir / "folder").mkdir()
        for options in [[], ["-n", "1"], ["-n", "2"]]:
            for name in ["./text", "./folder"]:
                with self.subTest(options=options, name=name):
                    self.refused(FAILED, [name, "Permission denied"], "run", "--no-nccl", "--no-cufile", *options, "--", name, env=self.env)

    def test_a_library_that_is_not_there(self):
        for name, other in [("nccl", "cufile"), ("cufile", "nccl")]:
            self.refused(USAGE, "none.so", "run", f"--no-{other}", f"--{name}-library", "none.so", "--", "true", env=self.env)

    def test_a_library_that_is_none(self):
        # The loader warns of it, and the program would run over its own.
        (self.dir / "text").write_text("no library")
        for name, other in [("nccl", "cufile"), ("cufile", "nccl")]:
            for file in ["text", "."]:
                self.refused(USAGE, [file, "not a library"], "run", f"--no-{other}", f"--{name}-library", file, "--", "true",
                             env=self.env)


class DropIns(RunTest):
    """Beside a lone command, whose drop-ins are empty files: the loader warns of them and goes on."""

    def setUp(self):
        super().setUp()
        self.lone = self.dir / "bin" / "sidestep"
        self.lone.parent.mkdir()
        self.lone.write_bytes(pathlib.Path(harness.BINARY).read_bytes())
        self.lone.chmod(0o755)

    def make(self, name, file):
        library = self.dir / "lib" / "sidestep" / name / file
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"")
        return str(library)

    def run_lone(self, *words, before="", preload=""):
        done = subprocess.run([self.lone, *before.split(), "run", *words, "--", "sh", "-c", "echo $LD_PRELOAD"], capture_output=True,
                              env=dict(self.env, LD_PRELOAD=preload), timeout=harness.LIMIT_SECONDS, check=False)
        said = [line for line in done.stderr.decode().splitlines() if line.startswith("sidestep: ")]
        return done.returncode, done.stdout.decode().strip(), said

    def test_nccl_has_to_be_there(self):
        self.make("cufile", "libcufile.so.0")
        code, _, said = self.run_lone()
        self.assertEqual(code, USAGE)
        for words in ["libnccl.so.2", "--no-nccl", "lib/sidestep/nccl"]:
            self.assertIn(words, " ".join(said))

    def test_both_are_set_and_said(self):
        nccl, cufile = self.make("nccl", "libnccl.so.2"), self.make("cufile", "libcufile.so.0")
        said = [f"sidestep: NCCL's calls are Sidestep's: {nccl}", f"sidestep: cuFile's calls are Sidestep's: {cufile}"]
        for words, preload, preloaded, lines in [
                ([], "", f"{nccl}:{cufile}", said),
                ([], "mine.so", f"{nccl}:{cufile}:mine.so", said),
                (["--no-nccl"], "", cufile, said[1:]),
                (["--no-cufile"], "", nccl, said[:1]),
                (["--no-nccl", "--no-cufile"], "mine.so", "mine.so", []),
                (["--no-nccl", "--no-cufile"], "", "", [])]:
            with self.subTest(words=words, preload=preload):
                self.assertEqual(self.run_lone(*words, preload=preload), (0, preloaded, lines))
        self.assertEqual(self.run_lone(before="--quiet"), (0, f"{nccl}:{cufile}", []))

    def test_a_program_without_the_one_of_cufile_goes_on_and_says_so(self):
        nccl = self.make("nccl", "libnccl.so.2")
        code, preloaded, said = self.run_lone()
        self.assertEqual((code, preloaded, len(said)), (0, nccl, 2))
        for words in ["cuFile's calls stay the program's own", "libcufile.so.0", "lib/sidestep/cufile", "--no-cufile",
                      "--cufile-library FILE"]:
            self.assertIn(words, said[1])


if __name__ == "__main__":
    unittest.main()
