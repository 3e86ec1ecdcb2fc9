"""The one exception of the package."""


class Error(Exception):
    """A failure of the library.

    code     a word of docs/error_codes.md: 'invalid_argument', 'not_found', 'permission_denied', 'unsupported',
             'path_unavailable', 'out_of_memory', 'no_space', 'end_of_file', 'io_error', 'mismatch', 'cancelled',
             'timed_out', 'device_error', 'internal'
    message  what was wrong, naming the thing
    where    the place or call it came from; may be ''
    hint     what to do about it; may be ''
    """

    def __init__(self, message: str, code: str = "internal", where: str = "", hint: str = "") -> None:
        super().__init__(message, code, where, hint)
        self.message = message
        self.code = code
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message} ({self.where})" if self.where else self.message
        return f"{text}. {self.hint}" if self.hint else text
