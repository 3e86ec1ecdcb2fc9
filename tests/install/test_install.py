"""Installs the build into a temporary prefix, moves it, and builds programs against it there."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = os.environ["SIDESTEP_BUILD_DIR"]
CMAKE = os.environ["CMAKE"]
C_PROGRAM = ROOT / "examples" / "03_from_c" / "main.c"


def run(*command, **options):
    """The output of a command that has to succeed."""
    ended = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=200, **options)
    if ended.returncode != 0:
        raise AssertionError(f"{command} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first")
        # Nothing of the install may remember where it was put.
        cls.prefix = cls.folder / "moved" / "to here"
        cls.prefix.parent.mkdir()
        (cls.folder / "first").rename(cls.prefix)
        # pkg-config 0.29 (Ubuntu 22.04) does not escape the blank of a folder it finds a file in; pkgconf does.
        found_at = cls.prefix
        if run("pkg-config", "--version").startswith("0."):
            found_at = cls.folder / "without-blank"
            found_at.symlink_to(cls.prefix)
        cls.environment = {**os.environ, "LD_LIBRARY_PATH": str(cls.prefix / "lib"),
                           "PKG_CONFIG_PATH": str(found_at / "lib" / "pkgconfig")}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def files(self):
        return {p.relative_to(self.prefix).as_posix() for p in self.prefix.rglob("*") if not p.is_dir()}

    def test_what_is_installed(self):
        files = self.files()
        version = run(self.prefix / "bin/sidestep", "--version").split()[1]
        expected = {"bin/sidestep", "lib/libsidestep.so", "lib/libsidestep.so.0", f"lib/libsidestep.so.{version}",
                    "lib/sidestep/nccl/libnccl.so.2", "lib/sidestep/cufile/libcufile.so.0", "lib/pkgconfig/sidestep.pc", "lib/cmake/sidestep/sidestep-config.cmake",
                    "lib/cmake/sidestep/sidestep-config-version.cmake",
                    "share/bash-completion/completions/sidestep", "share/zsh/site-functions/_sidestep",
                    "share/fish/vendor_completions.d/sidestep.fish", "share/man/man1/sidestep.1",
                    "share/man/man1/sidestep-topo-diff.1", "share/doc/sidestep/LICENSE"}
        self.assertLessEqual(expected, files)
        machines = {f for f in files if f.startswith("share/sidestep/machines/")}
        self.assertLessEqual({f"share/sidestep/machines/{name}" for name in ("h200x4-vm.json", "h200x2-vm/sidestep/nvml.json")},
                             machines)
        self.assertIn("h200x2-vm", run(self.prefix / "bin/sidestep", "machines"))
        public = {f"include/sidestep/{p.name}" for p in (ROOT / "include/sidestep").iterdir()}
        kept = ("lib/cmake/sidestep/sidestep-targets", "share/man/man1/sidestep-")
        others = {f for f in files - expected - public - machines if not f.startswith(kept)}
        self.assertEqual(others, set(), "nothing but the public API is installed")
        self.assertLessEqual(public, files)

    def test_no_file_names_the_build(self):
        for name in self.files():
            # Links of a recorded machine say something, and some lead nowhere.
            if not (self.prefix / name).is_file():
                continue
            content = (self.prefix / name).read_bytes()
            if name.startswith(("lib/cmake", "lib/pkgconfig")):
                self.assertNotIn(str(ROOT).encode(), content, name)
                self.assertNotIn(str(self.folder / "first").encode(), content, name)

    def test_soname(self):
        self.assertRegex(run("readelf", "-d", self.prefix / "lib/libsidestep.so"),
                         re.escape("Library soname: [libsidestep.so.0]"))

    def configure(self, build, *flags):
        return ["-S", HERE / "find_package", "-B", self.folder / build, "-G", "Ninja",
                f"-DCMAKE_PREFIX_PATH={self.prefix}", *flags]

    def test_find_package(self):
        run(CMAKE, *self.configure("consumer"))
        run(CMAKE, "--build", self.folder / "consumer")
        text = run(self.folder / "consumer" / "consumer")
        self.assertIn("gpu:5", text)
        self.assertIn("1 MiB", text)

    def test_find_package_refuses_another_version(self):
        with self.assertRaises(AssertionError) as failure:
            run(CMAKE, *self.configure("other", "-DWANTED_VERSION=0.99"))
        self.assertRegex(str(failure.exception), r'compatible\s+with\s+requested\s+version\s+"0\.99"')

    def test_pkg_config_and_a_c_program(self):
        flags = run("pkg-config", "--cflags", "--libs", "sidestep", env=self.environment).strip()
        program = self.folder / "from_c"
        # The shell reads the flags as a makefile's would: the prefix holds a blank.
        run("sh", "-c", f"{os.environ['CC']} -std=c99 -Wall -Wextra -Wpedantic -Werror "
                        f"'{C_PROGRAM}' -o '{program}' {flags}")
        self.assertIn("gpu:0", run(program, env=self.environment))
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program))
        self.assertIn("libsidestep.so.0", needed)
        self.assertNotIn("libstdc++.so.6", needed, "a C program links no C++ by itself")

    def test_pkg_config_and_a_cpp_program(self):
        flags = run("pkg-config", "--cflags", "--libs", "sidestep", env=self.environment).strip()
        program = self.folder / "from_cpp"
        run("sh", "-c", f"{os.environ['CXX']} -std=c++20 '{HERE}/find_package/main.cpp' -o '{program}' {flags}")
        self.assertIn("gpu:5", run(program, env=self.environment))

    def test_what_readme_shows(self):
        (snippet,) = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
        (self.folder / "main.cpp").write_text(snippet)
        flags = run("pkg-config", "--cflags", "--libs", "sidestep", env=self.environment).strip()
        run("sh", "-c", f"{os.environ['CXX']} -std=c++20 -Wall -Wextra -Werror main.cpp -o readme {flags}", cwd=self.folder)
        text = run(self.folder / "readme", env=self.environment, cwd=self.folder)
        self.assertIn("gpu:0 -> ", text)
        self.assertEqual((self.folder / "copy.bin").stat().st_size, 64 << 20)

    def test_version_of_pkg_config(self):
        self.assertEqual(run("pkg-config", "--modversion", "sidestep", env=self.environment).strip(),
                         run(self.prefix / "bin/sidestep", "--version").split()[1])


if __name__ == "__main__":
    unittest.main()
