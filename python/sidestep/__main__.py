"""`sidestep` of the wheel and `python -m sidestep`: the command, which is a program of its own."""

import os
import sys
from pathlib import Path


def main() -> None:
    command = Path(__file__).parent / "bin" / "sidestep"
    if not command.exists():
        sys.exit(f"sidestep: this package was built without the command ({command})")
    os.execv(command, ["sidestep", *sys.argv[1:]])


if __name__ == "__main__":
    main()
