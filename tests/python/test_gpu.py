"""The package on GPUs that CUDA knows: real ones, or the made-up driver of tests/fake_cuda. Skips where there are none."""

import os
import unittest

import sidestep
import written
from package import PackageTest, numpy


class Handed:
    """An array of another library, in GPU memory, that offers DLPack and nothing else."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **asked):
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class GpuTest(PackageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.context = sidestep.Context("live")
        if not any(backend.name == "cuda" and backend.usable for backend in cls.context.backends()):
            raise unittest.SkipTest("this machine has no GPU that CUDA shows")
        cls.count = cls.context.topology().gpu_count

    def on_gpu(self, device, data):
        tensor = self.context.allocate(device, len(data))
        self.context.copy(data, tensor)
        return tensor

    def back(self, given, nbytes):
        data = bytearray(nbytes)
        self.context.copy(given, data)
        return bytes(data)

    def test_dlpack_names_cudas_number(self):
        numbers = self.context._machine.cuda_numbers
        self.assertEqual(len(numbers), self.count)
        for index, number in enumerate(numbers):
            if number >= 0:
                tensor = self.context.allocate(f"gpu:{index}", 64)
                self.assertEqual(tensor.__dlpack_device__(), (2, number))
                self.assertEqual(self.context.allocate(f"cuda:{number}", 64).place, f"gpu:{index}")
                self.assertFalse(tensor.on_cpu)
                self.assertIsNotNone(tensor.__dlpack__(stream=1, max_version=(1, 0)))

    def test_the_cpu_does_not_read_it(self):
        tensor = self.context.allocate("cuda:0", 64)
        with self.assertRaisesRegex(BufferError, "GPU memory"):
            memoryview(tensor)
        with self.assertRaisesRegex(TypeError, "GPU memory"):
            numpy.asarray(tensor)
        with self.assertRaises(BufferError):
            tensor.__dlpack__(dl_device=(1, 0))
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("U8", (4,), b"1234")})
        self.fails("unsupported", self.context.load, path, "cuda:0", framework="numpy")

    def test_arrays_of_other_libraries(self):
        data = os.urandom(1 << 20)
        tensor = self.on_gpu("cuda:0", data)
        self.assertEqual(self.back(Handed(tensor), len(data)), data)
        target = self.context.allocate("cuda:0", len(data))
        self.context.copy(data[::-1], Handed(target))
        self.assertEqual(self.back(target, len(data)), data[::-1])
        path = self.folder / "a.safetensors"
        self.context.save({"given": Handed(tensor.view("BF16", (1 << 19,)))}, path)
        self.assertEqual(written.read(path)[0], {"given": ("BF16", (1 << 19,), data)})

    def test_a_checkpoint_on_every_gpu(self):
        tensors = written.random_tensors(9, count=44)
        path = self.folder / "a.safetensors"
        written.write(path, tensors)
        loaded = self.context.load(path, "cuda:all")
        self.assertEqual(list(loaded), [f"cuda:{number}" for number in range(len(loaded))])
        for device, found in loaded.items():
            self.assertEqual(set(found), set(tensors))
            for name, (dtype, shape, data) in tensors.items():
                self.assertEqual((found[name].dtype, found[name].shape), (dtype, shape))
                self.assertEqual(found[name].__dlpack_device__(), (2, int(device[5:])))
                self.assertEqual(self.back(found[name].as_bytes(), len(data)), data)
        with self.context.open(path, device="cuda:0") as checkpoint:
            for name, (dtype, shape, data) in tensors.items():
                self.assertEqual(self.back(checkpoint.get_tensor(name).as_bytes(), len(data)), data)
        again = self.folder / "b.safetensors"
        self.context.save(loaded["cuda:0"], again)
        self.assertEqual(written.read(again)[0], tensors)

    def test_slices(self):
        array = numpy.arange(100 * 80, dtype="i4").reshape(100, 80)
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("I32", array.shape, array.tobytes())})
        with self.context.open(path, device="cuda:0") as checkpoint:
            for index in ((slice(3, 5),), (slice(None), slice(7, 9)), (4, 5)):
                part = checkpoint.get_slice("a")[index]
                self.assertEqual(self.back(part.as_bytes(), part.nbytes), array[index].tobytes())


if __name__ == "__main__":
    unittest.main()
