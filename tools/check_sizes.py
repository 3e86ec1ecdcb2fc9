#!/usr/bin/env python3
"""Checks that functions stay within 70 lines and files within 500.

    tools/check_sizes.py [--root DIR]

A longer one needs a line in tools/size_exceptions.txt:  PATH[:FUNCTION]  REASON
A function is counted from the first line of its signature to its closing brace.
"""

import argparse
import ast
import pathlib
import re
import sys

MAX_FUNCTION = 70
MAX_FILE = 500
FOLDERS = ("include", "src", "backends", "shims", "bench", "cli", "examples", "tests", "tools", "python")
C_SUFFIXES = (".hpp", ".cpp", ".h", ".c", ".cu", ".cuh")
EXCEPTIONS = "tools/size_exceptions.txt"

# What the braces of C++ do not see: comments, strings, characters and preprocessor lines. Raw strings stand first,
# since the others would read their quotes. A digit's separator (1'000) is not a character.
BLIND = re.compile(
    r'''R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'''
    r'''|//(?:[^\n\\]|\\.)*'''
    r'''|/\*.*?\*/'''
    r'''|"(?:[^"\\\n]|\\.)*"'''
    r"""|(?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.)+'"""
    r'''|^[ \t]*\#(?:[^\n\\]|\\.)*''',
    re.DOTALL | re.MULTILINE)


def blank(text):
    """The text with everything the braces do not see replaced by spaces, line ends kept."""
    return BLIND.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def without_nested(text, opening, closing):
    """The text without what stands between two characters, themselves included."""
    kept, depth = [], 0
    for character in text:
        if character == opening:
            depth += 1
        elif character == closing:
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    return "".join(kept)


def classify(head):
    """What a brace opens, told by the text since the last ';', '{' or '}' at namespace or class level."""
    text = head.strip()
    if re.search(r"\boperator\s*[^\s\w(]+\s*\(|\boperator\s*\(\s*\)\s*\(", text):
        text = re.sub(r"\boperator\s*(\(\s*\)|[^\s\w(]+)", "operator_", text)
    flat = without_nested(text, "(", ")")
    if re.search(r"\bnamespace\b", flat) or re.fullmatch(r'extern\s*', flat):
        return "scope"
    if "(" not in text:
        # A lambda without parameters, given to a name: still code.
        if re.search(r"=\s*\[[^\]]*\]\s*$", text):
            return "function"
        return "scope" if re.search(r"\b(class|struct|union|enum)\b", flat) else "value"
    if re.search(r"\]\s*(mutable|noexcept|->[^=]*)?\s*$", flat):
        return "function"
    # 'Foo() : a_{1}' : the braces of a member's first value. 'Foo() : a_(1) {' and '... b_{2} {' open the body.
    if re.search(r"[^:]:[^:]", without_nested(flat, "<", ">")) and re.search(r"[\w>]\s*$", text):
        tail = re.search(r"(\w+)\s*$", text)
        if not (tail and tail.group(1) in ("const", "noexcept", "override", "final", "try")):
            return "value"
    if "=" in re.sub(r"[<>=!]=", "", without_nested(flat, "<", ">")):
        return "value"
    return "function"


def name_of(head):
    """The name of a function, for messages: the word before its parameters."""
    match = re.search(r"([~\w:]+|operator\s*\S+?)\s*\(([^,)]*)(,\s*(\w+))?", head)
    if not match:
        return "lambda"
    if re.fullmatch(r"TEST(_F|_P)?|TYPED_TEST(_P)?", match.group(1)) and match.group(4):
        return f"{match.group(2).strip()}.{match.group(4)}"
    return match.group(1)


def c_functions(text):
    """Yields (name, first line, last line) of every function in C, C++ or CUDA."""
    text = blank(text)
    stack, head, line = [], 0, 1
    parens = 0
    for at, character in enumerate(text):
        if character == "\n":
            line += 1
        elif character in "([":
            parens += 1
        elif character in ")]":
            parens = max(0, parens - 1)
        elif character == "{":
            inside = any(kind in ("function", "value") for kind, _, _ in stack) or parens
            before = text[head:at]
            kind = "inner" if inside else classify(before)
            first = line - before.lstrip().count("\n")
            stack.append((kind, name_of(before) if kind == "function" else "", first))
            if kind in ("scope", "function"):
                head = at + 1
        elif character == "}" and stack:
            kind, name, first = stack.pop()
            if kind == "function":
                yield name, first, line
            if kind in ("scope", "function"):
                head = at + 1
        elif character == ";" and not parens and not any(k == "inner" for k, _, _ in stack):
            head = at + 1
        elif character == ":" and re.search(r"\b(public|private|protected)\s*$", text[head:at]):
            head = at + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def read_exceptions(root):
    """{path or path:function: reason}, and what is wrong with the file itself."""
    found, problems = {}, []
    path = root / EXCEPTIONS
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.strip().partition(" ")
        if not reason.strip():
            problems.append(f"{EXCEPTIONS}:{number}: {name} has no reason")
        found[name] = reason.strip()
    return found, problems


def check_tree(root):
    root = pathlib.Path(root)
    allowed, problems = read_exceptions(root)
    unused = set(allowed)
    files = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*"))
             if p.suffix in C_SUFFIXES + (".py",) and p.is_file()]
    if not files:
        return [f"{root}: no source files found, nothing was checked"]
    for path in files:
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.count("\n")
        if lines > MAX_FILE:
            unused.discard(name)
            if name not in allowed:
                problems.append(f"{name}: {lines} lines, {MAX_FILE} are allowed")
        functions = python_functions if path.suffix == ".py" else c_functions
        for function, first, last in functions(text):
            length = last - first + 1
            if length > MAX_FUNCTION:
                unused.discard(f"{name}:{function}")
                if f"{name}:{function}" not in allowed:
                    problems.append(f"{name}:{first}: {function} has {length} lines, {MAX_FUNCTION} are allowed")
    problems += [f"{EXCEPTIONS}: {name} is not too long any more: remove its line" for name in sorted(unused)]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    problems = check_tree(parser.parse_args().root)
    for problem in problems:
        print(problem)
    print(f"check_sizes: {len(problems)} problems" if problems else "check_sizes: nothing is too long")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
