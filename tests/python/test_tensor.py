"""Tensors: types, views, the buffer protocol, DLPack, and how long memory lives."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest

import sidestep
import written
from package import MACHINE, PackageTest, environment, numpy

# NumPy has DLPack since 1.22; Ubuntu 22.04's is 1.21.
NUMPY_HAS_DLPACK = hasattr(numpy, "from_dlpack")
needs_numpys_dlpack = unittest.skipUnless(NUMPY_HAS_DLPACK, "this NumPy has no DLPack: 1.22 is the first that does")

get_name = ctypes.pythonapi.PyCapsule_GetName
get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.restype, set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("view", View), ("owner", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class VersionedManaged(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("owner", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("view", View)]


# Code and bits in DLPack's table of types.
DLPACK = {"BOOL": (6, 8), "U8": (1, 8), "I8": (0, 8), "I16": (0, 16), "U16": (1, 16), "F16": (2, 16), "BF16": (4, 16),
          "I32": (0, 32), "U32": (1, 32), "F32": (2, 32), "C64": (5, 64), "F64": (2, 64), "I64": (0, 64), "U64": (1, 64),
          "F4": (17, 4), "F6_E2M3": (15, 6), "F6_E3M2": (16, 6), "F8_E5M2": (12, 8), "F8_E4M3": (10, 8), "F8_E8M0": (14, 8),
          "F8_E4M3FNUZ": (11, 8), "F8_E5M2FNUZ": (13, 8)}
NARROW = [dtype for dtype, (code, _) in DLPACK.items() if code > 6]


def parse(capsule):
    """(structure, its version or None); the capsule keeps it."""
    name = get_name(capsule)
    kind = {b"dltensor": Managed, b"dltensor_versioned": VersionedManaged}[name]
    managed = kind.from_address(get_pointer(capsule, name))
    return managed, (managed.major, managed.minor) if kind is VersionedManaged else None


class TensorTest(PackageTest):
    def filled(self, device, data):
        tensor = self.context.allocate(device, len(data))
        if data:
            self.context.copy(data, tensor)
        return tensor

    def test_attributes(self):
        tensor = self.context.allocate("gpu:2", 24).view("F32", (2, 3))
        self.assertEqual((tensor.dtype, tensor.shape, tensor.nbytes, tensor.place), ("F32", (2, 3), 24, "gpu:2"))
        self.assertEqual((tensor.axis, tensor.first, tensor.on_cpu), (-1, 0, True))
        self.assertEqual(tensor.data_ptr % 256, 0)
        self.assertEqual(repr(tensor), "sidestep.Tensor(F32, (2, 3), gpu:2)")
        self.assertEqual(self.context.allocate("cpu", 4).view("I32", ()).shape, ())

    def test_views_that_do_not_fit_are_refused(self):
        tensor = self.context.allocate("cpu", 24)
        for dtype, shape in (("F32", (7,)), ("F32", (-2, -3)), ("F4", (47,)), ("NONE", (24,))):
            self.fails("invalid_argument", tensor.view, dtype, shape)
        self.fails("invalid_argument", tensor.part, 20, 5)
        self.fails("invalid_argument", tensor.part, 2**64 - 1, 2)
        for shape in ((1 << 32, 1 << 32), (1 << 62, 4), (1 << 63, 0), (-1, 0), ()):
            with self.assertRaises((sidestep.Error, TypeError)):  # TypeError: an extent beyond 63 bits
                self.context.allocate("cpu", 0).view("U8", shape)
        self.assertEqual(self.context.allocate("cpu", 0).view("F64", (1 << 62, 0, 1 << 62)).shape, (1 << 62, 0, 1 << 62))
        self.assertEqual(tensor.view("F4", (48,)).nbytes, 24)
        self.assertEqual(tensor.part(20, 4).data_ptr, tensor.data_ptr + 20)

    def test_numpy_sees_the_memory_itself(self):
        for device in ("cpu", "gpu:5"):
            for dtype, name in written.NUMPY.items():
                data = bytes(range(48)) if dtype != "BOOL" else bytes([0, 1] * 24)
                tensor = self.filled(device, data).view(dtype, (2, 24 // (written.BITS[dtype] // 8)))
                array = numpy.asarray(tensor)
                self.assertEqual(array.dtype, numpy.dtype(name))
                self.assertEqual(array.shape, tensor.shape)
                self.assertEqual(array.tobytes(), data)
                array.reshape(-1).view("u1")[0] = 1
                self.assertEqual(memoryview(tensor.as_bytes())[0], 1)

    def test_types_that_buffers_lack_are_refused(self):
        for dtype in ("BF16", "F8_E4M3", "F4"):
            tensor = self.context.allocate("cpu", 8).view(dtype, (64 // written.BITS[dtype],))
            with self.assertRaisesRegex(BufferError, dtype + ".*as_bytes"):
                memoryview(tensor)
            with self.assertRaisesRegex(TypeError, "as_bytes"):
                numpy.asarray(tensor)

    @needs_numpys_dlpack
    def test_numpy_by_dlpack(self):
        data = bytes(range(96))
        tensor = self.filled("gpu:1", data).view("F32", (2, 3, 4))
        array = numpy.from_dlpack(tensor)
        self.assertEqual(array.__array_interface__["data"][0], tensor.data_ptr)
        self.assertEqual((array.shape, array.tobytes()), ((2, 3, 4), data))
        self.assertEqual(numpy.from_dlpack(self.context.allocate("cpu", 0)).shape, (0,))

    def test_every_type_has_its_dlpack_code(self):
        self.assertEqual(set(DLPACK), set(written.BITS))
        for dtype, expected in DLPACK.items():
            inner = 64 // written.BITS[dtype]
            tensor = self.context.allocate("gpu:0", 6 * inner * written.BITS[dtype] // 8).view(dtype, (2, 3, inner))
            capsule = tensor.__dlpack__(max_version=(1, 1))
            managed, version = parse(capsule)
            view = managed.view
            self.assertEqual((view.code, view.bits, view.lanes), (*expected, 1), dtype)
            self.assertEqual((version, managed.flags), ((1, 1), 0))
            self.assertEqual((view.data, view.byte_offset), (tensor.data_ptr, 0))
            self.assertEqual((view.device_type, view.device_id), (1, 0))
            self.assertEqual(view.shape[:3], [2, 3, inner])
            self.assertEqual(view.strides[:3], [3 * inner, inner, 1])

    def test_versions_of_dlpack(self):
        tensor = self.context.allocate("cpu", 8)
        for asked, given in ((None, None), ((0, 8), None), ((1, 0), (1, 0)), ((1, 1), (1, 1)), ((1, 3), (1, 1)),
                             ((2, 0), (1, 1))):
            capsule = tensor.__dlpack__(max_version=asked)
            self.assertEqual(parse(capsule)[1], given)
        for dtype in NARROW:
            narrow = tensor.view(dtype, (64 // written.BITS[dtype],)) if 64 % written.BITS[dtype] == 0 else \
                self.context.allocate("cpu", 6).view(dtype, (8,))
            for asked in (None, (1, 0)):
                with self.assertRaisesRegex(BufferError, dtype + ".*as_bytes"):
                    narrow.__dlpack__(max_version=asked)
        with self.assertRaises(BufferError):
            tensor.__dlpack__(copy=True)
        with self.assertRaises(BufferError):
            tensor.__dlpack__(dl_device=(2, 0))
        self.assertIsNotNone(tensor.__dlpack__(dl_device=(1, 0), copy=False, stream=None))
        raw = tensor.as_raw("Q4_K", (16,))
        self.assertEqual((raw.dtype, raw.shape), ("Q4_K", (16,)))
        with self.assertRaisesRegex(BufferError, "Q4_K"):
            raw.__dlpack__(max_version=(1, 1))

    def test_arrays_keep_the_memory(self):
        data = os.urandom(1 << 16)
        kept = [numpy.asarray(self.filled("gpu:0", data)), memoryview(self.filled("gpu:0", data)),
                self.filled("gpu:0", data).view("U16", (1 << 15,)).part(0, 1 << 16)]
        if NUMPY_HAS_DLPACK:
            kept.append(numpy.from_dlpack(self.filled("gpu:0", data)))
        gc.collect()
        others = [self.filled("gpu:0", bytes(1 << 16)) for _ in range(8)]
        for view in kept:
            self.assertEqual(bytes(memoryview(view).cast("B")), data)
        del others

    def test_memory_is_freed_with_the_last_view(self):
        # Each round asks for most of what the emulated GPU has: a leak of any view ends in out_of_memory.
        program = """
