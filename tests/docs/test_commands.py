"""Every command and Python program that README, the start page, the Python page and the guides show is run, and prints what
they say. pages.py has the rules."""

import re
import unittest

import pages

CHECKED = [*(pages.SOURCE / name for name in ("README.md", "docs/start.md", "docs/python.md", "docs/load.md", "docs/gpudirect-storage.md")),
           *sorted((pages.SOURCE / "docs/guides").glob("*.md"))]


class PageTest(unittest.TestCase):
    def test_commands_print_what_the_page_says(self):
        for path in CHECKED:
            name = path.relative_to(pages.SOURCE).as_posix()
            text = path.read_text(encoding="utf-8")
            problems, skipped = pages.check(text)
            for reason in skipped:
                with self.subTest(name):
                    self.skipTest(f"{name}, {reason}")
            with self.subTest(name):
                self.assertTrue(any(block.is_run() for block in pages.blocks_of(text)), "shows no command")
                self.assertFalse(problems, "\n".join(["", *problems]))


class DrawingTest(unittest.TestCase):
    def test_the_drawing_is_what_the_command_draws(self):
        (_, drawn), = pages.run(["sidestep topo --machine dgx-h100 --format svg"])
        self.assertEqual(drawn, (pages.SOURCE / "docs/dgx-h100.svg").read_text(encoding="utf-8").splitlines(),
                         "write it again: sidestep topo --machine dgx-h100 --output docs/dgx-h100.svg")


class NewcomerTest(unittest.TestCase):
    def test_pages_show_a_picture_of_what_they_are_about_and_say_how_long_it_takes(self):
        for name, words in (("README.md", r"!\[[^]]+\]\(docs/dgx-h100\.svg\)"), ("README.md", r"```console\n\$ sidestep doctor [^`]* +type  "),
                            ("README.md", r"!\[[^]]+\]\(docs/charts/[a-z-]+\.svg\)"), ("docs/topology.md", r"!\[[^]]+\]\(dgx-h100\.svg\)"),
                            ("docs/start.md", r"!\[[^]]+\]\(dgx-h100\.svg\)"), ("README.md", r"`make demo` [^.]* took \d+ minutes"),
                            ("docs/start.md", r"`make demo`,? [^.]* took \d+ minutes"),
                            *(("docs/start.md", re.escape(f"(guides/{guide}.md)")) for guide in ("slow-box", "slow-load", "nccl-program", "which-path"))):
            self.assertRegex((pages.SOURCE / name).read_text(encoding="utf-8"), words, name)


    def test_the_published_report_is_of_real_gpus_and_begins_with_its_rates(self):
        page = (pages.SOURCE / "docs/bench-h200.html").read_text(encoding="utf-8")
        self.assertNotIn("emulated", page.replace('"emulated":false', ""))
        self.assertLess(page.index("</b>GB/s, gpu:"), min(page.index(words) for words in ("Below 90 %", "is not on PATH")))


class ContainerTest(unittest.TestCase):
    """The Containerfile does what the documents say; nothing here builds an image."""

    TEXT = (pages.SOURCE / "Containerfile").read_text(encoding="utf-8")
    STEPS = TEXT.replace("\\\n", "").splitlines()

    def shown(self, words):
        for name in ("README.md", "docs/start.md"):
            self.assertIn(words, (pages.SOURCE / name).read_text(encoding="utf-8"), name)

    def test_it_builds_by_the_documented_command(self):
        self.shown("podman build -t sidestep .")
        (built,) = [step for step in self.STEPS if step.startswith("RUN make")]
        self.shown(f"`{built.removeprefix('RUN ')}`")

    def test_it_installs_the_documented_packages(self):
        readme = (pages.SOURCE / "README.md").read_text(encoding="utf-8")
        (row,) = [line for line in readme.splitlines() if line.startswith("| Debian packages:")]
        wanted = set(re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])) - {"libsidestep-dev"}
        self.assertEqual(set(re.findall(r"/packages/([a-z0-9-]+)_\*\.deb", self.TEXT)), wanted)

    def test_it_ends_without_root_and_without_what_built_it(self):
        last = self.STEPS[max(at for at, step in enumerate(self.STEPS) if step.startswith("FROM ")):]
        self.assertEqual([step for step in last if step.startswith(("COPY", "ADD"))], [])
        self.assertEqual([step for step in last if step.startswith("USER ")], ["USER sidestep"])
        self.assertEqual(last[-1], 'ENTRYPOINT ["sidestep"]')

    def test_its_images_can_be_named(self):
        page = (pages.SOURCE / "docs/start.md").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"--build-arg (\w+)=", page)), {step.split()[1].partition("=")[0] for step in self.STEPS if step.startswith("ARG ")})


