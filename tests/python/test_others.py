"""Beside other libraries, each where it can be imported: safetensors, PyTorch, JAX, ml_dtypes."""

import importlib
import os
import unittest

import sidestep
import written
from package import PackageTest, numpy

# With their bits in safetensors' names, for types that NumPy alone lacks.
PLAIN = tuple(written.NUMPY)


class OthersTest(PackageTest):
    def library(self, name):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            self.skipTest(str(error))

    def checkpoint(self, dtypes):
        tensors = written.random_tensors(11, count=40, dtypes=dtypes)
        path = self.folder / "a.safetensors"
        written.write(path, tensors)
        return path, tensors

    def test_safetensors_reads_the_same(self):
        load_file = self.library("safetensors.numpy").load_file
        path, tensors = self.checkpoint(PLAIN[:-1])
        expected, found = load_file(path), self.context.load(path, "gpu:0", framework="numpy")
        self.assertEqual(set(found), set(expected))
        for name, array in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape, found[name].tobytes()),
                             (array.dtype, array.shape, array.tobytes()), name)

    def test_safetensors_reads_what_was_saved(self):
        load_file = self.library("safetensors.numpy").load_file
        arrays = {"a": numpy.arange(100, dtype="f4").reshape(4, 25), "b": numpy.zeros((), dtype="i8"),
                  "c": numpy.ones((0, 2))}
        path = self.folder / "a.safetensors"
        self.context.save(arrays, path, metadata={"format": "np"})
        found = load_file(path)
        for name, array in arrays.items():
            self.assertEqual((found[name].dtype, found[name].shape, found[name].tobytes()),
                             (array.dtype, array.shape, array.tobytes()))

    def test_open_has_the_calls_of_safe_open(self):
        safe_open = self.library("safetensors").safe_open
        array = numpy.arange(30 * 20, dtype="i4").reshape(30, 20)
        path = self.folder / "a.safetensors"
        written.write(path, {"x": ("I32", array.shape, array.tobytes())}, {"format": "pt"})
        with safe_open(path, "np") as theirs, self.context.open(path, "np") as ours:
            self.assertEqual((ours.keys(), ours.metadata()), (theirs.keys(), theirs.metadata()))
            self.assertTrue((ours.get_tensor("x") == theirs.get_tensor("x")).all())
            public = {name for name in dir(theirs) if not name.startswith("_")}
            self.assertEqual(public - set(dir(ours)), set())
            ours, theirs = ours.get_slice("x"), theirs.get_slice("x")
            self.assertEqual((ours.get_shape(), ours.get_dtype()), (theirs.get_shape(), theirs.get_dtype()))
            for index in ((slice(2, 5),), (slice(None), slice(3, 9)), (7,), (..., slice(1, 2))):
                self.assertTrue((ours[index] == theirs[index]).all())

        # Several tensors, not laid down by name, and no metadata.
        names = ("z", "a.10", "a.9", "\u00e9", "Z", "\U0001f600", "\uffee")
        written.write(path, {name: ("U8", (2,), b"12") for name in names})
        with safe_open(path, "np") as theirs, self.context.open(path, "np") as ours:
            self.assertEqual((ours.keys(), ours.metadata()), (theirs.keys(), theirs.metadata()))
            if hasattr(theirs, "offset_keys"):  # newer than 0.4
                self.assertEqual(ours.offset_keys(), theirs.offset_keys())
            if hasattr(theirs, "get_tensors"):  # 0.8
                found, expected = ours.get_tensors(), theirs.get_tensors()
                self.assertEqual(list(found), list(expected))
                self.assertTrue(all((found[name] == expected[name]).all() for name in expected))

    def test_ml_dtypes(self):
        ml_dtypes = self.library("ml_dtypes")
        path, tensors = self.checkpoint(("BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"))
        loaded = self.context.load(path, "cpu", framework="numpy")
        for name, (dtype, shape, data) in tensors.items():
            self.assertEqual((loaded[name].shape, loaded[name].tobytes()), (shape, data))
        self.assertEqual(loaded["layer.0.bf16"].dtype, numpy.dtype(ml_dtypes.bfloat16))
        again = self.folder / "b.safetensors"
        self.context.save(loaded, again)
        self.assertEqual(written.read(again)[0], tensors)

    def test_jax_takes_tensors(self):
        jax = self.library("jax")
        data = os.urandom(4096)
        tensor = self.context.allocate("gpu:0", 4096)
        self.context.copy(data, tensor)
        for dtype, shape in (("F32", (4, 256)), ("BF16", (2048,)), ("U8", (64, 64)), ("I32", (2, 2, 256))):
            array = jax.dlpack.from_dlpack(tensor.view(dtype, shape))
            self.assertEqual((array.shape, numpy.asarray(array).tobytes()), (shape, data))
        target = bytearray(4096)
        self.context.copy(array, target)
        self.assertEqual(bytes(target), data)

    def test_torch_takes_tensors_and_gives_them(self):
        torch = self.library("torch")
        path, tensors = self.checkpoint(tuple(dtype for dtype in PLAIN if dtype[0] != "U" or dtype == "U8") + ("BF16",))
        loaded = self.context.load(path, "gpu:0", framework="torch")
        for name, (dtype, shape, data) in tensors.items():
            self.assertEqual(tuple(loaded[name].shape), shape)
            self.assertEqual(bytes(loaded[name].flatten().view(torch.uint8).tolist()), data)
        again = self.folder / "b.safetensors"
        self.context.save(loaded, again)
        self.assertEqual(written.read(again)[0], tensors)
        lazy = torch.tensor([1 + 2j])
        for wrong in (torch.zeros(4, 4).T, lazy.conj(), lazy.conj().imag):  # gaps, the conjugate bit, the negative bit
            self.fails("invalid_argument", self.context.save, {"x": wrong}, again)
        self.context.save({"x": lazy.conj().resolve_conj()}, again)
        self.assertEqual(numpy.frombuffer(written.read(again)[0]["x"][2], dtype="c8")[0], 1 - 2j)


if __name__ == "__main__":
    unittest.main()
