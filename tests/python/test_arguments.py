"""What is handed over and makes no sense: each a sidestep.Error that says what was wrong, before anything is done."""

import ctypes
import sys
import types
import unittest
from unittest import mock

import sidestep
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
    MACHINE = _devices.Machine(range(3), {0: -1, 1: 0, 2: 1})

    def test_numbers_are_those_of_cuda(self):
        for number in (1, numpy.int64(1), numpy.uint8(1)):
            self.assertEqual(_devices.place_of(number, self.MACHINE), "gpu:2")
        self.assertEqual(_devices.places_of([0, numpy.int64(1)], self.MACHINE), ([(0, "gpu:1"), (1, "gpu:2")], True))
        self.assertEqual(self.context.allocate(numpy.int64(3), 16).place, "gpu:3")

    def test_a_gpu_that_the_driver_lost_leaves_a_gap(self):
        places = _devices.places_of("gpu:all", _devices.Machine([0, 2], {0: 0, 2: 1}))[0]
        self.assertEqual(places, [("gpu:0", "gpu:0"), ("gpu:2", "gpu:2")])
        self.assertEqual(_devices.place_of(1, _devices.Machine([0, 2], {0: 0, 2: 1})), "gpu:2")

    def test_a_number_below_zero_is_no_hidden_gpu(self):
        for number in (-1, -2, numpy.int64(-1)):
            for machine in (self.MACHINE, _devices.Machine(range(3), {})):
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

    def test_numbers_and_messages(self):
        group, serve, notify = self.context.group, self.context.serve, self.context.notify
        for wrong in ("1", 1.5, None, [], -1, 1 << 64):
            for option in ("rank", "ranks"):
                if wrong is not None:
                    self.says(f"{option} is", group, "gpu:0", id="0" * 32, **{option: wrong})
            for option in ("notifications", "rate"):
                self.says(f"{option} is", serve, "host", listen="127.0.0.1:0", key_file=self.folder / "key", **{option: wrong})
        for wrong in ("soon", [], -1):
            self.says("timeout", group, "gpu:0", id="0" * 32, timeout=wrong)
        for wrong in (5, None, 1.5, ["a"]):  # bytes(5) would be five zeros
            self.says("text is", notify, "node", wrong)

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
        self.says("shared memory", self.context.copy, "shared:\udc80", bytearray(1))
        self.says("not a size", self.context.route, "gpu:0", "gpu:1", "\udc80")
        self.says("dst is", self.context.route, "gpu:0", "gpu:\udc80", 16)
        self.assertEqual(self.context.allocate("cpu", numpy.int64(16)).nbytes, 16)

    def test_memory_that_holds_objects(self):
        path, copy = self.folder / "a.bin", self.context.copy
        path.write_bytes(bytes(80))
        of_fields = numpy.zeros(5, dtype=[("a", "i8"), ("b", object)])
        for wrong in (numpy.array([None] * 10, dtype=object), of_fields, (ctypes.py_object * 10)()):
            for held in (wrong, memoryview(wrong)):
                self.says("Python objects", copy, held, path)
                self.says("Python objects", copy, path, held)
                self.says("Python objects", self.context.save, {"x": held}, path)
        self.assertEqual(path.read_bytes(), bytes(80))
        # A field's name may hold any letter.
        named = numpy.zeros(10, dtype=[("O", "i8")])
        for held in (named, memoryview(named)):
            copy(path, held)

    def test_progress_is_looked_at_before_anything_is_done(self):
        path = self.folder / "a.safetensors"
        for wrong in (3, "print", [print]):
            # There is no such file: progress is what is said first.
            self.says("progress is", self.context.load, path, "cpu", progress=wrong)
            self.says("progress is", self.context.copy, path, bytearray(1), progress=wrong)
            self.says("progress is", self.context.save, {"x": b"1"}, path, progress=wrong)
        self.assertFalse(path.exists())

    def test_machines(self):
        path = self.folder / "a.safetensors"
        written.write(path, {"w": ("U8", (2,), b"12")})
        for wrong in (3, 0, b"dgx-h100", ["dgx-h100"], "\ud800"):
            for call in (sidestep.Context, sidestep.topology):
                self.says("machine", call, wrong)
            self.says("machine", sidestep.load, path, "cpu", machine=wrong)
            self.says("machine", sidestep.allocate, "cpu", 16, machine=wrong)

    def test_parts(self):
        array = numpy.arange(24, dtype="u1").reshape(2, 3, 4)
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("U8", array.shape, array.tobytes())})
        with self.context.open(path, "numpy") as checkpoint:
            part = checkpoint.get_slice("a")
            for wrong in (True, False, numpy.True_, (0, True)):
                self.says("adds an axis", part.__getitem__, wrong)
            for wrong in (None, (0, None)):
                self.says("NoneType", part.__getitem__, wrong)
            for wrong in ([0, 1], (..., [0, 1]), numpy.array([0, 1]), (numpy.array([0, 1]), ...), 1.0, "a", slice("a", None),
                          slice(0, 1.5), slice(0, 2, 0)):
                self.says("get_slice", part.__getitem__, wrong)
                self.says("get_slice", part.plan, wrong)
            for index in (1, numpy.int64(1), numpy.array(1), slice(numpy.int64(1), None), (..., numpy.uint8(3))):
                self.assertTrue((part[index] == array[index]).all(), index)


class ManyAxesTest(PackageTest):
    """NumPy's arrays, and Python's buffers, have so many axes and no more."""

    def setUp(self):
        super().setUp()
        self.most = getattr(numpy, "MAXDIMS", 64)  # NumPy 2 does not say
        self.path = self.folder / "a.safetensors"
        written.write(self.path, {"deep": ("U8", (1,) * (self.most + 1), b"1"), "flat": ("U8", (2,), b"12")})

    def test_are_refused_before_anything_is_read(self):
        seen = []
        error = self.fails("unsupported", self.context.load, self.path, "gpu:0", framework="numpy",
                           progress=lambda *numbers: seen.append(numbers))
        self.assertEqual(seen, [])
        for words in ("'deep'", f"{self.most + 1} axes"):
            self.assertIn(words, error.message)
        self.assertEqual(self.context.load(self.path, "cpu", framework="numpy", only="flat")["flat"].tobytes(), b"12")
        with self.context.open(self.path, "numpy") as checkpoint:
            self.assertIn("'deep'", self.fails("unsupported", checkpoint.get_tensor, "deep").message)
            part = checkpoint.get_slice("deep")
            self.fails("unsupported", part.__getitem__, ...)
            self.assertEqual(part[0].shape, (1,) * self.most)

    def test_the_reason_is_said_without_framework(self):
        written.write(self.path, {"deep": ("U8", (1,) * 65, b"1")})
        tensor = self.context.load(self.path, "cpu")["deep"]
        self.assertEqual(tensor.shape, (1,) * 65)
        self.assertRaisesRegex(TypeError, "65 axes", numpy.asarray, tensor)
        self.assertRaisesRegex(BufferError, "64 axes", memoryview, tensor)
        self.assert_bytes(tensor, b"1")


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
