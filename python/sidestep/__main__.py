"""`sidestep` of the wheel and `python -m sidestep`: the command, which is a program of its own."""

import os
import sys

from ._command import path
from ._errors import Error


def main() -> None:
    try:
        os.execv(path(), ["sidestep", *sys.argv[1:]])
    except Error as error:
        sys.exit(f"sidestep: {error}")


if __name__ == "__main__":
    main()
