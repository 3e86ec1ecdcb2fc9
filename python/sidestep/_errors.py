"""The one exception of the package, which also is what Python calls the situation."""

import errno
from typing import Any, Dict, Optional


class Error(Exception):
    """A failure of the library. With the codes of the classes below it also is Python's own exception of that kind, so that
    `except FileNotFoundError` and `except TimeoutError` find it.

    code     a word of docs/error_codes.md: 'invalid_argument', 'not_found', 'permission_denied', 'unsupported',
             'path_unavailable', 'out_of_memory', 'no_space', 'end_of_file', 'io_error', 'mismatch', 'cancelled',
             'timed_out', 'device_error', 'internal'
    message  what was wrong, naming the thing
    where    the place or call it came from; may be ''
    hint     what to do about it; may be ''
    """

    _kinds: Dict[str, type] = {}

    def __init_subclass__(cls, code: Optional[str] = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if code is not None:
            Error._kinds[code] = cls

    def __new__(cls, message: str = "", code: str = "internal", where: str = "", hint: str = "") -> "Error":
        kind = Error._kinds.get(code, cls) if cls is Error else cls
        # Without the arguments, which OSError would take for a number and a file.
        return (OSError if issubclass(kind, OSError) else Exception).__new__(kind)

    def __init__(self, message: str, code: str = "internal", where: str = "", hint: str = "") -> None:
        super().__init__()
        self.args = (message, code, where, hint)
        self.message = message
        self.code = code
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message} ({self.where})" if self.where else self.message
        return f"{text}. {self.hint}" if self.hint else text


class InvalidArgument(Error, ValueError, code="invalid_argument"):
    pass


class NotFound(Error, FileNotFoundError, LookupError, code="not_found"):
    errno = errno.ENOENT


class PermissionDenied(Error, PermissionError, code="permission_denied"):
    errno = errno.EACCES


class Unsupported(Error, NotImplementedError, code="unsupported"):
    pass


class OutOfMemory(Error, MemoryError, code="out_of_memory"):
    pass


class NoSpace(Error, OSError, code="no_space"):
    errno = errno.ENOSPC


class EndOfFile(Error, EOFError, code="end_of_file"):
    pass


class InputOutput(Error, OSError, code="io_error"):
    errno = errno.EIO


class TimedOut(Error, TimeoutError, code="timed_out"):
    errno = errno.ETIMEDOUT


class DeviceError(Error, RuntimeError, code="device_error"):
    pass
