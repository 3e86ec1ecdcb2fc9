"""save(), read back by hand and by the package itself."""

import array
import json
import os
import unittest

import sidestep
import written
from package import PackageTest, numpy


class SaveTest(PackageTest):
    def test_everything_that_is_memory(self):
        data = os.urandom(480)
        on_gpu = self.context.allocate("gpu:4", 480)
        self.context.copy(data, on_gpu)
        path = self.folder / "a.safetensors"
        tensors = {"bytes": data, "array": array.array("h", range(7)),
                   "numpy": numpy.arange(12, dtype="f8").reshape(3, 4), "read only": numpy.frombuffer(data, dtype="u2"),
                   "scalar": numpy.array(2.5, dtype="f4"), "bool": numpy.array([True, False]),
                   "bf16": on_gpu.view("BF16", (24, 10)), "f4": on_gpu.part(0, 8).view("F4", (4, 4)),
                   "empty": numpy.zeros((0, 3), dtype="i8")}
        receipt = self.context.save(tensors, path, metadata={"format": "pt", "was": "made"}, verify=True)
        found, metadata = written.read(path)
        self.assertEqual(metadata, {"format": "pt", "was": "made"})
        expected = {"bytes": ("U8", (480,), data), "array": ("I16", (7,), array.array("h", range(7)).tobytes()),
                    "numpy": ("F64", (3, 4), numpy.arange(12, dtype="f8").tobytes()), "read only": ("U16", (240,), data),
                    "scalar": ("F32", (), numpy.array(2.5, dtype="f4").tobytes()), "bool": ("BOOL", (2,), b"\1\0"),
                    "bf16": ("BF16", (24, 10), data), "f4": ("F4", (4, 4), data[:8]), "empty": ("I64", (0, 3), b"")}
        self.assertEqual(found, expected)
        self.assertTrue(receipt.verified)

    def test_a_load_can_be_saved_and_loaded(self):
        tensors = written.random_tensors(3, count=44)
        first, second = self.folder / "a.safetensors", self.folder / "b.safetensors"
        written.write(first, tensors, {"seed": "3"})
        loaded = self.context.load(first, "gpu:1")
        self.context.save(loaded, second, metadata={"seed": "3"}, sync_file=True)
        self.assertEqual(written.read(second), (tensors, {"seed": "3"}))
        # Emulated GPU memory, as arrays.
        arrays = self.context.load(second, "gpu:0", framework="numpy", only=["*.f32", "*.bool"])
        self.context.save(arrays, first, sync_replaced=False)
        self.assertEqual(written.read(first)[0], {name: tensors[name] for name in arrays})

    def test_several_files_and_a_manifest(self):
        tensors = {f"t{number}": os.urandom(100_000) for number in range(10)}
        (self.folder / "model").mkdir()
        self.context.save(tensors, self.folder / "model", shard_bytes=300_000)
        index = json.loads((self.folder / "model" / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(tensors))
        self.assertGreater(len(set(index["weight_map"].values())), 2)
        loaded = self.context.load(self.folder / "model", "gpu:0")
        for name, data in tensors.items():
            self.assert_bytes(loaded[name], data)

        path = self.folder / "one.safetensors"
        self.context.save(tensors, path, manifest=True)
        manifest = self.folder / "one.safetensors.manifest.json"
        self.assertEqual(len(self.context.load(path, "gpu:0", manifest=manifest)), 10)
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        self.fails("mismatch", self.context.load, path, "gpu:0", manifest=manifest)

    def test_what_cannot_be_saved(self):
        path = self.folder / "a.safetensors"
        path.write_bytes(b"old")
        for wrong in (numpy.zeros((4, 4)).T, numpy.zeros(2, dtype="c16"), numpy.array(["text"]), "path", 17, None,
                      numpy.zeros(2, dtype=">f4"), self.context.allocate("cpu", 18).as_raw("Q4_0", (32,))):
            error = self.fails("invalid_argument", self.context.save, {"name": wrong}, path)
            self.assertTrue(str(error))
        self.assertEqual(path.read_bytes(), b"old")
        for more in ({}, {"shard_bytes": 10}):
            self.fails("not_found", self.context.save, {"a": b"1"}, self.folder / "none" / "a.safetensors", **more)


if __name__ == "__main__":
    unittest.main()
