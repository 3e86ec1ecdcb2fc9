"""Runs the real command; nothing but the standard library."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BINARY = os.environ["SIDESTEP_BINARY"]
SOURCE_DIR = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"])
MACHINE = "dgx-h100"  # a built-in machine whose GPUs are emulated, so that every test runs anywhere
# A hang is a failure, not a wait for the whole suite's limit.
LIMIT_SECONDS = 120

DONE, FAILED, USAGE, PATH_UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130


def environment(**changes):
    """The process's environment without SIDESTEP_* of the developer's shell."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIDESTEP_")}
    kept.update(changes)
    return kept


def write_long(path, size):
    """Fills a file with data: holes are left out of a copy, which is over at once then."""
    block = bytes_that_differ(1 << 20)
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(block)


def bytes_that_differ(size):
    """Test bytes without a period that a chunk could share."""
    words = bytearray()
    state = 88172645463325252
    while len(words) < min(size, 1 << 16):
        state ^= (state << 13) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0xFFFFFFFFFFFFFFFF
        words += state.to_bytes(8, "little")
    block = bytes(words[: 1 << 16])
    out = bytearray()
    number = 0
    while len(out) < size:
        out += number.to_bytes(8, "little") + block[8:]
        number += 1
    return bytes(out[:size])


# They look at no machine, and refuse to be given one.
WITHOUT_MACHINE = {"help", "completion", "ps", "cufile", "topo diff", "bench compare", "bench page"}


def takes_machine(words):
    return not WITHOUT_MACHINE & {str(words[0]), " ".join(str(word) for word in words[:2])} if words else True


class Outcome:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout.decode()
        self.err = done.stderr.decode()


class CommandTest(unittest.TestCase):
    """A folder of its own for each test, and the command run in it."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sidestep-test-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def run_command(self, *arguments, machine=MACHINE, env=None, **how):
        line = [BINARY] + (["--machine", machine] if machine and takes_machine(arguments) else []) + [str(word) for word in arguments]
        return Outcome(
            subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=LIMIT_SECONDS,
                cwd=self.dir,
                env=env or environment(),
                **how,
            )
        )

    def succeed(self, *arguments, **how):
        outcome = self.run_command(*arguments, **how)
        self.assertEqual(outcome.code, DONE, outcome.err + outcome.out)
        return outcome

    def refused(self, code, names, *arguments, **how):
        """The command ends with `code` and one line on standard error that names every word of `names`."""
        outcome = self.run_command(*arguments, **how)
        self.assertEqual(outcome.code, code, outcome.err + outcome.out)
        self.assertEqual(outcome.out, "")
        self.assertEqual(outcome.err.count("\n"), 1, outcome.err)
        self.assertTrue(outcome.err.startswith("sidestep: "), outcome.err)
        for name in [names] if isinstance(names, str) else names:
            self.assertIn(name, outcome.err)
        return outcome

    def json_of(self, *arguments, **how):
        outcome = self.succeed(*arguments, "--json", **how)
        self.assertEqual(outcome.err, "")
        return json.loads(outcome.out)

    def write(self, name, content):
        path = self.dir / name
        path.write_bytes(content)
        return path

    def names(self):
        return sorted(path.name for path in self.dir.iterdir())


class GroupTest(CommandTest):
    """Ranks that meet in the test's own folder, and commands that run while the test goes on."""

    def setUp(self):
        super().setUp()
        self.env = environment(SIDESTEP_PEER_FOLDER=str(self.dir / "peers"))

    def start(self, *words, **how):
        process = subprocess.Popen(
            [BINARY, *(["--machine", MACHINE] if takes_machine(words) else []), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir, env=self.env, **how)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()


class NodeTest(CommandTest):
    """A node with emulated GPUs, which serves for one test, and what reaches it as `n` in `self.env`."""

    def setUp(self):
        super().setUp()
        self.key = self.dir / "key"
        (self.dir / "in").mkdir()
        (self.dir / "out").mkdir()
        self.allow = f"gpu:*,host=64MiB,file:{self.dir}/in,file:{self.dir}/out=rw"

    def serve(self, *options, **settings):
        """Starts a node at any free port, with these variables; answers it, and what it said in JSON."""
        process = subprocess.Popen(
            [BINARY, "--machine", MACHINE, "serve", "--listen", "127.0.0.1:0", "--key-file", self.key,
             "--json", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.dir,
            env=environment(**settings))
        self.addCleanup(self.end, process)
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline().decode()
            self.assertTrue(line, process.stderr.read().decode() if not line else "")
            text += line
        said = json.loads(text)
        self.env = environment(SIDESTEP_NODES="n=" + said["listening"][0], SIDESTEP_KEY_FILE=str(self.key))
        return process, said

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()
