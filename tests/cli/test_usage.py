"""Help, version, completion, route and topo as text."""

import os
import re
import subprocess
import unittest

import harness


class Help(harness.CommandTest):
    def test_version(self):
        self.assertRegex(self.succeed("--version").out, r"^sidestep \d+\.\d+\.\d+\n$")

    def test_help_names_verbs_and_exit_codes(self):
        for line in [("--help",), ("-h",), ("help",)]:
            text = self.succeed(*line).out
            for word in ["copy", "route", "topo", "help", "completion", "--machine", "--json", "130 interrupted"]:
                self.assertIn(word, text)

    def test_help_of_a_verb(self):
        text = self.succeed("help", "copy").out
        self.assertEqual(text, self.succeed("copy", "--help").out)
        for word in ["SRC", "DST", "--size", "--repeat", "--machine", "--verify", "130 interrupted"]:
            self.assertIn(word, text)

    def test_every_option_is_documented(self):
        text = (harness.SOURCE_DIR / "docs" / "commands.md").read_text()
        for verb in ["bench", "copy", "inspect", "ps", "route", "run", "topo", "tune"]:
            for line in self.succeed("completion", "words", "--", verb, "--").out.splitlines():
                option = line.split("\t")[0]
                if option != "--help":
                    self.assertIn(option, text)


class Text(harness.CommandTest):
    def test_route(self):
        text = self.succeed("route", "gpu:0", "gpu:5").out
        self.assertTrue(text.startswith("gpu:0 -> gpu:5"), text)
        self.assertIn("NVLink", text)
        self.assertIn("refused", text)

    def test_route_moves_nothing(self):
        self.write("a", b"x" * 100)
        self.succeed("route", "file:a", "file:b")
        self.assertEqual(self.names(), ["a"])

    def test_topo(self):
        text = self.succeed("topo").out
        self.assertIn("gpu:7", text)

    def test_live_machine(self):
        self.succeed("topo", machine="live")
        self.succeed("route", "host", "host", machine="live")
        self.succeed("copy", "host", "host", "--size", "1MiB", "--verify", machine="live")

    def test_documented_tables_agree(self):
        header = (harness.SOURCE_DIR / "include" / "sidestep" / "result.hpp").read_text()
        codes = re.findall(r"^    (\w+) = (\d+),", header, re.M)
        self.assertEqual(len(codes), 14)
        table = (harness.SOURCE_DIR / "docs" / "error_codes.md").read_text()
        for name, number in codes:
            self.assertIn(f"| {number} | `{name}` | `SIDESTEP_{name.upper()}` |", table)
        sources = ("src/base/environment.cpp", "shims/cufile/driver.cpp")
        source = "".join((harness.SOURCE_DIR / path).read_text() for path in sources)
        variables = set(re.findall(r'"(SIDESTEP_\w+)"', source))
        table = (harness.SOURCE_DIR / "docs" / "environment.md").read_text()
        self.assertEqual(variables, set(re.findall(r"^\| `(SIDESTEP_\w+)`", table, re.M)))


class Completion(harness.CommandTest):
    SCRIPT = """
        source <(sidestep completion bash)
        COMP_LINE=$1 COMP_POINT=${#1}
        _sidestep
        for reply in "${COMPREPLY[@]}"; do printf '%s\\n' "$reply"; done
    """

    def complete(self, line):
        # Under its real name, which the script's words are made with.
        folder = self.dir / "bin"
        folder.mkdir(exist_ok=True)
        if not (folder / "sidestep").exists():
            os.symlink(harness.BINARY, folder / "sidestep")
        env = harness.environment(PATH=f"{folder}:{os.environ['PATH']}")
        done = subprocess.run(
            ["bash", "--norc", "-c", self.SCRIPT, "bash", line],
            capture_output=True, cwd=self.dir, env=env, timeout=harness.LIMIT_SECONDS, check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return sorted(done.stdout.decode().split())

    def test_verbs(self):
        self.assertEqual(self.complete("sidestep co"), ["completion", "copy"])
        self.assertEqual(self.complete("sidestep help ro"), ["route"])

    def test_machines(self):
        self.assertIn("dgx-h100", self.complete("sidestep --machine dgx"))
        self.assertEqual(self.complete("sidestep topo --machine li"), ["live"])
        self.assertIn("dgx-h100", self.complete("sidestep --machine=dgx"))

    def test_places(self):
        machine = "sidestep --machine dgx-h100 copy"
        self.assertEqual(self.complete(f"{machine} gpu:"), [str(n) for n in range(8)])
        self.assertEqual(self.complete(f"{machine} host ho"), ["host", "host:0", "host:1"])
        self.assertEqual(self.complete(f"{machine} f"), ["file:"])

    def test_files(self):
        self.write("weights.bin", b"")
        (self.dir / "wide").mkdir()
        self.assertEqual(self.complete("sidestep copy file:w"), ["weights.bin", "wide/"])
        self.assertEqual(self.complete("sidestep inspect --only x we"), ["weights.bin"])
        self.assertEqual(self.complete("sidestep save we"), ["weights.bin"])
        self.assertEqual(self.complete("sidestep save w=file:we"), ["weights.bin"])
        self.assertEqual(self.complete("sidestep save w=s"), ["shared:"])

    def test_options(self):
        self.assertEqual(self.complete("sidestep copy host host --re"), ["--repeat", "--require"])
        self.assertEqual(self.complete("sidestep --re"), ["--require"])
        self.assertEqual(self.complete("sidestep copy --prefer k"), ["kernel"])

    def test_values_of_topo_and_doctor(self):
        self.assertEqual(self.complete("sidestep topo --format s"), ["svg"])
        self.assertEqual(self.complete("sidestep topo --theme d"), ["dark"])
        self.assertEqual(self.complete("sidestep topo d"), ["diff"])
        self.assertIn("dgx-a100", self.complete("sidestep topo --as dgx"))
        self.assertEqual(self.complete("sidestep copy --require h"), ["host"])
        self.assertEqual(self.complete("sidestep doctor --pr"), ["--probe"])
        self.assertEqual(self.complete("sidestep bench --case host_l"), ["host_large", "host_link"])
        self.assertEqual(self.complete("sidestep bench co"), ["collective", "compare"])
        self.assertEqual(self.complete("sidestep --machine dgx-h100 bench --from gpu:7"), ["7"])
        self.write("machine.xml", b"")
        self.assertIn("machine.xml", self.complete("sidestep --machine ma"))

    def test_operations_and_lists(self):
        self.assertEqual(self.complete("sidestep bench collective all_r"), ["all_reduce"])
        self.assertEqual(self.complete("sidestep --machine dgx-h100 load --to gpu:0,gpu:a"), ["all"])
        self.assertEqual(self.complete("sidestep help topo d"), ["diff"])
        self.assertEqual(self.complete("sidestep topo diff dgx-a"), ["dgx-a100"])


if __name__ == "__main__":
    unittest.main()
