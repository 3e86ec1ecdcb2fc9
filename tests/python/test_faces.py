"""What values and errors look like, drawings, the doctor, and publishing."""

import fcntl
import os
import pickle
import unittest.mock
import xml.etree.ElementTree

import sidestep
from package import MACHINE, PackageTest

# What each code also is.
SITUATIONS = {"invalid_argument": ValueError, "not_found": (FileNotFoundError, LookupError), "permission_denied": PermissionError,
              "unsupported": NotImplementedError, "out_of_memory": MemoryError, "no_space": OSError, "end_of_file": EOFError,
              "io_error": OSError, "timed_out": TimeoutError, "device_error": RuntimeError, "path_unavailable": (), "mismatch": (),
              "cancelled": (), "internal": ()}

# In the order of their numbers.
CODES = ("invalid_argument", "not_found", "permission_denied", "unsupported", "path_unavailable", "out_of_memory", "no_space",
         "end_of_file", "io_error", "mismatch", "cancelled", "timed_out", "device_error", "internal")


class Errors(PackageTest):
    def test_each_also_is_its_situation(self):
        for code, kinds in SITUATIONS.items():
            error = sidestep.Error("what", code, "where", "hint")
            self.assertIsInstance(error, sidestep.Error)
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                self.assertIsInstance(error, kind)
            self.assertEqual((str(error), error.code, error.args), ("what (where). hint", code, ("what", code, "where", "hint")))
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), again.args, again.hint), (type(error), error.args, "hint"))

    def test_as_the_module_raises_them(self):
        for number, code in enumerate(CODES, 1):
            error = self.fails(code, sidestep._core.fail, number)
            self.assertIs(type(error), type(sidestep.Error("what", code)), code)

    def test_as_calls_raise_them(self):
        with self.assertRaises(FileNotFoundError) as raised:
            self.context.load(self.folder / "nowhere.safetensors", "gpu:0")
        self.assertEqual(raised.exception.code, "not_found")
        self.assertRegex(str(raised.exception), "nowhere")
        with self.assertRaises(MemoryError):
            self.context.allocate("gpu:0", 1 << 60)
        with self.assertRaises(ValueError):
            self.context.route("gpu:0", "gpu:1", "many")
        with self.assertRaises(LookupError):
            self.context.route("gpu:0", "gpu:99", 1)


class Shown(PackageTest):
    def test_reprs(self):
        tensor = self.context.allocate("gpu:0", 1 << 20)
        path = self.folder / "m.safetensors"
        receipt = self.context.save({"x": tensor}, path)
        self.assertRegex(repr(receipt), r"^<Receipt: 1.00 MiB in .* GB/s.*>$")
        self.assertRegex(repr(self.context.copy(tensor, bytearray(1 << 20))), "gpu:0 -> host")
        self.assertEqual(repr(self.context.topology()), f"<Topology: machine {MACHINE} (emulated): 8 GPUs>")
        self.assertEqual(repr(self.context), f"<Context: machine {MACHINE}, 8 GPUs, emulated>")
        self.assertRegex(repr(self.context.route("gpu:0", "gpu:5", "1GiB")), "^<Route: gpu:0 -> gpu:5 .*GB/s.*>$")
        with self.context.open(path) as checkpoint:
            self.assertEqual(repr(checkpoint), f"<Checkpoint: {path}, 1 tensor>")
        self.assertIn("closed", repr(checkpoint))

    def test_drawings(self):
        topology = self.context.topology()
        for drawn in (topology.svg(), topology.svg(theme="dark", node=0), topology._repr_svg_()):
            self.assertTrue(xml.etree.ElementTree.fromstring(drawn.encode()).tag.endswith("svg"))
        self.assertNotEqual(topology.svg("dark"), topology.svg("light"))
        self.fails("invalid_argument", topology.svg, "purple")
        for node in (1, 99, -1):
            self.fails("not_found", topology.svg, node=node)

    def test_doctor(self):
        found = sidestep.doctor("live")
        self.assertIn("checks", str(found))
        self.assertIn('"findings"', found.to_json())
        self.assertRegex(repr(found), "^<Diagnosis: machine .*>$")
        self.assertGreaterEqual(found.failures + found.warnings, 0)


class Bench(PackageTest):
    def test_a_report(self):
        report = sidestep.bench("host_small", machine=MACHINE, smoke=True)
        self.assertEqual([case["key"] for case in report["cases"]], ["host_small"])
        self.assertTrue(report["cases"][0]["figures"])

    def test_what_the_command_refuses(self):
        self.fails("not_found", sidestep.bench, "nothing_like_it", machine=MACHINE)
        self.fails("invalid_argument", sidestep.bench, "host_small", machine=MACHINE, samples=0)


class Words(PackageTest):
    def test_those_of_the_command_line(self):
        self.assertTrue(self.context.route("gpu:0", "gpu:1", "1GiB", lanes="all", prefer="copy-engine").direct)
        self.fails("invalid_argument", self.context.route, "gpu:0", "gpu:1", 1, prefer="copy_engine")
        self.context.save({"x": self.context.allocate("gpu:0", 8)}, self.folder / "m.safetensors")
        self.fails("invalid_argument", self.context.load, self.folder / "m.safetensors", "gpu:0", layout="by_axis")
        self.context.load(self.folder / "m.safetensors", ["gpu:0", "gpu:1"], layout="tensor")


class Published(PackageTest):
    def test_memory_under_a_name(self):
        name, data = f"faces-{os.getpid()}", os.urandom(4096)
        memory = self.context.allocate("host", len(data))
        self.context.copy(data, memory)
        back = bytearray(len(data))
        with self.context.publish(name, memory) as published:
            self.assertEqual(repr(published), f"<Publication: shared:{name}>")
            self.context.copy(f"shared:{name}", back)
            self.assertEqual(bytes(back), data)
            self.fails("invalid_argument", self.context.publish, name, memory)
        with self.assertRaises(sidestep.Error):
            self.context.copy(f"shared:{name}", back)

    def test_deadline(self):
        with unittest.mock.patch.dict(os.environ, SIDESTEP_PEER_FOLDER=str(self.folder)):
            context = sidestep.Context(MACHINE)
        memory = context.allocate("host", 4096)
        held = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        error = self.fails("timed_out", context.publish, "kv", memory, deadline=0.02)
        self.assertIn("deadline of 20 ms passed; another process holds the folder", error.message)
        fcntl.flock(held, fcntl.LOCK_UN)
        for wrong in (-1, float("nan"), 365 * 24 * 3600 + 0.001, "1"):
            error = self.fails("invalid_argument", context.publish, "new", memory, deadline=wrong)
            self.assertTrue(error.message.startswith("deadline is "), error)
        context.publish("new", memory, deadline=365 * 24 * 3600).close()

    def test_host_memory_of_this_machine(self):
        published = sidestep.publish(f"faces-live-{os.getpid()}", sidestep.allocate("host", 4096, pageable=True))
        published.close()
        self.assertIn("withdrawn", repr(published))
