"""sidestep ps: groups of running processes, and who waits for whom."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

import harness
from harness import INTERRUPTED

MEMBERS = {"rank", "process", "alive", "left", "place", "enqueued", "done", "last", "waiting_seconds", "error"}


class Ps(harness.GroupTest):
    def groups(self):
        return self.json_of("ps", env=self.env)["groups"]

    def wait_for(self, wanted, what, of=None):
        """The groups, once `wanted` is true of them. Fails with the words of the command `of` where that ends before."""
        until = time.monotonic() + harness.LIMIT_SECONDS
        while time.monotonic() < until:
            has_ended = of is not None and of.poll() is not None
            groups = self.groups()
            if wanted(groups):
                return groups
            if has_ended:
                self.fail(f"{what}: the command has ended: {of.communicate()}")
            time.sleep(0.05)
        return self.fail(f"{what}: {json.dumps(groups)}")

    def busy_group(self):
        """Three ranks, a process each, that go on for long."""
        command = self.start("bench", "collective", "all_reduce", "--gpu", "0,1,2", "-b", "64KiB", "-e", "64KiB",
                             "-n", "1", "--samples", "10000", "--no-verify")
        groups = self.wait_for(
            lambda groups: len(groups) == 1 and len(groups[0]["ranks"]) == 3
            and all(rank["alive"] and rank["done"] > 3 for rank in groups[0]["ranks"]), "three busy ranks", of=command)
        pids = [rank["process"] for rank in groups[0]["ranks"]]
        for pid in pids:
            self.addCleanup(self.kill, pid)
        return command, groups[0], pids

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait_until_stopped(self, pid):
        """A thread that a signal stops may still be in a call, and ends that first."""
        until = time.monotonic() + harness.LIMIT_SECONDS
        while time.monotonic() < until:
            threads = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
            if all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads):
                return
            time.sleep(0.01)
        self.fail(f"process {pid} does not stop")

    def test_nothing_runs(self):
        self.assertEqual(self.succeed("ps", env=self.env).out, "no group runs\n")
        self.assertEqual(self.json_of("ps", env=self.env), {"version": 1, "groups": []})

    def test_a_busy_group(self):
        _, group, pids = self.busy_group()
        self.assertRegex(group["id"], r"^[0-9a-f]{32}$")
        self.assertEqual(set(group), {"name", "id", "ranks", "stuck"})
        for number, rank in enumerate(group["ranks"]):
            self.assertEqual(set(rank), MEMBERS)
            self.assertEqual((rank["rank"], rank["place"], rank["error"]), (number, f"gpu:{number}", ""))
            self.assertGreaterEqual(rank["enqueued"], rank["done"])
            self.assertTrue(rank["last"])
        text = self.succeed("ps", env=self.env).out
        self.assertIn(f"{group['id']}: 3 ranks", text)
        for word in ["rank", "process", "place", "enqueued", "done", "last operation", "gpu:2", *map(str, pids)]:
            self.assertIn(word, text)

    def test_who_waits_for_whom(self):
        _, _, pids = self.busy_group()
        # Where rank 1 is stopped within an operation that all have called, nobody is behind; between enqueuing one and saying
        # so it is one further than it says: on to another place then.
        until = time.monotonic() + harness.LIMIT_SECONDS
        stuck, called, waited_in = "", 0, 0
        blames = re.compile(rf" for rank 1 \(process {pids[1]}, at operation (\d+)\) since \d+ s, in operation (\d+), ")
        # They are in the first one that it has not called.
        while waited_in != called + 1:
            self.assertLess(time.monotonic(), until, stuck)
            os.kill(pids[1], signal.SIGCONT)
            time.sleep(0.02)
            os.kill(pids[1], signal.SIGSTOP)
            groups = self.wait_for(lambda groups: groups and groups[0]["stuck"], "ranks wait")
            stuck = groups[0]["stuck"]
            if blamed := blames.search(stuck):
                called, waited_in = map(int, blamed.groups())
        waiting = [rank["waiting_seconds"] for rank in groups[0]["ranks"]]
        self.assertGreaterEqual(max(waiting[0], waiting[2]), 1)
        self.assertRegex(self.succeed("ps", env=self.env).out, blames)

    def test_one_that_left_is_not_dead(self):
        _, group, pids = self.busy_group()
        # As a rank does that leaves: the state of the first row of the board, behind its numbers, id and name. Any of them
        # that goes on would write over it.
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            self.addCleanup(os.kill, pid, signal.SIGCONT)
        for pid in pids:
            self.wait_until_stopped(pid)
        board = self.dir / "peers" / f"group-{group['id']}.board"
        with open(board, "r+b") as file:
            file.seek(3 * 8 + 64 + 128)
            file.write((2).to_bytes(8, "little"))
        text = self.succeed("ps", env=self.env).out
        self.assertRegex(text, rf"\n +0 +{pids[0]} +gpu:0 +\d+ +\d+ +left ")
        self.assertNotIn("dead", text)
        left, stays = self.groups()[0]["ranks"][:2]
        self.assertEqual((left["alive"], left["left"]), (True, True))
        self.assertEqual((stays["alive"], stays["left"]), (True, False))

    def test_the_dead_go(self):
        command, _, pids = self.busy_group()
        command.kill()
        for pid in pids:
            self.kill(pid)
        self.wait_for(lambda groups: groups == [], "nothing is left")

    def test_a_folder_that_is_none(self):
        (self.dir / "file").write_text("")
        env = harness.environment(SIDESTEP_PEER_FOLDER=str(self.dir / "file"))
        self.refused(harness.USAGE, [str(self.dir / "file"), "Not a directory"], "ps", env=env)

    def test_watching(self):
        process = self.start("ps", "--watch")
        self.assertEqual(process.stdout.readline(), b"no group runs\n")
        self.assertEqual(process.stdout.readline(), b"no group runs\n")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, INTERRUPTED)

    def test_watching_as_often_as_asked(self):
        for words in (["--watch=10ms"], ["--watch", "10ms"]):
            started = time.monotonic()
            process = self.start("ps", *words)
            lines = [process.stdout.readline() for _ in range(100)]
            self.assertEqual(set(lines), {b"no group runs\n"})
            # A list a second would take 99.
            self.assertLess(time.monotonic() - started, 60)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=harness.LIMIT_SECONDS)
            self.assertEqual(process.returncode, INTERRUPTED)

    def test_a_pause_that_makes_no_sense(self):
        for text in ("0", "-1", "often", "3x"):
            self.refused(harness.USAGE, ["--watch", f"'{text}' is not a time"], "ps", f"--watch={text}")


if __name__ == "__main__":
    unittest.main()
