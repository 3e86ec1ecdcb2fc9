"""load() and open(), compared with files written by hand."""

import gc
import os
import random
import subprocess
import sys
import unittest

import sidestep
import written
from package import MACHINE, PackageTest, environment, numpy


class LoadTest(PackageTest):
    def checkpoint(self, seed=1, **more):
        tensors = written.random_tensors(seed, **more)
        path = self.folder / f"{seed}.safetensors"
        written.write(path, tensors, {"format": "pt", "seed": str(seed)})
        return path, tensors

    def assert_tensors(self, loaded, tensors):
        self.assertEqual(set(loaded), set(tensors))
        for name, (dtype, shape, data) in tensors.items():
            self.assertEqual((loaded[name].dtype, loaded[name].shape), (dtype, shape), name)
            self.assert_bytes(loaded[name], data)

    def test_random_checkpoints(self):
        for seed in range(6):
            path, tensors = self.checkpoint(seed, count=30)
            for device in ("cuda:0", "gpu:7", "cpu"):
                loaded = self.context.load(path, device)
                self.assert_tensors(loaded, tensors)
                self.assertEqual({tensor.data_ptr % 256 for tensor in loaded.values() if tensor.nbytes}, {0})

    def test_several_devices(self):
        path, tensors = self.checkpoint()
        loaded = self.context.load(path, ["gpu:0", "cuda:3", 5])
        self.assertEqual(list(loaded), ["gpu:0", "cuda:3", 5])
        for device, place in (("gpu:0", "gpu:0"), ("cuda:3", "gpu:3"), (5, "gpu:5")):
            self.assert_tensors(loaded[device], tensors)
            self.assertEqual({tensor.place for tensor in loaded[device].values()}, {place})
        everywhere = self.context.load(path, "gpu:all", only="layer.0.*")
        self.assertEqual(list(everywhere), [f"gpu:{number}" for number in range(8)])
        self.assertEqual([list(tensors) for tensors in everywhere.values()], [["layer.0.bool"]] * 8)
        self.assertEqual(list(self.context.load(path, ["cpu"])), ["cpu"])

    def test_receipt_report_and_progress(self):
        path, tensors = self.checkpoint(count=40)
        seen = []
        loaded = self.context.load(path, "gpu:0", progress=lambda *numbers: seen.append(numbers), verify=True)
        total = sum(len(data) for _, _, data in tensors.values())
        self.assertEqual((loaded.receipt.bytes, loaded.receipt.verified), (total, True))
        self.assertTrue(loaded.report)
        self.assertTrue(seen)
        self.assertTrue(all(0 <= done <= total for done, _ in seen))

    def test_sharded_checkpoints(self):
        shards = [written.random_tensors(seed, count=9) for seed in (1, 2, 3)]
        shards = [{f"shard.{number}.{name}": tensor for name, tensor in shard.items()}
                  for number, shard in enumerate(shards)]
        written.write_sharded(self.folder, shards)
        everything = {name: tensor for shard in shards for name, tensor in shard.items()}
        self.assert_tensors(self.context.load(self.folder, "gpu:0"), everything)
        self.assert_tensors(self.context.load(self.folder / "model.safetensors.index.json", "cpu"), everything)

    def test_several_files_given_one_by_one(self):
        shards = {f"part {number}": written.random_tensors(number, count=9) for number in range(3)}
        paths, everything = [], {}
        for name, tensors in shards.items():
            tensors = {f"{name}.{key}": tensor for key, tensor in tensors.items()}
            paths.append(self.folder / f"{name}.safetensors")
            written.write(paths[-1], tensors, {"first": name, name: "there"})
            everything.update(tensors)
        for given in (paths, tuple(map(str, paths)), [os.fsencode(path) for path in reversed(paths)]):
            self.assert_tensors(self.context.load(given, "gpu:0"), everything)
            with self.context.open(given) as checkpoint:
                self.assertEqual(checkpoint.files, [os.fsdecode(path) for path in given])
                self.assertEqual(checkpoint.metadata()["part 2"], "there")
        self.assertEqual(len(self.context.load(paths[:1], "cpu")), 9)
        self.assertIn(str(paths[1]), self.fails("invalid_argument", self.context.load, [*paths, paths[1]], "cpu").message)
        self.fails("invalid_argument", self.context.load, [], "cpu")
        self.fails("not_found", self.context.load, [*paths, self.folder / "none"], "cpu")
        self.assertIn("folder", self.fails("invalid_argument", self.context.load, [paths[0], self.folder], "cpu").message)

    def test_an_open_checkpoint_is_loaded(self):
        path, tensors = self.checkpoint()
        with self.context.open(path) as checkpoint:
            self.assert_tensors(self.context.load(checkpoint, "gpu:0"), tensors)
            self.assertEqual(list(self.context.load(checkpoint, "cpu", only="layer.0.*")), ["layer.0.bool"])
            self.rewrite(path, path.read_bytes())
            self.fails("mismatch", self.context.load, checkpoint, "gpu:0")
        self.fails("invalid_argument", self.context.load, checkpoint, "gpu:0")

    def test_notes_of_the_files_are_handed_out(self):
        path, tensors = self.checkpoint()
        path.write_bytes(path.read_bytes() + b"padding")
        with self.context.open(path, lenient=True) as checkpoint:
            (note,) = checkpoint.notes
        loaded = self.context.load(path, ["gpu:0", "gpu:1"], lenient=True, shard={"none of them": 0})
        self.assertEqual((loaded.receipt.notes[0], len(loaded.receipt.notes)), (note, 2))
        self.assertIn(note, loaded.report)

    def test_empty_tensors_of_any_extent(self):
        path = self.folder / "a.safetensors"
        shapes = {"wide": (0, 1 << 32, 1 << 32), "long": ((1 << 63) - 1, 0), "deep": (0, 1 << 61, 8)}
        written.write(path, {name: ("F64", shape, b"") for name, shape in shapes.items()})
        loaded = self.context.load(path, "gpu:0")
        with self.context.open(path) as checkpoint:
            for name, shape in shapes.items():
                for tensor in (loaded[name], checkpoint.get_tensor(name)):
                    self.assertEqual((tensor.shape, tensor.nbytes), (shape, 0))
                    view = memoryview(tensor)
                    self.assertEqual((view.shape, view.nbytes), (shape, 0))
                    self.assertTrue(all(stride > 0 for stride in view.strides), view.strides)
        written.write(path, {"a": ("U8", (0, 2), b""), "longer": ("U8", (0, 1 << 63), b"")})
        self.assertIn("longer", self.fails("unsupported", self.context.load, path, "cpu").message)
        self.assertEqual(self.context.load(path, "cpu", only="a")["a"].shape, (0, 2))
        with self.context.open(path) as checkpoint:
            self.assertIn("longer", self.fails("unsupported", checkpoint.get_tensor, "longer").message)
            self.assertIn("longer", self.fails("unsupported", checkpoint.get_slice("longer").__getitem__, ...).message)

    def test_patterns(self):
        path, tensors = self.checkpoint(count=44)
        for only, kept in (("*.bf16", lambda name: name.endswith(".bf16")),
                           (["*", "!*.f4"], lambda name: not name.endswith(".f4"))):
            self.assertEqual(set(self.context.load(path, "cpu", only=only)), set(filter(kept, tensors)))
        self.fails("not_found", self.context.load, path, "cpu", only="nothing")

    def test_tensors_cut_along_an_axis(self):
        data = numpy.arange(10 * 6, dtype="f4").reshape(10, 6)
        path = self.folder / "cut.safetensors"
        written.write(path, {"a.weight": ("F32", (10, 6), data.tobytes()), "b.bias": ("F32", (6,), data[0].tobytes())})
        rules = self.folder / "rules.json"
        rules.write_text('{"rules": [{"pattern": "*.weight", "axis": -1}]}')
        for shard in ({"*.weight": -1}, [("*.weight", 1)], rules, str(rules)):
            loaded = self.context.load(path, ["gpu:0", "gpu:1", "gpu:2", "gpu:3"], shard=shard)
            parts = [loaded[f"gpu:{number}"]["a.weight"] for number in range(4)]
            self.assertEqual([(part.axis, part.first, part.shape) for part in parts],
                             [(1, 0, (10, 1)), (1, 1, (10, 2)), (1, 3, (10, 1)), (1, 4, (10, 2))])
            self.assertTrue((numpy.concatenate([numpy.asarray(part) for part in parts], axis=1) == data).all())
            for tensors in loaded.values():
                self.assertEqual((tensors["b.bias"].axis, tensors["b.bias"].shape), (-1, (6,)))
        self.fails("invalid_argument", self.context.load, path, ["gpu:0", "gpu:1"], shard={"*.weight": 2})
        self.fails("invalid_argument", self.context.load, path, ["gpu:0"], shard={"*": 0}, layout="tensor")

    def test_each_tensor_on_one_device(self):
        path, tensors = self.checkpoint(count=60)
        loaded = self.context.load(path, ["gpu:0", "gpu:1"], layout="tensor")
        self.assert_tensors({**loaded["gpu:0"], **loaded["gpu:1"]}, tensors)
        self.assertFalse(set(loaded["gpu:0"]) & set(loaded["gpu:1"]))

    def test_numpy_arrays(self):
        path, tensors = self.checkpoint(dtypes=tuple(written.NUMPY))
        for name in ("numpy", "np"):
            for key, array in self.context.load(path, "gpu:0", framework=name).items():
                dtype, shape, data = tensors[key]
                self.assertEqual((array.dtype, array.shape), (numpy.dtype(written.NUMPY[dtype]), shape))
                self.assertEqual(array.tobytes(), data)
                self.assertTrue(array.flags.writeable)

    def test_types_that_numpy_lacks_are_said_before_anything_is_read(self):
        path, _ = self.checkpoint(dtypes=("F4", "F32"))
        self.assertIn("F4", self.fails("unsupported", self.context.load, path, "cpu", framework="numpy").message)
        path, tensors = self.checkpoint(2, dtypes=("BF16", "F8_E4M3"))
        try:
            import ml_dtypes
        except ImportError:
            self.assertIn("ml_dtypes", self.fails("unsupported", self.context.load, path, "cpu", framework="numpy").hint)
        else:
            loaded = self.context.load(path, "cpu", framework="numpy")
            for name, (dtype, _, data) in tensors.items():
                expected = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}[dtype]
                self.assertEqual((loaded[name].dtype, loaded[name].tobytes()), (numpy.dtype(expected), data))
        self.fails("invalid_argument", self.context.load, path, "cpu", framework="abacus")

    def test_memory_lives_as_long_as_one_tensor(self):
        path, tensors = self.checkpoint(count=40)
        name = max(tensors, key=lambda key: len(tensors[key][2]))
        tensor = self.context.load(path, "gpu:0")[name]
        gc.collect()
        again = [self.context.load(path, "gpu:0", only=name) for _ in range(4)]
        self.assert_bytes(tensor, tensors[name][2])
        del again

    def test_repeated_loads_leak_nothing(self):
        data = os.urandom(20 << 20)
        path = self.folder / "large.safetensors"
        written.write(path, {"a": ("U8", (len(data),), data), "b": ("U8", (4,), b"1234")})
        program = f"""
import numpy, sidestep
context = sidestep.Context("{MACHINE}")
for number in range(10):
    loaded = context.load({str(path)!r}, "gpu:0", framework=[None, "numpy"][number % 2])
    small = loaded["b"]
    del loaded
    try:
        context.load({str(path)!r}, "gpu:0")
        raise SystemExit("freed while a tensor was in use")
    except sidestep.Error as error:
        assert error.code == "out_of_memory", error
    del small
print("freed")
"""
        done = subprocess.run([sys.executable, "-B", "-c", program], env=environment(SIDESTEP_EMULATED_GPU_MEMORY="32MiB"),
                              capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "freed\n", ""))

    def test_types_of_gguf_come_as_bytes(self):
        quantised, plain = os.urandom(4 * 18), numpy.arange(6, dtype="f4").reshape(2, 3)  # Q4_0: 18 bytes for 32 elements
        path = self.folder / "a.gguf"
        written.write_gguf(path, {"q": (2, (4, 32), quantised), "f": (0, (2, 3), plain.tobytes())})
        with self.context.open(path, device="gpu:0") as checkpoint:
            single = checkpoint.get_tensor("q")
            self.assertEqual(checkpoint.metadata()["general.name"], "a model")
        for tensor in (single, self.context.load(path, "gpu:0")["q"]):
            self.assertEqual((tensor.dtype, tensor.shape), ("Q4_0", (4, 32)))
            self.assert_bytes(tensor, quantised)
        self.assertTrue((numpy.asarray(self.context.load(path, "cpu", only="f")["f"]) == plain).all())
        self.assertIn("Q4_0", self.fails("unsupported", self.context.load, path, "cpu", framework="numpy").message)

    def test_malformed_files(self):
        path, _ = self.checkpoint()
        content = path.read_bytes()
        for wrong in (b"", content[:-1], content + b"x", b"\xff" * 8 + content[8:]):
            path.write_bytes(wrong)
            error = self.fails("invalid_argument", self.context.load, path, "cpu")
            self.assertIn(path.name, str(error))
        self.fails("not_found", self.context.load, self.folder / "none.safetensors", "cpu")


