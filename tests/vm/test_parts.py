"""The parts of the harness that need no virtual machine."""

import json
import lzma
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import cache
import initrd
import run
import setup

HERE = pathlib.Path(__file__).resolve().parent


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


class Kernels(unittest.TestCase):
    HAVE = ["6.12.9+deb12-amd64", "6.12.117+deb12-amd64", "7.2.12+deb13-amd64", "7.3.4+deb13-amd64"]

    def test_pick(self):
        for wanted, version in (("6.12", "6.12.117"), ("6.12+", "7.3.4"), ("7.2", "7.2.12"), ("7.2+", "7.3.4"),
                                ("any", "7.3.4"), ("6.1", None), ("7.4+", None), ("7.2.12", "7.2.12")):
            with self.subTest(wanted=wanted):
                found = cache.pick(wanted, self.HAVE)
                self.assertEqual(found and found.split("+")[0], version)

    def test_no_version(self):
        with self.assertRaisesRegex(ValueError, "banana"):
            cache.pick("banana", self.HAVE)

    def test_vmlinuz(self):
        elf = b"\x7fELF" + bytes(range(256)) * 40
        packed = lzma.compress(elf, check=lzma.CHECK_CRC32) + struct.pack("<I", len(elf))
        image = bytearray(3 * 512) + bytearray(100) + packed
        image[0x1f1] = 2
        struct.pack_into("<II", image, 0x248, 100, len(packed))
        self.assertEqual(setup.unpack_vmlinuz(bytes(image), "no zstd", {}), elf)
        image[3 * 512 + 100] ^= 1
        with self.assertRaisesRegex(setup.Failed, "neither xz nor zstd"):
            setup.unpack_vmlinuz(bytes(image), "no zstd", {})


class Machines(WithFolder):
    def test_machine_file(self):
        self.write("tree.part", "-device b,c=1  # words\nmodules net\n")
        path = self.write("x.machine", "# about\n\nmodules nvme\nappend a=1 b\n-device 'a b'\ndisk d=1M\n"
                                      "trace event\ninclude tree.part\n")
        self.assertEqual(run.read_machine(path),
                         run.Machine(["nvme", "net"], ["a=1", "b"], ["d=1M"], ["event"],
                                     ["-device", "a b", "-device", "b,c=1"]))

    def test_line_that_means_nothing(self):
        for line in ("device x", "include", "include x.machine"):
            with self.subTest(line=line), self.assertRaisesRegex(ValueError, "x.machine:2"):
                run.read_machine(self.write("x.machine", f"-smp 2\n{line}\n"))

    def test_job_without_script(self):
        self.write("job/job.sh", "not executable")
        with self.assertRaisesRegex(ValueError, "no executable job.sh"):
            run.read_job(self.root / "job", [])


class Initramfs(WithFolder):
    def modules(self, builtin="kernel/lib/inside.ko\n", **depends):
        self.write("modules.builtin", builtin)
        for name, needed in depends.items():
            content = b"\x7fELF\0license=GPL\0depends=" + needed.encode() + b"\0"
            self.write(f"kernel/{name}.ko.xz", lzma.compress(content))
        return initrd.Modules(self.root)

    def names(self, modules, *wanted):
        return [name for name, content in modules.load_order(wanted)]

    def test_each_module_after_what_it_needs_and_once(self):
        modules = self.modules(top="left,right", left="bottom", right="bottom,in-side", bottom="", in_side="")
        self.assertEqual(self.names(modules, "right", "top"), ["bottom", "in_side", "right", "left", "top"])
        self.assertEqual(dict(modules.load_order(["bottom"]))["bottom"][:4], b"\x7fELF")

    def test_what_is_not_a_module(self):
        modules = self.modules(top="")
        self.assertEqual(self.names(modules, "inside", "none?", "top"), ["top"])
        with self.assertRaisesRegex(ValueError, "no module none"):
            modules.load_order(["none"])

    def test_archive(self):
        archive = initrd.cpio({"bin": None, "bin/xyz": (0o755, b"abcde"), "y": (0o644, b"")})
        found, at = {}, 0
        while at < len(archive):
            self.assertEqual((archive[at:at + 6], at % 4), (b"070701", 0))
            fields = [int(archive[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
            name = archive[at + 110:at + 110 + fields[11] - 1].decode()
            start = (at + 110 + fields[11] + 3) // 4 * 4
            found[name] = (fields[1], archive[start:start + fields[6]])
            at = (start + fields[6] + 3) // 4 * 4
        self.assertEqual(found, {"bin": (0o040755, b""), "bin/xyz": (0o100755, b"abcde"), "y": (0o100644, b""),
                                 "TRAILER!!!": (0, b"")})


class NotThere(WithFolder):
    def call(self, program, *arguments, **environment):
        return subprocess.run([sys.executable, "-B", HERE / program, *arguments], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "SIDESTEP_VM_CACHE": str(self.root / "cache"), **environment})

    def test_skips_without_a_cache(self):
        done = self.call("run.py", "any", str(HERE / "jobs/hello"))
        self.assertEqual(done.returncode, 98)
        self.assertRegex(done.stdout, "^vm: SKIPPED: .*run .*setup.py")

    def test_skips_without_the_kernel(self):
        self.write("cache/ready.json", json.dumps({"qemu": "10.0", "kernels": ["6.12.1+deb12-amd64"]}))
        done = self.call("run.py", "7.2+", str(HERE / "jobs/hello"))
        self.assertEqual(done.returncode, 98)
        self.assertRegex(done.stdout, r"^vm: SKIPPED: no kernel 7\.2\+ in .*, only 6\.12\.1\+deb12-amd64")

    def test_setup_without_packages_is_loud_and_the_skip_quotes_it(self):
        apt = self.write("bin/apt-get", "#!/bin/sh\necho 'E: the mirror cannot be reached' >&2\nexit 100\n")
        apt.chmod(0o755)
        done = self.call("setup.py", PATH=f"{self.root / 'bin'}:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 1)
        self.assertIn("CANNOT RUN", done.stdout)
        self.assertIn("the mirror cannot be reached", done.stdout)
        done = self.call("run.py", "any", str(HERE / "jobs/hello"))
        self.assertEqual(done.returncode, 98)
        self.assertRegex(done.stdout, "^vm: SKIPPED: .*the mirror cannot be reached")

    def test_setup_leaves_a_folder_of_something_else_alone(self):
        kept = self.write("cache/tools/mine", "")
        done = self.call("setup.py")
        self.assertEqual(done.returncode, 1)
        self.assertIn("holds something else", done.stdout)
        self.assertTrue(kept.exists())


if __name__ == "__main__":
    unittest.main()
