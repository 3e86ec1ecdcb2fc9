"""The commands and Python programs that a page shows, run, and what they print compared with what the page says.

How a page is written so that it can be checked:

- A fenced block whose first line begins with `$ ` is run. Each line that begins with `$ ` is a command, with the lines below
  it that begin with `> `. All other lines are what it prints, on standard output and standard error together.
- A block of ```python is run, as a program of its own. It ends without an error. What it prints stands in a ```text right
  below it; without one it may print anything.
- The blocks of one page run in order, in one shell, in one folder that is empty at first. `sidestep` is on PATH, and there
  is no GPU. A block may use the files of the blocks before.
- `[...]` within a line stands for anything, and alone on a line for any number of lines.
- Times, rates and shares may differ: a number before ns, us, ms, s, min, %, or a unit that ends in /s. So may the spaces
  between columns.
- `<!-- not run: reason -->` above a block leaves it out, for that reason. So does a Python package that was not built.
- A block of a shell, or of no language, that shows commands without `$ ` is a mistake. Other text is ```text.
"""

import os
import pathlib
import re
import secrets
import shlex
import signal
import subprocess
import tempfile

SOURCE = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"])
BINARY = pathlib.Path(os.environ["SIDESTEP_BINARY"]).resolve()
# An interpreter that finds the package; "": it was not built.
PYTHON = os.environ.get("SIDESTEP_DOCS_PYTHON", "")
LIMIT_SECONDS = 240
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.*?) -->\n\s*)?^```(?P<language>[^\n]*)\n(?P<body>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
SHELLS = ("", "sh", "bash", "shell", "console")
TIME = r"(?:ns|us|ms|s|min)"
VARIES = re.compile(rf"(?P<number>\d+(?:\.\d+)?)(?P<gap> ?)(?P<unit>%|{TIME}\b|[kKMGT]?i?B/s|[kMG]? ?[a-z]+/s)")
NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"


class Block:
    def __init__(self, match, text):
        self.reason, self.language = match["reason"], match["language"].split(" ")[0]
        self.line = text.count("\n", 0, match.start("language")) + 1
        self.lines = match["body"].splitlines()
        self.start, self.end = match.span()
        if self.language in ("py", "python3"):
            self.language = "python"
        if self.language == "python" and not PYTHON and not self.reason:
            self.reason = "the Python package was not built"
        self.printed = ["[...]"]  # of a program
        # A command may be shown because it fails; one that is not found is a mistake.
        self.first_bad_code = 1 if self.language == "python" else 126

    def shows_commands(self):
        return bool(self.lines) and self.lines[0].startswith("$ ")

    def is_run(self):
        return self.language == "python" or self.shows_commands()

    def commands(self):
        """Pairs of a command and the lines that it prints."""
        if self.language == "python":
            return [(f"{shlex.quote(PYTHON)} -c {shlex.quote(chr(10).join(self.lines))}", self.printed)]
        found = []
        for line in self.lines:
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> ") and not found[-1][1]:
                found[-1] = (found[-1][0] + "\n" + line[2:], [])
            else:
                found[-1][1].append(line)
        return found


def blocks_of(text):
    blocks = [Block(match, text) for match in BLOCK.finditer(text)]
    for block, below in zip(blocks, blocks[1:]):
        if block.language == "python" and below.language == "text" and not text[block.end:below.start].strip():
            block.printed = below.lines
    return blocks


def mistakes_of(text):
    """Blocks that show commands in a way that nothing would run them."""
    return [f"line {block.line}: begin commands with '$ ', or say above the block <!-- not run: reason -->, or call it ```text"
            for block in blocks_of(text)
            if block.language in SHELLS and not block.shows_commands() and not block.reason]


def escaped(text):
    return re.sub(r"(?:\\ ){2,}", " +", re.escape(text))


def pattern_of(line):
    """A regular expression of what a line of the page allows."""
    parts = []
    for part in re.split(r"(\[\.\.\.\])", line):
        if part == "[...]":
            parts.append(".*")
            continue
        end = 0
        for match in VARIES.finditer(part):
            unit = match["unit"]
            # A microsecond more may be written in another unit.
            one_of = TIME if re.fullmatch(TIME, unit) else r"[kKMGT]?i?B/s" if unit.endswith("B/s") else re.escape(unit)
            parts += [escaped(part[end:match.start()]), NUMBER, match["gap"], one_of]
            end = match.end()
        parts.append(escaped(part[end:]))
    return "".join(parts)


def fits(expected, printed):
    """Whether lines that were printed are those of the page."""
    pattern = "".join("(?:.*\n)*?" if line.strip() == "[...]" else pattern_of(line.rstrip()) + "[ \t]*\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def run(commands):
    """Runs commands in one shell in an empty folder; answers (exit code, lines) of each."""
    mark = secrets.token_hex(8)
    script = "".join(f"{command}\nsidestep_code=$?; printf '\\n{mark} %s\\n' $sidestep_code; (exit $sidestep_code)\n"
                     for command in commands)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIDESTEP_")}
    environment["PATH"] = f"{BINARY.parent}:{environment['PATH']}"
    with tempfile.TemporaryDirectory(prefix="sidestep-docs-") as folder, tempfile.TemporaryFile() as output:
        shell = subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            shell.wait(LIMIT_SECONDS)
        finally:
            # What a page leaves running ends with it.
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            shell.wait()
        output.seek(0)
        printed = output.read().decode(errors="replace")
    outcomes, start = [], 0
    for match in re.finditer(rf"\n{mark} (\d+)\n", printed):
        outcomes.append((int(match[1]), printed[start:match.start()].splitlines()))
        start = match.end()
    return outcomes


def check(text):
    """Runs a page. Answers what is wrong with it, and why blocks were left out, each with its line."""
    blocks = blocks_of(text)
    skipped = [f"line {block.line}: {block.reason}" for block in blocks if block.reason]
    wanted = [(block, *pair) for block in blocks if block.is_run() and not block.reason for pair in block.commands()]
    outcomes = run([command for _, command, _ in wanted])
    problems = mistakes_of(text)
    for (block, command, expected), (code, printed) in zip(wanted, outcomes):
        while expected and not expected[-1]:
            expected.pop()
        while printed and not printed[-1]:
            printed.pop()
        if code >= block.first_bad_code or not fits(expected, printed):
            problems.append(f"line {block.line}: $ {command}\nends with {code} and prints\n" + "\n".join(printed))
    if len(outcomes) < len(wanted):
        problems.append(f"the shell ended before: $ {wanted[len(outcomes)][1]}")
    return problems, skipped
