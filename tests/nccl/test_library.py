"""libnccl.so.2 shows NCCL's symbols and nothing else, and runs where NCCL's own would."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = os.environ["SIDESTEP_NCCL_LIBRARY"]
EXTRA = {"sidestepNcclSetDevice"}


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


class LibraryTest(unittest.TestCase):
    def symbols(self):
        """{name: letter of nm} of what the library shows."""
        rows = [line.split() for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines()]
        return {row[-1].split("@")[0]: row[-2] for row in rows}

    def test_the_symbols_of_nccl_and_one_more(self):
        # What NVIDIA's wheels of 2.28.9 show, and what those of 2.29.7, 2.30.7, 2.31.2 and 2.32.3 added (nm -D). Not here:
        # ncclResetDebugInitInternal, which no header declares.
        names, later = [(HERE / file).read_text().split() for file in ("symbols.txt", "later_symbols.txt")]
        self.assertEqual((len(names), len(later), len(set(names + later))), (52, 44, 96))
        wanted = {prefix + name for name in names + later for prefix in ("nccl", "pnccl")} | EXTRA
        self.assertEqual(set(self.symbols()), wanted)

    def test_plain_names_can_be_replaced(self):
        for name, letter in self.symbols().items():
            self.assertEqual(letter, "W" if name.startswith("nccl") else "T", name)

    def test_the_name_it_is_found_by(self):
        soname = re.findall(r"\(SONAME\).*\[(.*)\]", run("readelf", "-d", LIBRARY))
        self.assertEqual(soname, ["libnccl.so.2"])
        self.assertEqual(pathlib.Path(LIBRARY).name, "libnccl.so.2")

    def test_it_stays_loaded_and_needs_the_c_library_alone(self):
        self.assertIn("NODELETE", run("readelf", "-d", LIBRARY))
        print(run(sys.executable, ROOT / "tools" / "check_portable.py", LIBRARY).strip())

    def test_it_says_once_that_it_runs_where_it_is_asked(self):
        program = f"""import ctypes
library = ctypes.CDLL({LIBRARY!r})
for _ in range(2):
    comms = (ctypes.c_void_p * 2)()
    assert library.ncclCommInitAll(comms, 2, None) == 0
    assert not any(library.ncclCommDestroy(ctypes.c_void_p(comm)) for comm in comms)"""
        with tempfile.TemporaryDirectory(prefix="sidestep-nccl-") as peers:
            environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIDESTEP_", "NCCL_"))}
            environment |= {"SIDESTEP_MACHINE": "dgx-h100", "SIDESTEP_PEER_FOLDER": peers}
            for name, value, lines in [("NCCL_DEBUG", "VERSION", 1), ("NCCL_DEBUG", "INFO", 1), ("SIDESTEP_LOG", "info", 1),
                                       ("NCCL_DEBUG", "", 0), ("SIDESTEP_LOG", "warn", 0)]:
                with self.subTest(f"{name}={value}"):
                    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                                          env=environment | {name: value}).stderr
                    pattern = rf"sidestep: info: Sidestep \d\S* answers in the place of NCCL: {re.escape(LIBRARY)}\n"
                    self.assertEqual(len(re.findall(pattern, said)), lines, said)

    def test_other_variables_of_nccl_are_not_read(self):
        library = pathlib.Path(LIBRARY).read_bytes()
        for name in ["ALGO", "PROTO", "COMM_ID", "COMM_BLOCKING", "NVLS_ENABLE", "SOCKET_IFNAME", "CONF_FILE"]:
            self.assertNotIn(f"NCCL_{name}".encode(), library)
        self.assertIn(b"SIDESTEP_GROUP_TIMEOUT", library)  # where such a name would be

    def test_it_is_small(self):
        stripped = pathlib.Path(os.environ["SIDESTEP_NCCL_SCRATCH"]) / "libnccl.stripped"
        run("strip", "-o", stripped, LIBRARY)
        size = stripped.stat().st_size
        stripped.unlink()
        self.assertLess(size, 20_000_000)

    def test_a_program_that_asks_for_every_symbol_at_once_loads_it(self):
        # RTLD_NOW: nothing in the library is left unresolved.
        program = f"import ctypes, os; print(ctypes.CDLL({LIBRARY!r}, os.RTLD_NOW).ncclGetVersion(None))"
        self.assertEqual(run(sys.executable, "-c", program).strip(), "4")


if __name__ == "__main__":
    unittest.main()
