"""Copies, routes, topologies and contexts."""

import concurrent.futures
import json
import os
import pathlib
import sys
import threading
import unittest

import sidestep
from package import MACHINE, PackageTest, numpy


class CopyTest(PackageTest):
    def test_from_and_to_everything(self):
        data = os.urandom(300_001)
        path = self.folder / "source"
        path.write_bytes(data)
        on_gpu = self.context.allocate("gpu:3", len(data))
        self.context.copy(data, on_gpu)
        array = numpy.frombuffer(data, dtype="u1")
        sources = (data, bytearray(data), memoryview(data), array, on_gpu, path, str(path), f"file:{path}")
        for source in sources:
            written = self.folder / "target"
            in_bytes, in_array = bytearray(len(data)), numpy.zeros(len(data), dtype="u1")
            on_other = self.context.allocate("cuda:6", len(data))
            for target in (in_bytes, in_array, on_other, written):
                receipt = self.context.copy(source, target)
                self.assertEqual(receipt.bytes, len(data))
            self.assertEqual((bytes(in_bytes), in_array.tobytes(), written.read_bytes()), (data, data, data))
            self.assert_bytes(on_other, data)

    def test_a_range_of_a_file(self):
        path = self.folder / "file"
        path.write_bytes(bytes(range(256)) * 64)
        target = bytearray(5000)
        self.context.copy(f"file:{path}@1001+5000", target)
        self.assertEqual(bytes(target), path.read_bytes()[1001:6001])
        self.context.copy(bytes(4096), f"file:{path}@4KiB+4KiB")
        self.assertEqual(path.read_bytes(), (bytes(range(256)) * 16 + bytes(4096) + bytes(range(256)) * 32))

    def test_receipts(self):
        path = self.folder / "file"
        path.write_bytes(os.urandom(1 << 20))
        receipt = self.context.copy(path, self.context.allocate("gpu:0", 1 << 20), verify=True)
        self.assertEqual((receipt.bytes, receipt.verified, sum(receipt.lane_bytes)), (1 << 20, True, 1 << 20))
        self.assertGreater(receipt.seconds, 0)
        self.assertIn("gpu:0", receipt.explain())
        self.assertEqual(json.loads(receipt.to_json())["bytes"], 1 << 20)
        self.assertEqual(str(receipt), receipt.summary())
        self.assertTrue(receipt.route.emulated)
        storage = receipt.storage
        self.assertEqual(storage.total, storage.gpu_direct + storage.o_direct + storage.page_cache)
        self.assertEqual(storage.total, 1 << 20)

    def test_options_reach_the_library(self):
        a, b = self.context.allocate("gpu:0", 1 << 20), self.context.allocate("gpu:1", 1 << 20)
        self.assertTrue(self.context.copy(a, b, require="direct").route.direct)
        self.assertFalse(self.context.copy(a, b, require="host").route.direct)
        self.assertIn("kernel", self.context.copy(a, b, prefer="kernel").explain())
        refused = self.fails("invalid_argument", self.context.copy, a, b, require="quickly")
        self.assertIn("any, direct, host", refused.hint)
        for wrong in ({"deadline": -1.0}, {"deadline": float("nan")}, {"page_cache": "no"}, {"prefer": ""}):
            self.fails("invalid_argument", self.context.copy, a, b, **wrong)

    def test_errors_say_what_where_and_what_to_do(self):
        error = self.fails("not_found", self.context.copy, self.folder / "none", self.folder / "target")
        self.assertIn(str(self.folder / "none"), error.message)
        self.assertIsInstance(error, Exception)
        self.assertIn(error.message, str(error))
        self.fails("invalid_argument", self.context.copy, b"1234", bytearray(3))  # sizes
        self.fails("invalid_argument", self.context.copy, bytearray(3), b"123")   # a target that is const
        self.fails("invalid_argument", self.context.copy, 17, bytearray(3))
        self.fails("invalid_argument", self.context.copy, numpy.zeros((8, 8)).T, bytearray(512))
        self.fails("not_found", self.context.allocate, "gpu:8", 16)
        self.fails("invalid_argument", self.context.allocate, "tape:0", 16)
        for place in ("gpu:0", "cuda:1", "host", "cpu"):
            self.assertIn("allocate", self.fails("invalid_argument", self.context.copy, place, bytearray(3)).hint)
        self.fails("not_found", sidestep.Context, "no-such-machine")
        self.fails("out_of_memory", self.context.allocate, "gpu:0", 1 << 50)

    def test_errors_survive_pickling(self):
        import pickle
        error = self.fails("not_found", self.context.copy, self.folder / "none", self.folder / "target")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, again.message, again.where, again.hint, str(again)),
                         (error.code, error.message, error.where, error.hint, str(error)))

    def test_paths_need_be_no_text(self):
        path = pathlib.Path(os.fsdecode(os.fsencode(self.folder) + b"/\xff\xfe"))
        self.context.copy(b"content", path)
        self.assertEqual(path.read_bytes(), b"content")
        target = bytearray(7)
        self.context.copy(str(path), target)
        self.assertEqual(bytes(target), b"content")

    def test_many_threads(self):
        def work(number):
            data = bytes([number]) * 200_000
            on_gpu, back = self.context.allocate(f"gpu:{number % 8}", len(data)), bytearray(len(data))
            for _ in range(5):
                self.context.copy(data, on_gpu)
                self.context.copy(on_gpu, back)
            return bytes(back) == data

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertTrue(all(pool.map(work, range(24))))

    def test_other_threads_run_while_one_waits(self):
        path = self.folder / "sparse"
        path.write_bytes(b"")
        os.truncate(path, 128 << 20)
        target, counted, ended = self.context.allocate("cpu", 128 << 20), [0], threading.Event()

        def count():
            while not ended.wait(0.0001):
                counted[0] += 1

        # Nobody is made to give the GIL away: the other thread runs only where the package lets go of it.
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1000)
        other = threading.Thread(target=count)
        other.start()
        before = counted[0]
        self.context.copy(path, target, chunk=4096)  # small chunks are slow on any machine
        after = counted[0]
        ended.set()
        other.join()
        self.assertGreater(after, before + 3)


