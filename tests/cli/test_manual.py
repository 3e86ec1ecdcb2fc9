"""What the help, the man pages and the completions say of every command is one text, and it is true."""

import os
import pathlib
import shlex
import shutil
import subprocess
import unittest

import harness
import test_load
from harness import USAGE

# Options of the whole program, which a command has or refuses.
GENERAL = {"--machine": "dgx-h100", "--as": "dgx-h100", "--fault": "acs", "--nodes": "n=127.0.0.1:1", "--key-file": "key", "--require": "any", "--verify": None,
           "--quiet": None}


def words(*typed):
    """What the command offers for the last word."""
    done = subprocess.run([harness.BINARY, "completion", "words", "--", *typed], capture_output=True, check=True,
                          env=harness.environment(), timeout=60)
    return [line.split("\t")[0] for line in done.stdout.decode().splitlines()]


def commands():
    """All of them: ["topo", "topo diff", ...]."""
    verbs = words("")
    return verbs + [f"{verb} {word}" for verb in verbs for word in words("help", verb, "")]


class Help(harness.CommandTest):
    def help_of(self, command):
        return self.succeed("help", *command.split()).out

    def test_commands(self):
        self.assertIn("topo diff", commands())
        self.assertIn("bench net", commands())

    def test_help_of_operations(self):
        for command in ["topo diff", "bench collective", "copy"]:
            self.assertEqual(self.help_of(command), self.succeed(*command.split(), "--help").out)
        self.refused(USAGE, ["'dif'", "did you mean 'diff'?"], "help", "topo", "dif")

    def test_lines_fit_a_terminal(self):
        for command in ["", *commands()]:
            for line in self.help_of(command).split("\nExamples:\n")[0].splitlines():
                with self.subTest(command, line=line):
                    self.assertLessEqual(len(line), 100)

    def test_lines_below_a_heading_are_indented(self):
        for command in ["", *commands()]:
            for block in self.help_of(command).strip().split("\n\n"):
                heading, *lines = block.splitlines()
                if heading.endswith(":"):
                    self.assertEqual([line for line in lines if not line.startswith("  ")], [], command)

    def test_every_command_has_examples_that_are_its_own(self):
        for command in commands():
            with self.subTest(command):
                text = self.help_of(command)
                self.assertIn("\nExamples:\n", text)
                examples = text.split("\nExamples:\n")[1].split("\n\n")[0].splitlines()
                self.assertTrue(all("sidestep" in line and f"{command} " in line + " " for line in examples), examples)
                for word in shlex.split(" ".join(line.split("  # ")[0] for line in examples)):
                    if word.startswith("--") and word != "--":
                        self.assertIn(word, text.split("\nExamples:\n")[0])

    def test_examples_do_what_they_say(self):
        self.write("weights.bin", harness.bytes_that_differ(3 << 20))
        tensor = [("layers.0.weight", "U8", [4096], harness.bytes_that_differ(4096))]
        self.write("model.safetensors", test_load.safetensors(tensor))
        env = harness.environment(SIDESTEP_MACHINE="dgx-h100", SIDESTEP_PEER_FOLDER=str(self.dir / "peers"))
        for command in ["copy", "route", "load", "inspect", "topo", "topo diff", "ps", "help"]:
            for line in self.help_of(command).split("\nExamples:\n")[1].split("\n\n")[0].splitlines():
                if "--record" in line or "--watch" in line:  # of this machine; without an end
                    continue
                with self.subTest(line):
                    outcome = self.run_command(*shlex.split(line.split("  # ")[0])[1:], machine=None, env=env)
                    self.assertIn(outcome.code, (0, 1) if command == "topo diff" else (0,), outcome.err)

    def test_a_command_offers_what_it_follows_and_refuses_the_rest(self):
        followed = 0
        for command in commands():
            text = self.help_of(command)
            general = text.split("\nGeneral options")[1].split("\n\n")[0]
            self.assertEqual([option for option in ["--json", "--color"] if option not in general], [], command)
            for option in ("  --as ", "  --fault "):
                self.assertEqual(option in general, "  --machine " in general, f"{command}{option}")
            for option, value in GENERAL.items():
                offered = f"  {option} " in general
                followed += offered
                self.assertEqual(option in words(*command.split(), "--"), offered, f"{command} {option}")
                if offered or option in text.split("\nGeneral options")[0]:
                    continue
                # As many arguments as it needs, so that nothing else is wrong.
                for arguments in (["a", "b"], ["bash"], ["a"], []):
                    line = [*([option, value] if value else [option]), *command.split(), *arguments]
                    outcome = self.run_command(*line, machine=None)
                    if "does not follow" in outcome.err:
                        break
                self.assertIn(f"{command} does not follow this option ({option})", outcome.err)
                self.assertEqual(outcome.code, USAGE)
        self.assertGreater(followed, 30)

    def test_did_you_mean(self):
        for meant, line in [("topo", ["topoo"]), ("--size", ["copy", "host", "gpu:0", "--siez", "1"]),
                            ("gpu:0", ["copy", "gpuu:0", "host"]), ("host", ["route", "hots", "gpu:0"]),
                            ("--format", ["topo", "--fromat=svg"])]:
            self.refused(USAGE, f"did you mean '{meant}'?", *line)
        self.refused(USAGE, "did you mean 'dgx-h100'?", "topo", machine="dgx-h10")
        self.refused(USAGE, "did you mean 'dgx-h100'?", "topo", "diff", "dxg-h100", "dgx-a100")
        # Before what is missing: it may be what the wrong option was to have as its value.
        self.refused(USAGE, "did you mean '--verify'?", "copy", "host", "--verfy")
        for line in [["frobnicate"], ["copy", "host", "gpu:0", "--fast"]]:
            self.assertNotIn("did you mean", self.run_command(*line).err)


