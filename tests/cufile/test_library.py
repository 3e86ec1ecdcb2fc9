"""libcufile.so.0 shows cuFile's symbols and nothing else, runs where NVIDIA's own would, and follows its settings."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = os.environ["SIDESTEP_CUFILE_LIBRARY"]
BY_NAME = os.environ["SIDESTEP_CUFILE_BY_NAME"]
EXTRA = {"sidestepCufileAllocate", "sidestepCufileFree", "sidestepCufileLastError"}
EMPTY = str(HERE / "empty.json")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options)


def python(program, **variables):
    """What the lines print in an interpreter of its own, with the library as `l`, and what it says on standard error."""
    begin = f"import ctypes, os\nl = ctypes.CDLL({LIBRARY!r}, os.RTLD_NOW)\n"
    begin += "class E(ctypes.Structure): _fields_ = [('err', ctypes.c_int), ('cu', ctypes.c_int)]\n"
    begin += "def call(name, *a):\n f = getattr(l, name); f.restype = E; return f(*a).err\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUFILE_", "SIDESTEP_"))}
    done = run(sys.executable, "-c", begin + program,
               env={**kept, "SIDESTEP_MACHINE": "dgx-h100", "CUFILE_ENV_PATH_JSON": EMPTY, **variables})
    return done.stdout.split(), done.stderr


class Library(unittest.TestCase):
    def symbols(self):
        rows = [line.split() for line in run("nm", "-D", "--defined-only", LIBRARY).stdout.splitlines()]
        return {row[-1].split("@")[0]: row[-2] for row in rows}

    def test_the_symbols_of_cufile_and_three_more(self):
        names = (HERE / "symbols.txt").read_text().split()
        self.assertEqual((len(names), len(set(names))), (48, 48))
        self.assertEqual(set(self.symbols()), set(names) | EXTRA)
        self.assertEqual(set(self.symbols().values()), {"T"})

    def test_the_header_declares_what_it_shows(self):
        declared = set(re.findall(r"\b((?:cuFile|sidestepCufile)\w+)\(", (ROOT / "shims/cufile/abi.h").read_text()))
        self.assertEqual(declared, set(self.symbols()))

    def test_the_readme_has_a_row_for_each(self):
        text = (ROOT / "shims/cufile/README.md").read_text()
        table = text[text.index("## The calls"):text.index("## Bad input")]
        self.assertEqual({name for name in self.symbols() if not re.search(rf"\b{name}\b", table)}, set())

    def test_the_name_it_is_found_by(self):
        soname = re.findall(r"\(SONAME\).*\[(.*)\]", run("readelf", "-d", LIBRARY).stdout)
        self.assertEqual(soname, ["libcufile.so.0"])
        self.assertEqual(pathlib.Path(LIBRARY).name, "libcufile.so.0")

    def test_it_stays_loaded_and_needs_the_c_library_alone(self):
        self.assertIn("NODELETE", run("readelf", "-d", LIBRARY).stdout)
        run(sys.executable, ROOT / "tools" / "check_portable.py", LIBRARY)

    def test_a_program_that_opens_it_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder) / "data"
            data.write_bytes(bytes(range(256)) * 2000)
            work = pathlib.Path(folder) / "work"
            work.mkdir()
            done = run(BY_NAME, data, cwd=work, env={**os.environ, "LD_PRELOAD": LIBRARY, "SIDESTEP_MACHINE": "dgx-h100",
                                                     "CUFILE_ENV_PATH_JSON": EMPTY})
            self.assertEqual(done.stdout.split(), ["1180", "512000", str(255 * 128 * 2000)])
            self.assertEqual(list(work.iterdir()), [], "no log file, nor anything else, in the working folder")


class Settings(unittest.TestCase):
    def test_versions(self):
        program = "v = ctypes.c_int(7); print(call('cuFileGetVersion', ctypes.byref(v)), v.value, call('cuFileDriverOpen'))"
        self.assertEqual(python(program)[0], ["0", "1180", "0"])
        self.assertEqual(python(program, SIDESTEP_CUFILE_VERSION="1.19")[0], ["0", "1190", "0"])
        self.assertEqual(python(program, SIDESTEP_CUFILE_VERSION="1.4")[0], ["0", "1040", "0"])
        for wrong in ["1.20", "2.1", "new", "1.", "1.4x"]:
            self.assertEqual(python(program, SIDESTEP_CUFILE_VERSION=wrong)[0], ["5005", "7", "5005"], wrong)

    def file(self, text):
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        self.addCleanup(os.unlink, path)
        pathlib.Path(path).write_text(text)
        return path

    SHOW = """
