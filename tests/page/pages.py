"""The pages that the tests look at, made by make_page of reports that are made up."""

import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE_DIR = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"])
MAKE_PAGE = os.environ["SIDESTEP_MAKE_PAGE"]
sys.path.insert(0, str(SOURCE_DIR / "tools"))


def make(which, folder):
    path = pathlib.Path(folder) / f"{which}.html"
    subprocess.run([MAKE_PAGE, which, str(path)], check=True, timeout=60, stdin=subprocess.DEVNULL)
    return path


def text_of(which):
    with tempfile.TemporaryDirectory(prefix="sidestep-page-") as folder:
        return make(which, folder).read_text(encoding="utf-8")