class ModuleTest(PackageTest):
    def test_routes(self):
        route = sidestep.route("gpu:0", "gpu:1", "1GiB", machine=MACHINE)
        self.assertTrue(route.direct and route.emulated)
        self.assertEqual(route.bytes, 1 << 30)
        self.assertGreater(route.expected_gb_per_s, 100)
        self.assertIn("NVLink", str(route))
        self.assertEqual(json.loads(route.to_json())["from"], "gpu:0")
        self.assertFalse(sidestep.route("gpu:0", "gpu:1", 1 << 30, machine=MACHINE, require="host").direct)
        self.fails("not_found", sidestep.route, "gpu:0", "gpu:77", 1, machine=MACHINE)
        self.fails("invalid_argument", sidestep.route, "gpu:0", "gpu:1", "1 cow", machine=MACHINE)

    def test_topologies(self):
        topology = sidestep.topology(MACHINE)
        self.assertEqual((topology.name, topology.gpu_count, topology.emulated), (MACHINE, 8, True))
        self.assertIn("NV18", str(topology))
        self.assertEqual(len(json.loads(topology.to_json())["devices"]) > 8, True)
        self.assertEqual(sidestep.topology("live").name, "live")
        self.fails("not_found", sidestep.topology, "no-such-machine")

    def test_module_functions_share_one_context_a_machine(self):
        a = sidestep.allocate("gpu:0", 64, machine=MACHINE)
        b = sidestep.allocate("gpu:1", 64, machine=MACHINE)
        self.assertEqual(sidestep.copy(a, b, machine=MACHINE).bytes, 64)  # another context's memory would be refused
        self.assertIs(sidestep._context(MACHINE), sidestep._context(MACHINE))
        target = bytearray(3)
        sidestep.copy(b"abc", target)  # the live machine, whatever it has
        self.assertEqual(bytes(target), b"abc")

    def test_memory_outlives_its_context(self):
        context = sidestep.Context(MACHINE)
        tensor = context.allocate("gpu:0", 64)
        context.copy(bytes(range(64)), tensor)
        del context
        self.assert_bytes(tensor, bytes(range(64)))

    def test_backends_tell_what_works(self):
        backends = {backend.name: backend for backend in self.context.backends()}
        self.assertTrue(backends["host"].usable and backends["file"].usable)
        self.assertTrue(all(backend.reason for backend in backends.values()))

    def test_names_of_devices(self):
        names = {"cpu": "host", "host": "host", "host:1": "host:1", "cuda": "gpu:0", "cuda:3": "gpu:3", 4: "gpu:4",
                 "gpu:5": "gpu:5"}
        for name, place in names.items():
            self.assertEqual(self.context.place_of(name), place)
        for wrong in ("cuda:-1", "cuda:x", "gpu", "mps", "", None, 1.5, True):
            self.fails("invalid_argument", self.context.place_of, wrong)

    def test_cudas_numbers_are_not_nvmls(self):
        machine = sidestep._devices.Machine(range(4), {0: -1, 1: 1, 2: 0, 3: -1})  # CUDA_VISIBLE_DEVICES=2,1
        places = sidestep._devices.places_of
        self.assertEqual(places("cuda:all", machine), ([("cuda:0", "gpu:2"), ("cuda:1", "gpu:1")], True))
        self.assertEqual([place for _, place in places("gpu:all", machine)[0]], ["gpu:0", "gpu:1", "gpu:2", "gpu:3"])
        self.assertEqual(places(["cpu", 0], machine), ([("cpu", "host"), (0, "gpu:2")], True))
        self.fails("not_found", places, "cuda:2", machine)
        self.fails("not_found", places, "cuda:all", sidestep._devices.Machine([], {}))
        self.fails("invalid_argument", places, [], machine)


if __name__ == "__main__":
    unittest.main()
