"""What callers hand over, looked at before the library sees it: an Error that names the argument, never a TypeError."""

import operator
import os
from typing import Any, Iterable, List, Mapping, Optional, Tuple

from . import _core
from ._errors import Error


def _wrong(message: str, where: str, hint: str = "") -> Error:
    return Error(message, "invalid_argument", where, hint)


def _shown(value: Any) -> str:
    """A value in an error: short, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def path_of(path: Any, where: str) -> bytes:
    """A path as the system has it, which need not be text."""
    try:
        return os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        raise _wrong(f"{_shown(path)} is not a path", where, "a path is a str, bytes or an os.PathLike") from None


def paths_of(path: Any, where: str) -> List[bytes]:
    """Those of a checkpoint: one, or a list or tuple of files that belong together."""
    if isinstance(path, (list, tuple)):
        return [path_of(one, where) for one in path]
    return [path_of(path, where)]


def text_of(text: Any, what: str, where: str) -> str:
    """Text that a file may hold; `what` tells what it is: "a tensor's name"."""
    if not isinstance(text, str):
        raise _wrong(f"{what} is {_shown(text)}, of type {type(text).__name__}", where, "it has to be a str")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(f"{what} is {_shown(text)}, which is not valid UTF-8", where) from None
    return text


def place_name_of(place: Any, what: str) -> bytes:
    """A place in words; that of a file holds a path, which need not be text."""
    if isinstance(place, str) and place.startswith("file:"):
        return path_of(place, "route")
    return text_of(place, what, "route").encode()


def machine_of(machine: Any) -> bytes:
    """The name of a machine, which may be the path of a file; empty for None."""
    if machine is None:
        return b""
    if not isinstance(machine, str):
        raise _wrong(f"machine is {_shown(machine)}, of type {type(machine).__name__}", "machine",
                     "it has to be 'live', the name of a built-in machine, or the path of a file, as a str")
    return path_of(machine, "machine")


def bytes_in(text: str) -> Optional[int]:
    """'1.5 GiB' as a number of bytes; None for what is not a size."""
    return _core.parse_bytes(text.encode(errors="surrogatepass"))


def lanes_of(lanes: Any) -> Any:
    """'all', as on the command line, is the library's 0."""
    return 0 if lanes == "all" else lanes


def progress_of(progress: Any) -> Any:
    """What is called while bytes move; None where nobody is."""
    if progress is None or callable(progress):
        return progress
    raise _wrong(f"progress is {_shown(progress)}", "progress", "it has to be callable, with (bytes done, bytes in all)")


def items_of(given: Any, what: str, where: str) -> Iterable[Tuple[Any, Any]]:
    """The pairs of a dict."""
    if not isinstance(given, Mapping):
        raise _wrong(f"{what} is a {type(given).__name__}", where, "it has to be a dict")
    return given.items()


def metadata_of(metadata: Any) -> List[Tuple[str, str]]:
    """The pairs of __metadata__, which holds text alone."""
    return [(text_of(key, "a key of metadata", "save"), text_of(value, f"metadata[{_shown(key)}]", "save"))
            for key, value in items_of(metadata, "metadata", "save")]


def patterns_of(only: Any) -> List[str]:
    """One pattern or several."""
    if isinstance(only, str):
        only = [only]
    try:
        patterns = list(only)
    except TypeError:
        raise _wrong(f"only is {_shown(only)}", "only", "it has to be a pattern of names, or a list of them") from None
    return [text_of(pattern, "a pattern", "only") for pattern in patterns]


def rules_of(shard: Any) -> List[Tuple[str, int]]:
    """{pattern: axis} or [(pattern, axis), ...]."""
    try:
        pairs = [(pattern, axis) for pattern, axis in (shard.items() if isinstance(shard, Mapping) else shard)]
    except (TypeError, ValueError):
        raise _wrong(f"shard is {_shown(shard)}", "shard",
                     "it has to be {pattern: axis}, [(pattern, axis), ...] or the path of a rules file") from None
    rules = []
    for pattern, axis in pairs:
        text_of(pattern, "a pattern", "shard")
        try:
            number = operator.index(axis)
        except TypeError:
            number = None
        if number is None or isinstance(axis, bool) or not -(1 << 31) <= number < 1 << 31:
            raise _wrong(f"the axis of '{pattern}' is {_shown(axis)}", "shard", "an axis is an int, such as 0 or -1")
        rules.append((pattern, number))
    return rules


def size_of(nbytes: Any, where: str) -> int:
    """A number of bytes."""
    try:
        number = operator.index(nbytes)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise _wrong(f"{_shown(nbytes)} is not a number of bytes", where)
    return number


def number_of(number: Any, what: str, where: str, most: int) -> int:
    """A whole number from 0 to `most`."""
    try:
        whole = operator.index(number)
    except TypeError:
        whole = -1
    if not 0 <= whole <= most:
        raise _wrong(f"{what} is {_shown(number)}", where, f"it has to be a whole number from 0 to {most}")
    return whole


def seconds_of(seconds: Any, option: str) -> float:
    """A number of seconds."""
    try:
        return float(seconds)
    except (TypeError, ValueError):
        _core.refuse_option(option, _shown(seconds))


def message_of(text: Any) -> bytes:
    """What notify() hands over: text as UTF-8, or bytes. Of an int bytes() would make as many zeros."""
    if isinstance(text, str):
        return text_of(text, "text", "notify").encode()
    try:
        return bytes(memoryview(text))
    except TypeError:
        raise _wrong(f"text is {_shown(text)}, of type {type(text).__name__}", "notify", "it has to be a str or bytes") from None


def set_options(options: Any, **values: Any) -> Any:
    """Sets what is not None; what is None stays as the library has it."""
    for name, value in values.items():
        if value is None:
            continue
        try:
            setattr(options, name, value)
        except TypeError:
            _core.refuse_option(name, _shown(value))
    return options