n = ctypes.c_size_t(); b = ctypes.c_bool(); t = ctypes.create_string_buffer(99)
for i in [0, 1, 9]: call('cuFileGetParameterSizeT', i, ctypes.byref(n)); print(n.value)
for i in [0, 2, 6]: call('cuFileGetParameterBool', i, ctypes.byref(b)); print(b.value)
call('cuFileGetParameterString', 0, t, 99); print(t.value.decode())
print(call('cuFileDriverOpen'))
"""
    DEFAULT = ["0", "128", "128", "False", "False", "True", "ERROR", "0"]

    def test_a_file(self):
        self.assertEqual(python(self.SHOW)[0], self.DEFAULT)
        path = self.file("""{ // as NVIDIA's own has them
            "logging": {"level": "TRACE"}, "profile": {"cufile_stats": 3, "more": {}}, "unknown": [],
            "execution": {"max_io_queue_depth": 64}, "properties": {"io_batchsize": 16, "use_poll_mode": true,
            "force_compat_mode": true, "allow_system_memory": false, "posix_pool_slab_size_kb": [4, 8],
            "posix_pool_slab_count": [1, 2]}}""")
        self.assertEqual(python(self.SHOW, CUFILE_ENV_PATH_JSON=path)[0], ["3", "64", "16", "True", "True", "False", "TRACE", "0"])

    def test_the_environment_goes_before_the_file_and_calls_before_both(self):
        path = self.file(json.dumps({"logging": {"level": "TRACE"}, "properties": {"force_compat_mode": True}}))
        set_first = "call('cuFileSetParameterString', 0, b'NOTICE')\n"
        shown = python(set_first + self.SHOW, CUFILE_ENV_PATH_JSON=path, CUFILE_FORCE_COMPAT_MODE="false", CUFILE_LOGGING_LEVEL="INFO")
        self.assertEqual(shown[0], ["0", "128", "128", "False", "False", "True", "NOTICE", "0"])
        shown = python(self.SHOW, CUFILE_ENV_PATH_JSON=path, CUFILE_LOGGING_LEVEL="INFO")
        self.assertEqual(shown[0][4:7], ["True", "True", "INFO"])

    def test_what_cannot_be_read_is_said(self):
        program = "print(call('cuFileDriverOpen')); l.sidestepCufileLastError.restype = ctypes.c_char_p\n" \
                  "import sys; print(l.sidestepCufileLastError().decode(), file=sys.stderr)"
        for text, said in [("{", "is not JSON"), ("[]", "is not JSON"), ('{"properties": {"io_batchsize": "many"}}', "io_batchsize"),
                           ('{"properties": {"io_batchsize": 0}}', "io_batchsize"), ('{"execution": {"parallel_io": 1}}', "parallel_io"),
                           ('{"properties": {"posix_pool_slab_size_kb": [4], "posix_pool_slab_count": []}}', "posix_pool_slab")]:
            code, words = python(program, CUFILE_ENV_PATH_JSON=self.file(text))
            self.assertEqual(code, ["5002"], text)
            self.assertIn(said, words)
        code, words = python(program, CUFILE_ENV_PATH_JSON="/no/such/file.json")
        self.assertEqual(code, ["5002"])
        self.assertIn("/no/such/file.json: cannot be read", words)
        self.assertEqual(python(program, CUFILE_FORCE_COMPAT_MODE="perhaps")[0], ["5002"])

    def test_unknown_variables_are_named_once(self):
        program = "for i in range(3): call('cuFileDriverOpen'); call('cuFileDriverClose')"
        said = python(program, CUFILE_NO_SUCH_THING="1", CUFILE_OTHER="2", CUFILE_LOGGING_LEVEL="INFO")[1].splitlines()
        self.assertEqual(len(said), 1, said)
        self.assertIn("without effect", said[0])
        self.assertIn("CUFILE_NO_SUCH_THING", said[0])
        self.assertIn("CUFILE_OTHER", said[0])
        self.assertNotIn("LOGGING", said[0])
        self.assertEqual(python(program, CUFILE_OTHER="2", SIDESTEP_LOG="error")[1], "")
        self.assertEqual(python(program)[1], "")


if __name__ == "__main__":
    unittest.main()
