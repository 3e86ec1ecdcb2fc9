"""What is handed over and makes no sense: each a sidestep.Error that says what was wrong, before anything is done."""

import ctypes
import sys
import types
import unittest
from unittest import mock

import written
from package import PackageTest, numpy
from sidestep import _devices


class TorchTensor:
    """As much of torch.Tensor as a copy asks for: 16 bytes on the CPU."""

    def __init__(self, lazy=()):
        self.memory = ctypes.create_string_buffer(b"0123456789abcdef", 16)
        self.device = types.SimpleNamespace(type="cpu", index=None)
        self.dtype, self.shape = "torch.complex64", (2,)
        for bit in ("conj", "neg"):
            setattr(self, f"is_{bit}", lambda bit=bit: bit in lazy)

    def is_contiguous(self):
        return True

    def numel(self):
        return 2

    def element_size(self):
        return 8

    def data_ptr(self):
        return ctypes.addressof(self.memory)


class OldTorchTensor(TorchTensor):
    """of a version without lazy views."""

    def __init__(self):
        super().__init__()
        del self.is_conj, self.is_neg


class TorchTest(PackageTest):
    def setUp(self):
        super().setUp()
        patch = mock.patch.dict(sys.modules, {"torch": types.SimpleNamespace(Tensor=TorchTensor)})
        patch.start()
        self.addCleanup(patch.stop)

    def test_lazy_views_are_refused(self):
        path = self.folder / "a.safetensors"
        for bit in ("conj", "neg"):
            view = TorchTensor(lazy=(bit,))
            for call in ((self.context.save, {"x": view}, path), (self.context.copy, view, bytearray(16)),
                         (self.context.copy, bytes(16), view)):
                self.assertIn(f".resolve_{bit}()", self.fails("invalid_argument", *call).hint)
        self.assertFalse(path.exists())

    def test_plain_tensors_are_taken(self):
        path = self.folder / "a.safetensors"
        for tensor in (TorchTensor(), OldTorchTensor()):
            self.context.save({"x": tensor}, path)
            self.assertEqual(written.read(path)[0], {"x": ("C64", (2,), b"0123456789abcdef")})


class DeviceTest(PackageTest):
    # Of three GPUs the first is hidden from CUDA.
    MACHINE = _devices.Machine(3, [-1, 0, 1])

    def test_numbers_are_those_of_cuda(self):
        for number in (1, numpy.int64(1), numpy.uint8(1)):
            self.assertEqual(_devices.place_of(number, self.MACHINE), "gpu:2")
        self.assertEqual(_devices.places_of([0, numpy.int64(1)], self.MACHINE), ([(0, "gpu:1"), (1, "gpu:2")], True))
        self.assertEqual(self.context.allocate(numpy.int64(3), 16).place, "gpu:3")

    def test_a_number_below_zero_is_no_hidden_gpu(self):
        for number in (-1, -2, numpy.int64(-1)):
            for machine in (self.MACHINE, _devices.Machine(3, [])):
                self.fails("invalid_argument", _devices.place_of, number, machine)
                self.fails("invalid_argument", _devices.places_of, [number], machine)
        self.fails("not_found", _devices.place_of, 2, self.MACHINE)
        for wrong in (True, 1.0, None, "cuda:-1", numpy.float64(1)):
            self.fails("invalid_argument", _devices.place_of, wrong, self.MACHINE)


# None of these is text that a file can hold.
NO_TEXT = (7, None, b"bytes", ("a",), "\udc80")