class RulesTest(unittest.TestCase):
    """Each rule of pages.py, kept and broken."""

    def check(self, block, before=""):
        return pages.check(f"{before}```\n{block}\n```\n")

    def assert_fits(self, block):
        self.assertEqual(self.check(block)[0], [])

    def assert_problem(self, block, words):
        (problem,) = self.check(block)[0]
        self.assertIn(words, problem)

    def test_output_is_compared(self):
        self.assert_fits("$ echo one; echo two >&2\none\ntwo")
        self.assert_problem("$ echo one\ntwo", "prints\none")
        self.assert_problem("$ echo one", "prints\none")
        self.assert_problem("$ true\none", "prints")
        self.assert_problem("$ echo one\none\n$ no-such-command\n[...]", "ends with 127")

    def test_dots_stand_for_anything(self):
        self.assert_fits("$ seq 5\n1\n[...]\n5")
        self.assert_fits("$ echo one two three\none [...] three")
        self.assert_problem("$ seq 6\n1\n[...]\n5", "prints")
        self.assert_problem("$ echo one two four\none [...] three", "prints")

    def test_times_and_rates_may_differ(self):
        self.assert_fits("$ echo 8 MiB in 950 us, 3.4 GB/s, 12 %, 5.1 M copies/s\n8 MiB in 2.51 ms, 730 MB/s, 9.5 %, 12.1 M copies/s")
        self.assert_fits("$ echo 'read    64 MiB  11.32 GB/s'\nread    64 MiB   1.32 GB/s")
        self.assert_problem("$ echo 8 MiB in 950 us\n9 MiB in 950 us", "prints")
        self.assert_problem("$ echo 8 GPUs\n7 GPUs", "prints")

    def test_blocks_share_a_shell_and_a_folder(self):
        self.assert_fits("$ mkdir a; cd a; export B=3\n```\n\n```console\n$ basename $PWD $B\na\n$ false\n$ echo $?\n1")
        self.assert_fits("$ cat <<END\n> one\n> END\none")

    def test_a_shell_that_ends_early_is_a_problem(self):
        self.assert_problem("$ exit 3\n$ true", "the shell ended before: $ exit 3")

    def test_blocks_are_left_out_for_a_reason(self):
        self.assertEqual(self.check("$ no-such-command", "<!-- not run: it is not there -->\n\n"), ([], ["line 3: it is not there"]))
        self.assertEqual(len(self.check("$ no-such-command", "<!-- not run: -->\n")[0]), 1)

    def test_commands_that_nothing_would_run(self):
        self.assert_problem("sidestep copy host gpu:0", "begin commands with '$ '")
        self.assertEqual(pages.check("```text\nwords\n```\n```cpp\nint x;\n```\n"), ([], []))

    def test_programs_are_run(self):
        if not pages.PYTHON:
            self.skipTest("the Python package was not built")

        def problems(program, below=""):
            return pages.check(f"```\n$ echo 3 > n\n```\n```python\n{program}\n```\n{below}")[0]

        program = "import sidestep\nprint(int(open('n').read()) + 1)"
        self.assertEqual(problems(program), [])
        self.assertIn("ends with 1", pages.check("```py\nraise ValueError\n```\n")[0][0])
        self.assertEqual(problems(program, "\n```text\n4\n```\n"), [])
        self.assertEqual(problems(program, "words\n```text\n5\n```\n"), [])
        self.assertIn("prints\n4", problems(program, "```text\n5\n```\n")[0])
        self.assertIn("ends with 3", problems("raise SystemExit(3)")[0])


if __name__ == "__main__":
    unittest.main()
