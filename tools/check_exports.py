#!/usr/bin/env python3
"""Checks what a shared library shows and needs.

    tools/check_exports.py libsidestep.so [--header include/sidestep/sidestep.h] [--inside libsidestep_core.a]

- Every exported symbol is sidestep_* or a member of the public namespaces sidestep and sidestep::cuda.
- Every function that the C header declares is exported, and no other sidestep_* symbol is.
- Every function of the public namespaces in the archive it was made of is exported: none was forgotten.
- It needs only the C and C++ runtimes: fmt, liburing and the GPU libraries are inside or loaded later.
"""

import argparse
import pathlib
import re
import subprocess
import sys

import check_portable

# The library's own folders, as namespaces: nothing of them is anybody else's business.
INTERNAL = ("base", "driver", "topology", "peer", "backend", "backends", "route", "transfer", "checkpoint", "collective", "protocol", "context", "diagnose", "wire", "cli")
# In the public namespace, for the library's own use: the friend of the public classes.
HIDDEN = ("ContextAccess",)
RUNTIMES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1",
            "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def readable(names):
    shown = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True)
    return shown.stdout.splitlines()


def exported(library):
    """[(name in the symbol table, name in C++)] of what the library defines and shows."""
    raw = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    # Absolute symbols are the names of versions.
    names = [fields[-1].split("@")[0] for fields in raw if fields[-2] != "A"]
    return list(zip(names, readable(names)))


def public_functions(archive):
    """[(name in the symbol table, name in C++)] of the functions that the public namespaces hold."""
    raw = [line.split() for line in run("nm", "--defined-only", archive).splitlines()]
    names = sorted({fields[-1] for fields in raw if len(fields) == 3 and fields[1] == "T"})
    return [(name, text) for name, text in zip(names, readable(names))
            if text.startswith("sidestep::") and text.split("::")[1] not in INTERNAL + HIDDEN]


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", library))


def declared(header):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", pathlib.Path(header).read_text(), flags=re.DOTALL)
    return set(re.findall(r"\b(sidestep_\w+)\s*\([^;{}]*\)\s*;", text))


def problem_of(name, text):
    """Why a symbol must not be exported, or None."""
    if re.fullmatch(r"sidestep_\w+", name):
        return None
    plain = re.sub(r"^(typeinfo( name)?|vtable|VTT) for ", "", text)
    if not plain.startswith("sidestep::"):
        return "does not belong to the library"
    inner = plain[len("sidestep::"):].split("::")[0]
    if inner in INTERNAL and "::" in plain[len("sidestep::"):]:
        return f"belongs to the inside (sidestep::{inner})"
    return None


def check(library, header=None, archive=None):
    problems = []
    symbols = exported(library)
    c_symbols = {name for name, _ in symbols if name.startswith("sidestep_")}
    if not symbols:
        problems.append(f"{library} exports nothing")
    for name, text in symbols:
        reason = problem_of(name, text)
        if reason:
            problems.append(f"{text} is exported, but {reason}")
    if header:
        wanted = declared(header)
        if not wanted:
            problems.append(f"{header} declares no function sidestep_*")
        problems += [f"{name} is declared in {header}, but not exported" for name in sorted(wanted - c_symbols)]
        problems += [f"{name} is exported, but {header} does not declare it" for name in sorted(c_symbols - wanted)]
    if archive:
        shown = {name for name, _ in symbols}
        functions = public_functions(archive)
        if not functions:
            problems.append(f"{archive} holds no public function")
        problems += [f"{text} is public, but not exported: mark it SIDESTEP_API"
                     for name, text in functions if name not in shown]
    problems += [f"{library} needs {name}" for name in needed(library)
                 if name not in RUNTIMES and name not in check_portable.allowed_libraries()]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--header")
    parser.add_argument("--inside")
    arguments = parser.parse_args()
    problems = check(arguments.library, arguments.header, arguments.inside)
    for problem in problems:
        print(problem)
    print(f"check_exports: {len(problems)} problems" if problems else "check_exports: only what is meant to be seen")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