import gc, sys, numpy, sidestep
context = sidestep.Context("dgx-h100")
for number in range(12):
    tensor = context.allocate("gpu:0", 40 << 20)
    way = number % 6
    if way == 0: kept = numpy.asarray(tensor)
    if way == 1: kept = numpy.from_dlpack(tensor) if hasattr(numpy, "from_dlpack") else numpy.asarray(tensor)
    if way == 2: kept = tensor.__dlpack__()
    if way == 3: kept = tensor.__dlpack__(max_version=(1, 1))
    if way == 4: kept = memoryview(tensor.as_bytes())
    if way == 5: kept = sidestep._core.Imported(tensor.__dlpack__())
    del tensor
    try:
        context.allocate("gpu:0", 40 << 20)
        sys.exit(f"way {way}: freed while it was in use")
    except sidestep.Error as error:
        assert error.code == "out_of_memory", error
    del kept
    gc.collect()
print("freed")
"""
        done = subprocess.run([sys.executable, "-B", "-c", program], env=environment(SIDESTEP_EMULATED_GPU_MEMORY="64MiB"),
                              capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "freed\n", ""))

    def test_a_deleter_runs_on_any_thread_without_the_gil(self):
        # ctypes releases the GIL around the call, as libraries do that free arrays on their own threads.
        data = os.urandom(4096)
        for asked in (None, (1, 1)):
            tensor = self.filled("gpu:0", data)
            before = sys.getrefcount(tensor)
            capsule = tensor.__dlpack__(max_version=asked)
            self.assertEqual(sys.getrefcount(tensor), before)  # the capsule keeps the memory, not the object
            managed, _ = parse(capsule)
            deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
            set_name(capsule, b"used_dltensor" if asked is None else b"used_dltensor_versioned")
            address = ctypes.addressof(managed)
            del tensor
            thread = threading.Thread(target=deleter, args=(address,))
            thread.start()
            thread.join()

    @needs_numpys_dlpack
    def test_memory_of_other_libraries_comes_by_dlpack(self):
        class Wrapped:  # neither NumPy's nor a buffer
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **asked):
                return self.array.__dlpack__(**asked)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        source = numpy.arange(1000, dtype="int32")
        target = numpy.zeros(1000, dtype="int32")
        self.context.copy(Wrapped(source), Wrapped(target))
        self.assertTrue((source == target).all())
        error = self.fails("invalid_argument", self.context.copy, Wrapped(numpy.zeros((10, 10)).T), bytearray(800))
        self.assertIn("C order", str(error))

    def test_a_child_of_fork_opens_its_own_context(self):
        program = f"""
