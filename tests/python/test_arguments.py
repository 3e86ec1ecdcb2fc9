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
    """Of a version that knows no lazy views."""

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


if __name__ == "__main__":
    unittest.main()
