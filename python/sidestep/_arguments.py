"""What callers hand over, looked at before the library sees it: an Error that names the argument, never a TypeError."""

import os
from typing import Any, List

from ._errors import Error


def _wrong(message: str, where: str, hint: str = "") -> Error:
    return Error(message, "invalid_argument", where, hint)


def _shown(value: Any) -> str:
    """A value in an error: short, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def path_of(path: Any, where: str) -> bytes:
    """A path as the system has it, which need be no text."""
    try:
        return os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        raise _wrong(f"{_shown(path)} is no path", where, "a path is a str, bytes or an os.PathLike") from None


def paths_of(path: Any, where: str) -> List[bytes]:
    """Those of a checkpoint: one, or a list or tuple of files that belong together."""
    if isinstance(path, (list, tuple)):
        return [path_of(one, where) for one in path]
    return [path_of(path, where)]