import os, signal, sidestep
tensor = sidestep.allocate("gpu:0", 1 << 20, machine="{MACHINE}")
sidestep.copy(bytes(1 << 20), tensor, machine="{MACHINE}")  # starts the threads that the child will not have
child = os.fork()
if child == 0:
    signal.alarm(30)
    del tensor
    own = sidestep.allocate("gpu:0", 1 << 20, machine="{MACHINE}")
    sidestep.copy(bytes(1 << 20), own, machine="{MACHINE}")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        self.assertEqual(self.said_by(program), "7\n")

    def test_a_child_of_fork_reads_on_with_what_its_parent_opened(self):
        path = str(self.folder / "forked.safetensors")
        written.write(path, {"a": ("U8", [1 << 20], bytes(1 << 20)), "b": ("U8", [1 << 20], b"b" * (1 << 20))})
        program = f"""
import os, signal, sidestep
context = sidestep.Context("{MACHINE}")
opened = [sidestep.open({path!r}, "numpy", "gpu:0", machine="{MACHINE}"), context.open({path!r}, "numpy", "gpu:0")]
for one in opened: one.get_tensor("a")  # starts threads
child = os.fork()
if child == 0:
    signal.alarm(30)
    right = all((one.get_tensor("b") == 98).all() and (one.get_slice("b")[3:5] == 98).all() for one in opened)
    os._exit(7 if right else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), [int(one.get_tensor("b").sum()) >> 20 for one in opened])
"""
        self.assertEqual(self.said_by(program), "7 [98, 98]\n")

    def said_by(self, program):
        done = subprocess.run([sys.executable, "-B", "-W", "ignore", "-c", program], env=environment(),
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout


if __name__ == "__main__":
    unittest.main()
