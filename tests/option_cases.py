"""The lines of option_cases.h, for tests in Python."""

import pathlib
import re
from typing import List, NamedTuple

LINE = re.compile(r"^OPTION_CASE\((\w+), (\w+), (\S+), (\w+)\)$", re.MULTILINE)


class Case(NamedTuple):
    where: str
    option: str
    value: str
    verdict: str


def cases(source_dir: str, *options: str) -> List[Case]:
    """Those of the options that are named."""
    text = (pathlib.Path(source_dir) / "tests/option_cases.h").read_text(encoding="utf-8")
    found = [Case(*match) for match in LINE.findall(text) if match[1] in options]
    assert {case.option for case in found} == set(options), options
    return found