class OpenTest(PackageTest):
    def test_names_types_and_metadata(self):
        tensors = written.random_tensors(4, count=30)
        path = self.folder / "a.safetensors"
        written.write(path, tensors, {"format": "pt"})
        with self.context.open(path) as checkpoint:
            self.assertEqual((checkpoint.keys(), checkpoint.offset_keys()), (sorted(tensors), list(tensors)))
            self.assertEqual((list(checkpoint), len(checkpoint)), (sorted(tensors), 30))
            self.assertEqual([info.name for info in checkpoint.tensors()], list(tensors))
            self.assertIn("layer.0.bool", checkpoint)
            self.assertNotIn("layer", checkpoint)
            self.assertEqual(checkpoint.metadata(), {"format": "pt"})
            for name, (dtype, shape, data) in tensors.items():
                info = checkpoint.get_info(name)
                self.assertEqual((checkpoint.get_dtype(name), checkpoint.get_shape(name)), (dtype, list(shape)))
                self.assertEqual((info.nbytes, info.bits), (len(data), written.BITS[dtype]))
                self.assertEqual(path.read_bytes()[info.offset:info.offset + info.nbytes], data)
            self.assertEqual(checkpoint.nbytes, sum(len(data) for _, _, data in tensors.values()))
            self.assertIn("layer.3.f6_e3m2", checkpoint.table())
            self.assertEqual(checkpoint.files, [str(path)])
            self.fails("not_found", checkpoint.get_tensor, "none")
            self.fails("not_found", checkpoint.get_slice, "none")
        self.fails("invalid_argument", checkpoint.get_tensor, "layer.0.bool")
        self.fails("invalid_argument", checkpoint.keys)

    def test_single_tensors(self):
        tensors = written.random_tensors(5, count=44)
        path = self.folder / "a.safetensors"
        written.write(path, tensors)
        for device in ("cpu", "gpu:2"):
            with self.context.open(path, device=device) as checkpoint:
                for name, (dtype, shape, data) in tensors.items():
                    tensor = checkpoint.get_tensor(name)
                    self.assertEqual((tensor.dtype, tensor.shape), (dtype, shape))
                    self.assert_bytes(tensor, data)

    def test_all_tensors(self):
        tensors = written.random_tensors(9, count=25, dtypes=tuple(written.NUMPY))
        path = self.folder / "a.safetensors"
        written.write(path, {name: tensors[name] for name in reversed(tensors)})
        for device in ("cpu", "gpu:1"):
            with self.context.open(path, device=device) as checkpoint:
                found = checkpoint.get_tensors()
                self.assertEqual(list(found), checkpoint.offset_keys())
                for name, (dtype, shape, data) in tensors.items():
                    self.assertEqual((found[name].dtype, found[name].shape), (dtype, shape))
                    self.assert_bytes(found[name], data)
                    self.assertEqual(found[name].place, "host" if device == "cpu" else device)
            with self.context.open(path, "numpy", device) as checkpoint:
                for name, array in checkpoint.get_tensors().items():
                    self.assertEqual((array.dtype, array.tobytes()), (written.NUMPY[tensors[name][0]], tensors[name][2]))
                self.rewrite(path, path.read_bytes())
                self.fails("mismatch", checkpoint.get_tensors)
        self.fails("invalid_argument", checkpoint.get_tensors)

    def test_a_file_that_changed_is_refused(self):
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("U8", (4,), b"1234")})
        with self.context.open(path) as checkpoint:
            written.write(path, {"b": ("U8", (5,), b"12345")})
            self.assertIn(str(path), str(self.fails("mismatch", checkpoint.get_tensor, "a")))
            path.write_bytes(b"short")
            self.fails("end_of_file", checkpoint.get_slice("a").__getitem__, 0)
            path.unlink()
            self.fails("not_found", checkpoint.get_tensor, "a")

    def test_a_rewritten_file_of_the_same_size_is_refused(self):
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("U8", (4,), b"1234")})
        with self.context.open(path) as checkpoint:
            self.rewrite(path, path.read_bytes()[:-4] + b"4321")
            for read in (checkpoint.get_tensor, lambda name: checkpoint.get_slice(name)[1:]):
                self.assertIn(str(path), self.fails("mismatch", read, "a").message)

    def test_errors_name_the_tensor(self):
        path = self.folder / "a.safetensors"
        written.write(path, {"first": ("U8", (4,), b"1234"), "second": ("U8", (4,), b"1234")})
        with self.context.open(path) as checkpoint:
            os.truncate(path, path.stat().st_size - 6)
            for name in ("first", "second"):
                for read in (checkpoint.get_tensor, lambda name: checkpoint.get_slice(name)[1:]):
                    error = self.fails("end_of_file", read, name)
                    self.assertIn(f"tensor '{name}'", error.message)
                    self.assertIn(str(path), error.message)
            path.unlink()
            self.assertIn("tensor 'second'", self.fails("not_found", checkpoint.get_tensor, "second").message)

    def index(self, chance, shape):
        """Some index into an array of that shape."""
        items = []
        for extent in shape[:chance.randrange(len(shape) + 1)]:
            kind = chance.randrange(3)
            if kind == 0 and extent:
                items.append(chance.randrange(-extent, extent))
            elif kind == 1:
                items.append(slice(None))
            else:
                items.append(slice(*(chance.choice((None, chance.randrange(-extent - 2, extent + 3))) for _ in range(2))))
        if items and chance.randrange(2):
            items.append(...)
        elif not items and chance.randrange(2):
            # What stands behind "..." counts from the last axis.
            items = [..., *(slice(0, 2) for _ in range(chance.randrange(len(shape) + 1)))]
        return tuple(items)

    def test_random_slices(self):
        chance = random.Random(7)
        arrays = {"scalar": numpy.array(3, dtype="i4"), "line": numpy.arange(1000, dtype="i8"),
                  "none": numpy.zeros((3, 0, 2), dtype="f2"),
                  "cube": numpy.arange(40 * 30 * 20, dtype="u2").reshape(40, 30, 20),
                  "deep": numpy.arange(5 * 4 * 3 * 2 * 7, dtype="f4").reshape(5, 4, 3, 2, 7)}
        names = {"i4": "I32", "i8": "I64", "f2": "F16", "u2": "U16", "f4": "F32"}
        path = self.folder / "a.safetensors"
        written.write(path, {name: (names[array.dtype.str[1:]], array.shape, array.tobytes())
                             for name, array in arrays.items()})
        for device in ("cpu", "gpu:0"):
            with self.context.open(path, "numpy", device) as checkpoint:
                for number in range(150):
                    name = chance.choice(list(arrays))
                    index = self.index(chance, arrays[name].shape)
                    expected = arrays[name][index]
                    part = checkpoint.get_slice(name)[index]
                    self.assertEqual((part.shape, part.dtype), (expected.shape, expected.dtype), (name, index))
                    self.assertTrue((part == expected).all(), (name, index))

    def test_slices_in_pieces_read_only_what_they_need(self):
        array = numpy.arange(8 * 64 * 1024, dtype="u4").reshape(8, 64 * 1024)
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("U32", array.shape, array.tobytes())})
        with self.context.open(path, "numpy") as checkpoint:
            part = checkpoint.get_slice("a")
            for index, reads, nbytes in (((slice(2, 5),), 1, 3 << 18), ((3, slice(5, 9)), 1, 16),
                                         ((slice(None), slice(0, 20_000)), 8, 8 * 80_000)):
                self.assertTrue((part[index] == array[index]).all())
                self.assertEqual(part.plan(index), (array[index].shape, nbytes, nbytes, reads))
            thin = part.plan((slice(None), slice(0, 10)))
            self.assertEqual((thin.nbytes, thin.reads, thin.read_nbytes), (320, 1, 7 * (1 << 18) + 40))
            self.assertTrue((part[:, :10] == array[:, :10]).all())
            self.assertEqual((part.get_shape(), part.get_dtype()), ([8, 65536], "U32"))

    def test_slices_that_make_no_sense(self):
        path = self.folder / "a.safetensors"
        written.write(path, {"a": ("U8", (4, 3), bytes(12)), "f": ("F4", (4, 4), bytes(8))})
        with self.context.open(path) as checkpoint:
            part = checkpoint.get_slice("a")
            for wrong in ((4,), (0, 0, 0), (-5,), (..., ...), ("a",), (1.5,), (None,)):
                self.fails("invalid_argument", part.__getitem__, wrong)
            self.fails("unsupported", part.__getitem__, slice(None, None, 2))
            self.fails("unsupported", checkpoint.get_slice("f").__getitem__, 0)


if __name__ == "__main__":
    unittest.main()
