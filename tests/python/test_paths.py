"""Paths are bytes, and need be no UTF-8: where the library names one, it stands as os.fsdecode() gives it."""

import json
import os
import pickle
import unittest

import sidestep
import written
from package import MACHINE, PackageTest

TENSORS = {"a": ("U8", (4,), b"1234")}


class PathTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.path = os.fsencode(self.folder) + b"/caf\xe9.safetensors"
        self.text = os.fsdecode(self.path)

    def test_errors_name_the_path(self):
        missing = self.fails("not_found", self.context.load, self.path, "cpu")
        self.assertIn(self.text, missing.message)
        self.assertEqual(str(pickle.loads(pickle.dumps(missing))), str(missing))
        with open(self.path, "wb") as file:
            file.write(b"no header")
        self.assertIn(self.text, str(self.fails("invalid_argument", self.context.open, self.text)))
        self.assertIn(self.text, str(self.fails("not_found", self.context.save, {"a": b"1"}, self.path + b".d/a")))
        self.assertIn(self.text, str(self.fails("not_found", self.context.copy, f"file:{self.text}.none", bytearray(9))))

    def test_receipts_and_reports_name_the_path(self):
        written.write(self.path, TENSORS)
        with open(self.path, "ab") as file:
            file.write(b"padding")
        loaded = self.context.load(self.path, "gpu:0", lenient=True)
        self.assertIn(self.text, loaded.receipt.explain())
        self.assertIn(self.text, loaded.receipt.notes[0])
        self.assertIn(self.text, loaded.report)
        self.assertIn(self.text, str(loaded.receipt.route))
        json.loads(loaded.receipt.to_json())
        self.assertIn(self.text, self.context.save({"a": b"1"}, self.path).explain())
        self.assertIn(self.text, str(self.context.copy(f"file:{self.text}", bytearray(os.path.getsize(self.path)))))

    def test_checkpoints_name_the_path(self):
        written.write(self.path, TENSORS)
        with open(self.path, "ab") as file:
            file.write(b"padding")
        with self.context.open(self.path, lenient=True) as checkpoint:
            self.assertIn(self.text, checkpoint.notes[0])
            self.assertEqual(checkpoint.files, [self.text])
            self.assertIn("caf\\xe9", checkpoint.table())  # printed for readers
            os.unlink(self.path)
            self.assertIn(self.text, self.fails("not_found", checkpoint.get_tensor, "a").message)

    def test_routes_from_and_to_such_files(self):
        place = f"file:{self.text}"
        self.assertIn(place, str(self.context.route(place, "gpu:0", "1KiB")))
        self.assertIn(place, str(self.context.route("gpu:0", place, 1024)))
        self.assertEqual(json.loads(self.context.route(place, "gpu:0", 1024).to_json())["to"], "gpu:0")

    def test_machines_from_such_files(self):
        with open(self.path, "w") as file:
            file.write(sidestep.topology(MACHINE).to_json())
        self.assertEqual(sidestep.topology(self.text).gpu_count, 8)
        self.assertEqual(sidestep.Context(self.text).topology().gpu_count, 8)
        os.unlink(self.path)
        self.assertIn(self.text, str(self.fails("not_found", sidestep.topology, self.text)))


if __name__ == "__main__":
    unittest.main()
