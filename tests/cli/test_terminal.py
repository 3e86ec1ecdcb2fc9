"""The progress bar, Ctrl-C, and being killed in the middle."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

import harness
from harness import DONE, INTERRUPTED

GIB = 1 << 30


class Terminal:
    """The command with its standard error on a terminal."""

    def __init__(self, test, *arguments, columns=80, **changes):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [harness.BINARY, "--machine", harness.MACHINE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            cwd=test.dir,
            env={**harness.environment(TERM="xterm", NO_COLOR="1"), **changes},
        )
        os.close(slave)
        self.seen = b""
        test.addCleanup(self.close)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        os.close(self.master)

    def read_until(self, text):
        """Reads until `text` was seen; False if the terminal closed before."""
        end = time.monotonic() + harness.LIMIT_SECONDS
        while text is None or text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"nothing more within the limit; seen: {self.seen!r}")
            try:
                part = os.read(self.master, 65536)
            except OSError:  # EIO: the last writer closed the terminal
                part = b""
            if not part:
                return False
            self.seen += part
        return True

    def end(self):
        self.read_until(None)
        out = self.process.stdout.read().decode()
        return self.process.wait(timeout=harness.LIMIT_SECONDS), out


class Progress(harness.CommandTest):
    # Small pieces make a copy that is slow enough to be seen.
    SLOW_COPY = ["copy", "file:a", "gpu:0", "--chunk", "4KiB"]

    def setUp(self):
        super().setUp()
        with open(self.dir / "a", "wb") as file:
            file.truncate(256 << 20)

    def test_bar(self):
        # Again and again: a busy machine may copy all before anyone has looked.
        terminal = Terminal(self, *self.SLOW_COPY, "--repeat", "100000")
        terminal.read_until(b" left")
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.end()
        self.assertEqual(code, INTERRUPTED)
        seen = terminal.seen.decode()
        self.assertRegex(seen, r"\r\[#*-*\] +\d+ %  .* of 256 MiB  .*GB/s  .* left\x1b\[K\r")
        self.assertIn("\r\x1b[Ksidestep: ", seen)
        self.assertIn("256 MiB", out)
        self.assertNotIn("\x1b", out)

    def test_the_bar_is_wiped(self):
        terminal = Terminal(self, *self.SLOW_COPY)
        code, out = terminal.end()
        self.assertEqual(code, DONE)
        self.assertTrue(terminal.seen.endswith(b"\r\x1b[K"), terminal.seen[-40:])
        self.assertIn("256 MiB", out)
        self.assertNotIn("\x1b", out)

    def test_fits_a_narrow_terminal(self):
        terminal = Terminal(self, *self.SLOW_COPY, columns=30)
        self.assertEqual(terminal.end()[0], DONE)
        lines = terminal.seen.decode().replace("\x1b[K", "").split("\r")
        self.assertGreater(len(lines), 2)
        self.assertLess(max(map(len, lines)), 30)

    def test_no_bar_when_asked_or_as_json(self):
        for option in ["--quiet", "--json"]:
            terminal = Terminal(self, *self.SLOW_COPY, option)
            self.assertEqual(terminal.end()[0], DONE)
            self.assertEqual(terminal.seen, b"")

    def test_no_bar_without_a_terminal(self):
        self.assertEqual(self.succeed(*self.SLOW_COPY).err, "")


class LongVerbs(harness.CommandTest):
    """What takes long says what it is at, and keeps what it has when it is interrupted."""

    def test_what_is_said(self):
        (self.dir / "fleet").mkdir()
        for node in range(3):
            self.succeed("topo", "--json", "--output", self.dir / f"fleet/node{node}.json")
        for words, said in [(["copy", "gpu:0", "gpu:1", "--size", "1GiB"], ["filling ", "of 1 GiB at gpu:0"]),
                            (["copy", "gpu:0", "gpu:1", "--size", "1GiB", "--verify"], ["  verifying"]),
                            (["doctor", "--probe", "--size", "1MiB"], ["copies between GPUs begin", "1 of 56 pairs", "56 of 56 pairs"]),
                            (["bench", "collective", "barrier", "--gpu", "0,1", "--smoke"], ["barrier: 2 ranks start"]),
                            (["doctor", "--fleet", "fleet"], ["0 of 3 machines", "2 of 3 machines"]),
                            (["tune", "--ranks", "2"], ["1 of ", ": one-shot Lamport"])]:
            with self.subTest(words=words):
                terminal = Terminal(self, *words)
                terminal.end()
                for one in said:
                    self.assertIn(one, terminal.seen.decode())

    def test_publish_fills_first(self):
        terminal = Terminal(self, "publish", "gpu:0", "kv", "--size", "1GiB", SIDESTEP_PEER_FOLDER=str(self.dir / "peers"))
        terminal.read_until(b"of 1 GiB")
        self.assertIn(b"filling ", terminal.seen)

    def test_interrupted(self):
        collective = ["bench", "collective", "all_reduce", "broadcast", "all_gather", "--samples", "3", "--gpu", "0,1"]
        for words, until, kept in [(["doctor", "--probe", "--size", "16MiB"], b"3 of 56 pairs", "GB/s by"),
                                   (["tune", "--ranks", "2"], b"2 of ", "one-shot packets"),
                                   (collective, None, "interrupted: not all sizes")]:
            with self.subTest(words=words):
                terminal = Terminal(self, *words)
                if until:
                    terminal.read_until(until)
                else:
                    while not terminal.process.stdout.readline().endswith(b"sidestep\n"):  # a row of the first operation
                        self.assertIsNone(terminal.process.poll())
                terminal.process.send_signal(signal.SIGINT)
                code, out = terminal.end()
                self.assertEqual(code, INTERRUPTED, out)
                self.assertIn(kept, out)
                self.assertNotIn("all_gather", out)


class FirstLine(harness.GroupTest):
    """What takes long says what it is about to do, in a pipe too, where there is no bar."""

    def setUp(self):
        super().setUp()
        for name, size in [("long", 4 * GIB), ("short", 16 << 20)]:  # sparse
            header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
            path = self.write(name + ".safetensors", struct.pack("<Q", len(header)) + header)
            os.truncate(path, 8 + len(header) + size)
        harness.write_long(self.dir / "a", GIB)

    def test_it_comes_before_the_work(self):
        for said, words in [
            ("256 MiB, gpu:0 -> gpu:1   1 hop, expected ", ["copy", "gpu:0", "gpu:1", "--repeat", "100000"]),
            ("1 GiB, file:a -> file:b   2 hops, expected ", ["copy", "file:a", "file:b", "--chunk", "4KiB"]),
            ("loading long.safetensors to host: 1 tensor, 4 GiB in 1 file", ["load", "long.safetensors", "--to", "host", "--chunk", "4KiB"]),
            ("saving 4 GiB of long.safetensors to b.safetensors", ["save", "long.safetensors", "b.safetensors", "--chunk", "4KiB"]),
            ("reading long.safetensors: 1 tensor, 4 GiB in 1 file", ["inspect", "long.safetensors", "--manifest", "b.json"]),
            ("measuring 7 algorithms of all_reduce on 2 GPUs, from 8 B to 256 KiB", ["tune", "--ranks", "2"]),
            ("copying 16 MiB over each of 56 pairs of GPUs", ["doctor", "--probe", "--size", "16MiB"]),
            ("machine dgx-h100; ", ["bench", "--samples", "10000"]),
            ("machine dgx-h100; ", ["bench", "collective", "--gpu", "0,1", "--samples", "10000"]),
        ]:
            process = self.start(*words)
            self.assertTrue(select.select([process.stdout], [], [], harness.LIMIT_SECONDS)[0], words)
            self.assertEqual(process.stdout.readline().decode()[:len(said)], said, words)
            process.send_signal(signal.SIGINT)  # which finds the work not done
            process.communicate(timeout=harness.LIMIT_SECONDS)
            self.assertEqual(process.returncode, INTERRUPTED, words)

    def test_what_is_refused_has_none(self):
        for words in [["copy", "gpu:0", "gpu:99"], ["copy", "file:a", "file:nowhere/b"],
                      ["load", "long.safetensors", "--to", "gpu:99"], ["save", "long.safetensors", "nowhere/b.safetensors"],
                      ["inspect", "long.safetensors", "--manifest", "long.safetensors"],
                      ["inspect", "long.safetensors", "--manifest", "nowhere/b.json"],
                      ["inspect", "long.safetensors", "--verify-manifest", "nowhere.json"]]:
            with self.subTest(words=words):
                self.refused(harness.USAGE, words[-1].split("/")[0], *words)
        for place, name, named in [("gpu:99", "kv", "gpu:99"), ("gpu:0", "a/b", "a/b")]:
            self.refused(harness.USAGE, named, "publish", place, name)

    def test_memory_is_published_when_it_is_filled(self):
        process = self.start("publish", "gpu:0", "kv", "--size", "16MiB")
        self.assertEqual(process.stdout.readline(), b"filling 16 MiB at gpu:0\n")
        self.assertTrue(process.stdout.readline().startswith(b"published 16 MiB"))

    def test_documents_silence_and_little_work_have_none(self):
        copy = ["copy", "gpu:0", "gpu:1", "--size"]
        self.assertEqual(self.succeed(*copy, "15MiB").out.count("\n"), 1)
        for words in [[*copy, "16MiB"], ["load", "short.safetensors"], ["save", "short.safetensors", "b.safetensors"],
                      ["inspect", "short.safetensors", "--manifest", "b.json"]]:
            with self.subTest(words=words):
                self.assertRegex(self.succeed(*words).out, "^(16 MiB, |loading |saving |reading )")
                self.json_of(*words)
                quiet = self.succeed(*words, "--quiet")
                self.assertEqual((quiet.out, quiet.err), ("", ""))


class Stopped(harness.CommandTest):
    def setUp(self):
        super().setUp()
        harness.write_long(self.dir / "a", GIB)
        self.target = self.write("b", b"old target")

    def at_start(self, hangup):
        """What a command that this test starts does with SIGHUP."""
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, hangup))

    def start(self, *arguments):
        # In pieces so small that no test waits for its end.
        terminal = Terminal(self, "copy", "file:a", *arguments, "--chunk", "512")
        self.assertTrue(terminal.read_until(b"GB/s"), terminal.seen)  # bytes are moving
        return terminal

    def test_interrupt(self):
        self.at_start(signal.SIG_DFL)
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            terminal = self.start("file:b")
            terminal.process.send_signal(number)
            code, out = terminal.end()
            self.assertEqual(code, INTERRUPTED)
            self.assertEqual(out.count("\n"), 1, out)  # of what was about to be done
            self.assertIn(b"sidestep: ", terminal.seen)
            self.assertEqual(self.target.read_bytes(), b"old target")
            self.assertEqual(self.names(), ["a", "b"])

    def test_a_terminal_is_lost_under_nohup(self):
        self.at_start(signal.SIG_IGN)
        terminal = Terminal(self, "copy", "file:a", "file:b", "--chunk", "64KiB")
        self.assertTrue(terminal.read_until(b"GB/s"), terminal.seen)
        terminal.process.send_signal(signal.SIGHUP)
        self.assertEqual(terminal.end()[0], DONE)
        self.assertEqual(self.target.stat().st_size, GIB)

    def test_interrupt_leaves_no_new_file(self):
        terminal = self.start("file:fresh")
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.end()[0], INTERRUPTED)
        self.assertEqual(self.names(), ["a", "b"])

    def test_kill(self):
        terminal = self.start("file:b")
        terminal.process.kill()
        self.assertEqual(terminal.end()[0], -signal.SIGKILL)
        self.assertEqual(self.target.read_bytes(), b"old target")

    def test_interrupt_between_runs(self):
        with open(self.dir / "small", "wb") as file:
            file.truncate(64 << 20)
        process = subprocess.Popen(
            [harness.BINARY, "copy", "file:small", "host", "--repeat", "100000", "--machine", harness.MACHINE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.dir,
            env=harness.environment(),
        )
        self.assertTrue(process.stdout.readline().startswith(b"64 MiB, file:small -> host "))
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=harness.LIMIT_SECONDS)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertEqual(out, b"")


class Colour(harness.CommandTest):
    def errors(self, *options, **changes):
        """What an error looks like on a terminal."""
        terminal = Terminal(self, "topo", "--fast", *options, **{"NO_COLOR": "", **changes})
        terminal.end()
        return terminal.seen

    def test_on_terminals_alone(self):
        self.assertIn(b"\x1b[1;31msidestep:\x1b[0m there is no option", self.errors())
        self.assertNotIn("\x1b", self.run_command("topo", "--fast").err)
        self.assertNotIn("\x1b", self.succeed("topo").out)

    def test_asked_for_and_forbidden(self):
        for how in [{"options": ["--color", "never"]}, {"NO_COLOR": "1"}, {"TERM": "dumb"}]:
            self.assertNotIn(b"\x1b", self.errors(*how.pop("options", []), **how))
        self.assertIn(b"\x1b", self.errors("--color=always", NO_COLOR="1"))
        self.assertIn("\x1b[32mNV18\x1b[0m", self.succeed("topo", "--color", "always").out)
        self.assertIn("\x1b[1mExamples:\x1b[0m", self.succeed("topo", "--help", "--color=always").out)
        self.assertNotIn("\x1b", self.succeed("topo", "--json", "--color", "always").out)
        self.refused(harness.USAGE, ["--color", "sometimes"], "topo", "--color", "sometimes")


if __name__ == "__main__":
    unittest.main()
