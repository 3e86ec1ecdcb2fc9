#!/usr/bin/env python3
"""Packs the built Python package into a wheel, with the standard library alone.

    PYTHON tools/wheel.py --package build/release/python/sidestep --version 0.1.0 --license LICENSE --into build

Run by the interpreter that the wheel is for: its extension module is taken, those of others are left out. The wheel is of
the form that the packaging specifications describe (binary distribution format 1.0), and the same input gives the same
bytes.
"""

import argparse
import base64
import hashlib
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

SUMMARY = "Bytes between GPUs, host memory and files, by the shortest path the machine permits"
WHEN = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can name


def tag():
    version = "cp%d%d" % sys.version_info[:2]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{version}-{version}-{platform}"


def metadata(version):
    return (f"Metadata-Version: 2.1\nName: sidestep\nVersion: {version}\nSummary: {SUMMARY}\nLicense: Apache-2.0\n"
            "Requires-Python: >=3.9\nClassifier: Programming Language :: Python :: 3\n"
            "Classifier: Operating System :: POSIX :: Linux\nClassifier: Typing :: Typed\n")


def wheel_file():
    return f"Wheel-Version: 1.0\nGenerator: sidestep tools/wheel.py\nRoot-Is-Purelib: false\nTag: {tag()}\n"


def stripped(module):
    """The module without the names of its local functions, which are half of it; as it is where there is no strip."""
    strip = shutil.which("strip")
    if strip is None:
        return module.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / module.name
        subprocess.run([strip, "--strip-unneeded", "-o", copy, module], check=True)
        return copy.read_bytes()


def contents(package, version, license_file):
    """[(name in the wheel, bytes)], RECORD left out."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    module = package / f"_core{suffix}"
    if not module.is_file():
        sys.exit(f"wheel: there is no {module}: the package was not built for this Python")
    files = sorted(path for path in package.iterdir() if path.suffix in (".py", ".pyi") or path.name == "py.typed")
    if not any(path.name == "__init__.py" for path in files):
        sys.exit(f"wheel: {package} has no __init__.py")
    info = f"sidestep-{version}.dist-info"
    return ([(f"sidestep/{path.name}", path.read_bytes()) for path in files] +
            [(f"sidestep/{module.name}", stripped(module)),
             (f"{info}/LICENSE", license_file.read_bytes()),
             (f"{info}/METADATA", metadata(version).encode()),
             (f"{info}/WHEEL", wheel_file().encode())])


def record(files, info):
    lines = []
    for name, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    lines.append(f"{info}/RECORD,,\n")
    return "".join(lines).encode()


def pack(path, files):
    """Writes beside and renames: a wheel of that name is whole."""
    beside = path.with_suffix(".part")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            entry = zipfile.ZipInfo(name, WHEN)
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    beside.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--package", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--license", type=pathlib.Path, required=True)
    parser.add_argument("--into", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    files = contents(arguments.package, arguments.version, arguments.license)
    info = f"sidestep-{arguments.version}.dist-info"
    files.append((f"{info}/RECORD", record(files, info)))
    arguments.into.mkdir(parents=True, exist_ok=True)
    path = arguments.into / f"sidestep-{arguments.version}-{tag()}.whl"
    pack(path, files)
    print(f"wheel: {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