class WrongTypeTest(PackageTest):
    def says(self, words, call, *arguments, **named):
        message = str(self.fails("invalid_argument", call, *arguments, **named))
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, message)

    def test_saves(self):
        path, save = self.folder / "a.safetensors", self.context.save
        for wrong in NO_TEXT:
            self.says("a tensor's name", save, {wrong: b"1"}, path)
            self.says("a key of metadata", save, {"x": b"1"}, path, metadata={wrong: "a"})
            self.says("metadata['step']", save, {"x": b"1"}, path, metadata={"step": wrong})
        for wrong in ([("x", b"1")], 17, None):
            self.says("has to be a dict", save, wrong, path)
        self.says("has to be a dict", save, {"x": b"1"}, path, metadata=["format"])
        for wrong in (7, None, ["a"]):
            self.says("not a path", save, {"x": b"1"}, wrong)
        self.assertFalse(path.exists())

    def test_loads(self):
        path, load = self.folder / "a.safetensors", self.context.load
        written.write(path, {"w": ("U8", (4, 2), bytes(8))})
        for wrong in (7, None, {"a": 1}, [7], (None,)):
            self.says("not a path", load, wrong, "cpu")
            self.says("not a path", self.context.open, wrong)
        for wrong in ("0", None, 1.0, True, 1 << 40):
            self.says("axis of 'w'", load, path, "gpu:0", shard={"w": wrong})
        for wrong in NO_TEXT:
            self.says("a pattern", load, path, "gpu:0", shard={wrong: 0})
            self.says("a pattern", load, path, "gpu:0", only=[wrong])
        for wrong in (7, ["w"], [("w", 0, 1)]):
            self.says("shard is", load, path, "gpu:0", shard=wrong)
        self.says("only is 7", load, path, "cpu", only=7)
        self.says("manifest", load, path, "cpu", manifest=7)
        self.says("framework", load, path, "cpu", framework=["numpy"])
        for option, wrong in (("max_staging", "1GiB"), ("chunk", -1), ("deadline", "30s"), ("layout", 7), ("verify", [])):
            self.says(option, load, path, "cpu", **{option: wrong})
        with self.context.open(path) as checkpoint:
            for wrong in NO_TEXT:
                self.says("name of the tensor", checkpoint.get_tensor, wrong)

    def test_the_others(self):
        for wrong in ("16", -1, 1.5, None, 1 << 64):
            self.says("not a number of bytes", self.context.allocate, "cpu", wrong)
        self.says("not a number of bytes", self.context.route, "gpu:0", "gpu:1", 1.5)
        self.says("src is 0", self.context.route, 0, "gpu:1", 16)
        self.says("lanes", self.context.copy, b"1", bytearray(1), lanes="two")
        self.says("not a path", self.context.copy, "file:\ud800", bytearray(1))
        self.assertEqual(self.context.allocate("cpu", numpy.int64(16)).nbytes, 16)


class PairedTypeTest(PackageTest):
    """PyTorch counts the elements of F4 in pairs, so it has no odd axes of them."""

    @staticmethod
    def from_dlpack(tensor):
        raise AssertionError("a tensor was read before the shapes were looked at")

    def setUp(self):
        super().setUp()
        stub = types.SimpleNamespace(uint8="uint8", float4_e2m1fn_x2="float4_e2m1fn_x2", from_dlpack=self.from_dlpack)
        patch = mock.patch.dict(sys.modules, {"torch": stub})
        patch.start()
        self.addCleanup(patch.stop)

    def test_odd_axes_are_refused_before_anything_is_read(self):
        path = self.folder / "a.safetensors"
        written.write(path, {"plain": ("U8", (3,), b"123"), "even": ("F4", (3, 2), b"123"), "odd": ("F4", (2, 3), b"123")})
        error = self.fails("unsupported", self.context.load, path, "gpu:0", framework="torch")
        self.assertIn("'odd'", error.message)
        with self.context.open(path, "torch") as checkpoint:
            self.assertIn("'odd'", self.fails("unsupported", checkpoint.get_tensor, "odd").message)
            for name in ("plain", "even"):  # these come as far as the stub
                self.assertRaises(AssertionError, checkpoint.get_tensor, name)
                self.assertRaises(AssertionError, self.context.load, path, "cpu", framework="torch", only=name)


if __name__ == "__main__":
    unittest.main()
