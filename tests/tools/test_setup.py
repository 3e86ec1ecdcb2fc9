"""tools/setup.sh with a pretended system: what it installs, and what it says when it cannot."""

import os
import subprocess
import unittest

from tree import ROOT, TreeTest

DEBIAN = 'ID=debian\nVERSION_ID="12"\n'
UBUNTU_22 = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n'
UBUNTU_24 = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n'


class SetupTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.bin = self.root / "bin"
        self.log = self.root / "log"
        for tool in ("bash", "dirname", "env", "cut", "cat"):
            self.bin.mkdir(exist_ok=True)
            (self.bin / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())
        self.command("id", "echo 0")
        self.command("apt-get", f'echo "apt-get $*" >>{self.log}')

    def command(self, name, text):
        self.write(f"bin/{name}", f"#!/bin/bash\n{text}\n").chmod(0o755)

    def installed(self, *packages, everything=False):
        self.command("dpkg-query", f'case " {" ".join(packages)} " in *" ${{@: -1}} "*) echo -n installed ;; '
                                   f'*) {"echo -n installed" if everything else "exit 1"} ;; esac')

    def setup_with(self, system, *arguments, script=ROOT / "tools" / "setup.sh"):
        release = self.write("os-release", system)
        ended = subprocess.run([script, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=60,
                               env={"PATH": str(self.bin), "SIDESTEP_OS_RELEASE": str(release)})
        return ended.returncode, ended.stdout, self.log.read_text() if self.log.exists() else ""

    def test_nothing_is_done_when_everything_is_there(self):
        self.installed(everything=True)
        for system in (DEBIAN, UBUNTU_22, UBUNTU_24, "ID=other\n"):
            self.assertEqual(self.setup_with(system), (0, "", ""))

    def test_what_is_missing_is_installed(self):
        self.installed("g++", "cmake", "ninja-build", "ccache", "pkg-config", "git", "xz-utils", "iproute2", "python3", "libfmt-dev",
                       "libcli11-dev", "nlohmann-json3-dev", "liburing-dev", "python3-dev", "pybind11-dev")
        code, text, log = self.setup_with(DEBIAN)
        self.assertEqual(code, 0, text)
        first, second = log.splitlines()
        self.assertTrue(first.endswith("update"), first)
        self.assertTrue(second.endswith("install -y --no-install-recommends libxxhash-dev libexpat1-dev libssl-dev "
                                        "libcurl4-openssl-dev libibverbs-dev libgtest-dev python3-numpy"), second)

    def test_fuzzing_needs_more(self):
        self.installed()
        self.assertNotIn("clang", self.setup_with(DEBIAN)[2])
        self.log.unlink()
        self.assertIn(" clang libclang-rt-dev", self.setup_with(DEBIAN, "fuzz")[2])
        self.log.unlink()
        self.assertNotIn("libclang-rt-dev", self.setup_with(UBUNTU_22, "fuzz")[2])

    def test_a_browser_is_installed_alone_and_only_where_there_is_none(self):
        self.installed()
        code, text, log = self.setup_with(DEBIAN, "browser")
        self.assertEqual(code, 0, text)
        self.assertTrue(log.endswith("--no-install-recommends chromium-headless-shell\n"), log)
        self.log.unlink()
        code, text, log = self.setup_with(UBUNTU_24, "browser")
        self.assertEqual((code, log), (1, ""))
        self.assertIn("will be skipped", text)
        self.command("chromium", "")
        for system in (DEBIAN, UBUNTU_24, "ID=other\n"):
            self.assertEqual(self.setup_with(system, "browser"), (0, "", ""))

    def test_what_some_tests_need_is_installed_alone(self):
        self.installed()
        plain = self.setup_with(DEBIAN)[2]
        self.log.unlink()
        for asked, packages in [("launchers", "openmpi-bin"), ("tests", "zsh fish mandoc xfsprogs btrfs-progs bindfs etcd-server"), ("packages", "python3-venv dpkg-dev file")]:
            self.assertNotIn(f" {packages}", plain)
            for system in (DEBIAN, UBUNTU_22, UBUNTU_24):
                code, text, log = self.setup_with(system, asked)
                self.assertEqual(code, 0, text)
                self.assertTrue(log.endswith(f"--no-install-recommends {packages}\n"), log)
                self.log.unlink()

    def test_the_site_gets_a_folder_of_its_own(self):
        script = self.write("tools/setup.sh", (ROOT / "tools" / "setup.sh").read_text())
        script.chmod(0o755)
        for tool in ("mkdir", "cp"):
            (self.bin / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())
        # A Python that makes a copy of itself, which finds the library once pip was asked for it.
        self.command("python3", f'''
case $* in
    "-m venv"*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python3" ;;
    *import*) [ -e "$0.library" ]; exit ;;
    *) cp "$0" "$0.library" ;;
esac
echo "python3 $*" >>{self.log}''')
        self.installed(everything=True)
        self.assertEqual(self.setup_with(DEBIAN, "docs", script=script)[0], 0)
        venv, pip = self.log.read_text().splitlines()
        self.assertEqual(venv, "python3 -m venv --clear build/docs-venv")
        self.assertRegex(pip, "^python3 -m pip install .*mkdocs-material")
        self.log.unlink()
        self.assertEqual(self.setup_with(DEBIAN, "docs", script=script), (0, "", ""))

    def test_the_compiler_of_each_system(self):
        self.installed()
        self.assertIn(" g++-12 cmake", self.setup_with(UBUNTU_22)[2])
        self.log.unlink()
        self.assertIn(" g++ cmake", self.setup_with(UBUNTU_24)[2])

    def test_a_failed_installation_fails(self):
        self.installed()
        self.command("apt-get", "exit 100")
        self.assertEqual(self.setup_with(DEBIAN)[0], 100)

    def test_without_root(self):
        self.installed()
        self.command("id", "echo 1000")
        code, text, log = self.setup_with(DEBIAN)
        self.assertEqual((code, log), (1, ""))
        self.assertIn("no sudo", text)
        self.assertIn("apt-get install g++", text)
        self.command("sudo", f'echo "sudo" >>{self.log}; exec "$@"')
        code, text, log = self.setup_with(DEBIAN)
        self.assertEqual(code, 0, text)
        self.assertEqual(log.count("sudo\n"), 2)

    def test_another_system(self):
        code, text, log = self.setup_with("ID=other\n")
        self.assertEqual((code, log), (1, ""))
        self.assertIn("neither Debian nor Ubuntu", text)
        self.assertIn("liburing.h", text)

    def test_the_compiler_script(self):
        def chosen(**variables):
            ended = subprocess.run([ROOT / "tools" / "compiler.sh"], capture_output=True, text=True, timeout=60,
                                   env={"PATH": str(self.bin), **variables})
            return ended.returncode, ended.stdout.strip()

        self.assertEqual(chosen()[0], 1)
        self.command("g++-12", "")
        self.command("g++", "echo 11")
        self.assertEqual(chosen(), (0, "g++-12"))
        self.command("g++", "echo 13")
        self.assertEqual(chosen(), (0, "g++"))
        self.assertEqual(chosen(CXX="clang++-16"), (0, "clang++-16"))


if __name__ == "__main__":
    unittest.main()
