#!/usr/bin/env python3
"""Checks the words of the tree and the links of its documents.

    tools/check_texts.py [--root DIR]

- No absolute path of somebody's machine, no work left open in a comment.
- Every relative link in a *.md file leads to a file that is there, and to a heading that is there.
- An empty line stands before every list in a *.md file: without it the site shows the list as words of the paragraph.
"""

import argparse
import pathlib
import re
import sys

# Written so that this file does not hold them itself.
FORBIDDEN = [
    (r"/" r"work/|/" r"home/\w+/|/" r"root/", "a path of one machine"),
    (r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b", "a mark of unfinished work"),
    (r"pypi\." r"org|deb\.debian\." r"org|archive\.ubuntu\." r"com", "the host of a package registry"),
]
SUFFIXES = (".hpp", ".cpp", ".h", ".c", ".cu", ".cuh", ".py", ".sh", ".md", ".cmake", ".txt", ".json", ".map", ".in")
NAMES = ("Makefile", "run")
SKIPPED = (".git", "build", "install", "__pycache__", ".cache")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
LIST = re.compile(r"^(?!- |  |#|<!--)[^\n]+\n(?=- )", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


def text_files(root):
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if parts[0] in SKIPPED or "__pycache__" in parts or not path.is_file():
            continue
        if path.suffix in SUFFIXES or path.name in NAMES:
            yield path


def anchors(document):
    """The headings of a document as the links write them."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*?)\s*#*$", FENCE.sub("", document), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        number = 0
        while slug + (f"-{number}" if number else "") in found:
            number += 1
        found.add(slug + (f"-{number}" if number else ""))
    return found


def check_words(name, text):
    problems = []
    for pattern, what in FORBIDDEN:
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{name}:{line}: {what}: {match.group()}")
    return problems


def check_links(root, path, text):
    problems = []
    name = path.relative_to(root).as_posix()
    without_code = re.sub(r"`[^`\n]*`", "", FENCE.sub(lambda m: "\n" * m.group().count("\n"), text))
    for match in LINK.finditer(without_code):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        line = without_code.count("\n", 0, match.start()) + 1
        file, _, anchor = target.partition("#")
        document = (path.parent / file) if file else path
        if not document.exists():
            problems.append(f"{name}:{line}: the link {target} leads nowhere")
        elif anchor and document.suffix == ".md" and anchor not in anchors(document.read_text(encoding="utf-8")):
            problems.append(f"{name}:{line}: the link {target} names no heading of that document")
    return problems


def check_lists(name, text):
    without_code = FENCE.sub(lambda m: "\n" * m.group().count("\n"), text)
    lines = [without_code.count("\n", 0, match.end()) + 1 for match in LIST.finditer(without_code)]
    return [f"{name}:{line}: no empty line before a list" for line in lines]


def check_tree(root):
    root = pathlib.Path(root).resolve()
    problems, count = [], 0
    for path in text_files(root):
        count += 1
        text = path.read_text(encoding="utf-8", errors="replace")
        problems += check_words(path.relative_to(root).as_posix(), text)
        if path.suffix == ".md":
            problems += check_links(root, path, text) + check_lists(path.relative_to(root).as_posix(), text)
    if count == 0:
        problems.append(f"{root}: no files found, nothing was checked")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    problems = check_tree(parser.parse_args().root)
    for problem in problems:
        print(problem)
    print(f"check_texts: {len(problems)} problems" if problems else "check_texts: nothing to change")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