class ManPages(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.succeed("help", "--man", "man1")
        self.pages = sorted((self.dir / "man1").iterdir())

    def test_one_for_each_command(self):
        self.assertEqual([page.name for page in self.pages], sorted(
            ["sidestep.1"] + [f"sidestep-{command.replace(' ', '-')}.1" for command in commands()]))

    def test_formatters_accept_them(self):
        checkers = [command for command in (["mandoc", "-Tlint", "-W", "warning"], ["groff", "-man", "-ww", "-z"])
                    if shutil.which(command[0])]
        if not checkers:
            self.skipTest("neither mandoc nor groff is here: tools/setup.sh tests")
        for checker in checkers:
            done = subprocess.run([*checker, *self.pages], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            # A date would make every build another one.
            wrong = [line for line in done.stdout.decode().splitlines() if "missing date" not in line]
            self.assertEqual(wrong, [])

    def test_they_say_what_the_help_says(self):
        text = (self.dir / "man1" / "sidestep-topo.1").read_text()
        for word in ["\\-\\-format", "NCCL_TOPO_FILE", "sidestep topo \\-\\-output machine.svg", "sidestep\\-topo\\-diff"]:
            self.assertIn(word, text)


class Shells(harness.CommandTest):
    """Each shell offers what the command does."""

    def setUp(self):
        super().setUp()
        folder = self.dir / "bin"
        folder.mkdir()
        os.symlink(harness.BINARY, folder / "sidestep")
        self.env = harness.environment(PATH=f"{folder}:{os.environ['PATH']}", HOME=str(self.dir), TERM="dumb")

    def shell(self, name, *line):
        if shutil.which(name) is None:
            self.skipTest(f"{name} is not here: tools/setup.sh tests")
        done = subprocess.run([name, *line], capture_output=True, cwd=self.dir, env=self.env, timeout=60, check=False)
        return done.stdout.decode() + done.stderr.decode()

    def test_printed_scripts_are_the_installed_ones(self):
        for shell in ["bash", "zsh", "fish"]:
            script = (harness.SOURCE_DIR / "completions" / f"sidestep.{shell}").read_text()
            self.assertEqual(self.succeed("completion", shell).out, script)

    def test_fish(self):
        def complete(line):
            text = self.shell("fish", "--no-config", "-c", f"sidestep completion fish | source; complete -C '{line}'")
            return [word.split("\t")[0] for word in text.splitlines()]

        self.assertEqual(complete("sidestep topo --format s"), ["svg"])
        self.assertEqual(complete("sidestep --machine dgx-h100 copy gpu:7"), ["gpu:7"])
        self.assertIn("/bin/sh", complete("sidestep run -- /bin/s"))

    def test_zsh(self):
        driver = pathlib.Path(__file__).with_name("zsh_completion.zsh")
        for line, offered in [("sidestep topo --format s", "svg"), ("sidestep --machine dgx-h100 copy gpu:7", "gpu:7"),
                              ("sidestep topo di", "diff"), ("sidestep bench collective barr", "barrier")]:
            text = self.shell("zsh", "-f", str(driver), line)
            self.assertIn(f"line<{line.rsplit(' ', 1)[0]} {offered} >", text)


if __name__ == "__main__":
    unittest.main()
