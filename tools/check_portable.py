#!/usr/bin/env python3
"""Checks that programs run on another Linux host as they are.

    tools/check_portable.py [--glibc 2.35] PROGRAM...

They may need the C library alone, and no symbol of it newer than the given version. GPU libraries are
loaded at run time; the C++ runtime is inside.
"""

import argparse
import re
import subprocess
import sys

LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version(text):
    return tuple(int(part) for part in text.split("."))


def newest_glibc(program):
    """The newest version of glibc's symbols a program asks for."""
    versions = re.findall(r"Name: GLIBC_([0-9.]+)", run("readelf", "--version-info", program))
    return max(versions, key=version, default="0")


def check(program, limit):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", program))
    problems = [f"{program} needs {name}" for name in needed if name not in allowed_libraries()]
    newest = newest_glibc(program)
    if version(newest) > version(limit):
        problems.append(f"{program} needs glibc {newest}, {limit} is allowed")
    return problems


def built_on():
    return re.search(r"([0-9]+\.[0-9]+)\s*$", run("ldd", "--version").splitlines()[0]).group(1)


def is_newer():
    """Whether this system is newer than Debian 12: what is built here is for it and for later ones."""
    return version(built_on()) > (2, 36)


def allowed_libraries():
    # A static libexpat need not be made for shared libraries there (cmake/dependencies.cmake).
    return LIBRARIES + ("libexpat.so.1",) if is_newer() else LIBRARIES


def default_limit():
    """glibc 2.35 (Ubuntu 22.04) for what is built on Debian 12 or older. Newer systems' compilers ask for
    newer symbols in ordinary calls; there a build is for that system and later ones."""
    return built_on() if is_newer() else "2.35"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--glibc", default=default_limit())
    parser.add_argument("programs", nargs="+")
    arguments = parser.parse_args()
    problems = [problem for program in arguments.programs for problem in check(program, arguments.glibc)]
    for problem in problems:
        print(problem)
    if not problems:
        newest = max((newest_glibc(program) for program in arguments.programs), key=version)
        print(f"check_portable: {len(arguments.programs)} programs need glibc {newest} and nothing else")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
