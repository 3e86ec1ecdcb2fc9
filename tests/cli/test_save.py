"""sidestep save: a checkpoint becomes one safetensors file or several, with the same tensors and metadata."""

import json
import os
import shutil
import signal
import struct
import subprocess
import unittest

import harness
import test_terminal
from harness import FAILED, USAGE
from test_load import safetensors

# GGUF's numbers of its types.
F32, F16, Q4_K, BF16 = 0, 1, 12, 30
STRING, UINT32, ARRAY = 8, 4, 9


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(tensors):
    """A GGUF file of (name, type, shape, bytes): outermost extent first, as safetensors has them."""
    pairs = [
        text("general.architecture") + struct.pack("<I", STRING) + text("llama"),
        text("llama.block_count") + struct.pack("<II", UINT32, 2),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, 2) + text("a") + text("b"),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    data = b""
    for name, kind, shape, content in tensors:
        data += bytes(-len(data) % 32)
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", extent) for extent in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content
    return head + bytes(-len(head) % 32) + data


def parse(content):
    """(tensors: name -> (dtype, shape, bytes), metadata) of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    data = content[8 + size :]
    return {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in header.items()}, metadata


class Save(harness.CommandTest):
    def setUp(self):
        super().setUp()
        content = harness.bytes_that_differ(1_000_000)
        self.tensors = {f"t{i}": ("U8", [100_000], content[i * 100_000 : (i + 1) * 100_000]) for i in range(10)}
        self.tensors["scale"] = ("F64", [], struct.pack("<d", 0.5))
        self.write("model.safetensors", safetensors([(n, *t) for n, t in self.tensors.items()]))

    def written(self, folder):
        names = sorted(name for name in os.listdir(self.dir / folder) if name.endswith(".safetensors"))
        found = {}
        for name in names:
            found.update(parse((self.dir / folder / name).read_bytes())[0])
        return names, found

    def test_gguf(self):
        wanted = {"a": ("F32", [3, 4], harness.bytes_that_differ(48)), "b": ("BF16", [5], b"0123456789"),
                  "c": ("F16", [2], b"wxyz")}
        kinds = {"F32": F32, "BF16": BF16, "F16": F16}
        self.write("m.gguf", gguf([(n, kinds[d], s, c) for n, (d, s, c) in wanted.items()]))
        outcome = self.succeed("save", "m.gguf", "out.safetensors", "--verify")
        self.assertIn("1 lists of the metadata", outcome.err)
        self.assertIn("verified", outcome.out)
        found, metadata = parse((self.dir / "out.safetensors").read_bytes())
        self.assertEqual(found, wanted)
        self.assertEqual(metadata, {"general.architecture": "llama", "llama.block_count": "2",
                                    "tokenizer.ggml.tokens": "string[2]"})

    def test_quantised_is_refused(self):
        block = bytes(144)
        self.write("q.gguf", gguf([("norm", F32, [2], bytes(8)), ("blk.0.q", Q4_K, [256], block),
                                   ("blk.1.q", Q4_K, [256], block)]))
        self.refused(FAILED, ["tensor blk.0.q is of type Q4_K", "1 more", "--only"], "save", "q.gguf", "out.safetensors")
        self.assertFalse((self.dir / "out.safetensors").exists())
        self.succeed("save", "q.gguf", "out.safetensors", "--only", "norm")

    def test_several_files(self):
        for options, files, dot in [(["--shard-size", "250000"], 5, ""), (["--shards", "4"], 4, "/."), (["--shards", "1"], 1, "")]:
            folder = f"out{files}"
            os.mkdir(self.dir / folder)
            told = self.json_of("save", "model.safetensors", folder + dot, *options, "--verify", "--manifest")
            names, found = self.written(folder)
            self.assertTrue(found == self.tensors)  # whose difference nobody reads
            self.assertEqual((len(names), told["files"], told["tensors"]), (files, files, 11))
            self.assertTrue(told["verified"])
            self.succeed("inspect", folder, "--verify-manifest", f"{folder}.manifest.json")
        # And back: the index is read, and what it says of its own files is not kept.
        self.succeed("save", "out5", "back.safetensors")
        found, metadata = parse((self.dir / "back.safetensors").read_bytes())
        self.assertTrue(found == self.tensors)
        self.assertEqual(metadata, {})

    def test_a_folder_gets_the_usual_name(self):
        os.mkdir(self.dir / "out")
        told = self.json_of("save", "model.safetensors", "out")
        self.assertTrue(told["destination"].endswith("out/model.safetensors"))
        self.succeed("save", "file:model.safetensors", "file:same")  # as places are written everywhere
        self.succeed("inspect", "file:same")
        self.succeed("load", "file:same", "--to", "host")
        self.assertEqual(self.names(), ["model.safetensors", "out", "same"])
        self.assertTrue(self.written("out") == (["model.safetensors"], self.tensors))

    def test_members_are_documented(self):
        text = (harness.SOURCE_DIR / "docs" / "load.md").read_text() + (harness.SOURCE_DIR / "docs" / "json.md").read_text()
        for member in self.json_of("save", "model.safetensors", "copy.safetensors"):
            self.assertIn(f"`{member}`", text)

    def test_table(self):
        outcome = self.succeed("save", ".", "copy.safetensors")
        for word in ["11 tensors of . to copy.safetensors (1 file)", "file:./model.safetensors -> host -> file:copy.safetensors", "read", "write"]:
            self.assertIn(word, outcome.out)
        self.assertEqual(self.succeed("save", ".", "copy.safetensors", "--quiet").out, "")

    def test_what_replaces_is_flushed_unless_told_otherwise(self):
        self.write("count.c", b"""#include <stdlib.h>
            #include <fcntl.h>
            #include <unistd.h>
            int fsync(int file) {
                int list = open(getenv("FLUSHES"), O_WRONLY | O_CREAT | O_APPEND, 0600);
                (void)!write(list, "f", 1);
                close(list);
                return fdatasync(file);
            }""")
        built = subprocess.run(["cc", "-shared", "-fPIC", "-o", "count.so", "count.c"], cwd=self.dir, capture_output=True, text=True)
        self.assertEqual(built.returncode, 0, built.stderr)
        os.mkdir(self.dir / "out")
        list_of = self.dir / "flushes"
        env = {**harness.environment(), "LD_PRELOAD": str(self.dir / "count.so"), "FLUSHES": str(list_of)}
        for what, options, flushes in [("new", [], False), ("new, asked to", ["--sync"], True), ("replaced", [], True),
                                       ("replaced, left out", ["--no-sync-replaced"], False)]:
            with self.subTest(what):
                if what.startswith("new"):
                    shutil.rmtree(self.dir / "out")
                    os.mkdir(self.dir / "out")
                list_of.unlink(missing_ok=True)
                self.succeed("save", "model.safetensors", "out", *options, env=env)
                self.assertEqual(list_of.exists(), flushes)

    def test_what_makes_no_sense(self):
        for code, words, line in [
            (USAGE, "none", ["none.safetensors", "out"]),
            (USAGE, "is one of them", ["model.safetensors", "model.safetensors"]),
            (USAGE, "does not exist", ["model.safetensors", "no/folder", "--shards", "2"]),
            (USAGE, "excludes", ["model.safetensors", "out", "--shards", "2", "--shard-size", "1MiB"]),
            (USAGE, "0 bytes", ["model.safetensors", "out", "--shard-size", "0"]),
            (USAGE, "0", ["model.safetensors", "out", "--shards", "0"]),
            (FAILED, "files of this machine", ["model.safetensors", "node7/file:/x"]),
            (FAILED, ["files of this machine", "./gpu:0"], ["model.safetensors", "gpu:0"]),
            (USAGE, "DESTINATION", ["model.safetensors"]),
            (USAGE, "nothing.*", ["model.safetensors", "out", "--only", "nothing.*"]),
        ]:
            self.refused(code, words, "save", *line)
        self.assertEqual(self.names(), ["model.safetensors"])

    def test_tensors_in_files(self):
        content = harness.bytes_that_differ(5000)
        self.write("a.bin", content)
        self.write("odd,name=1.bin", b"12345678")
        wanted = {
            "all": ("a.bin", "", "U8", [5000], content),
            "part": ("a.bin@100+24", ",dtype=f32,shape=2x3", "F32", [2, 3], content[100:124]),
            "a list": ("a.bin@0+4KiB", ",dtype=BF16", "BF16", [2048], content[:4096]),
            "scalar": ("a.bin@8+8", ",shape=,dtype=F64", "F64", [], content[8:16]),
            "nothing": ("a.bin@8+0", ",shape=7x0", "U8", [7, 0], b""),
            "half a byte": ("a.bin@1+3", ",dtype=f4,shape=3x2", "F4", [3, 2], content[1:4]),
            "layer/w:0": ("odd,name=1.bin", ",dtype=i32", "I32", [2], b"12345678"),
        }
        words = [f"{name}=file:{place}{rest}" for name, (place, rest, *_) in wanted.items()]
        for options, files in [([], 1), (["--shards", "2"], 2)]:
            folder = f"places{files}"
            os.mkdir(self.dir / folder)
            told = self.json_of("save", *words, folder, *options, "--verify")
            names, found = self.written(folder)
            self.assertEqual(found, {name: tuple(rest) for name, (_, _, *rest) in wanted.items()})
            self.assertEqual((len(names), told["files"], told["tensors"]), (files, files, 7))
            self.assertEqual(told["checkpoint"], f"{words[0]} and 6 more")
            self.succeed("inspect", folder)
        # A file whose name looks like one of these is a checkpoint.
        os.rename(self.dir / "model.safetensors", self.dir / "w=file:a.bin")
        self.succeed("save", "w=file:a.bin", "copy.safetensors")
        self.assertTrue(parse((self.dir / "copy.safetensors").read_bytes())[0] == self.tensors)

    def test_tensors_that_make_no_sense(self):
        self.write("a.bin", bytes(24))
        before = self.names()
        for words, line in [
            (["tensor \"a\"", "twice"], ["a=file:a.bin", "b=file:a.bin", "a=file:a.bin"]),
            (["F32 of shape [2, 4]", "32 bytes", "its memory 24"], ["a=file:a.bin,dtype=f32,shape=2x4"]),
            (["20 bytes", "no whole number of F64"], ["a=file:a.bin@0+20,dtype=f64"]),
            (["more elements than 64 bits can count"], ["a=file:a.bin,shape=4294967296x4294967296x2"]),
            (["no type 'F33'", "F32, C64"], ["a=file:a.bin,dtype=F33"]),
            (["no type ''", "BF16"], ["a=file:a.bin,dtype="]),
            (["'2x' is no shape"], ["a=file:a.bin,shape=2x"]),
            (["'-1' is no shape"], ["a=file:a.bin,shape=-1"]),
            (["a.bin,shap=24"], ["a=file:a.bin,shap=24"]),
            (["gpu:0 has no bytes", "publish"], ["a=gpu:0"]),
            (["host has no bytes"], ["a=host,shape=24"]),
            (["host:0x7f00"], ["a=host:0x7f00"]),
            (["did you mean 'file:a.bin'"], ["a=flie:a.bin"]),
            (["not there.bin"], ["a=file:not there.bin"]),
            (["a.bin has 24 bytes"], ["a=file:a.bin@20+8"]),
            (["nothing is published as kv"], ["a=shared:kv"]),
            (["a checkpoint is saved alone"], [".", "a=file:a.bin"]),
            (["a checkpoint is saved alone"], ["a=file:a.bin", "model.safetensors"]),
            (["a checkpoint is saved alone"], ["model.safetensors", "model.safetensors"]),
            (["--only"], ["a=file:a.bin", "--only", "a"]),
        ]:
            with self.subTest(line):
                outcome = self.run_command("save", *line, "out.safetensors")
                self.assertIn(outcome.code, (FAILED, USAGE))
                for word in words:
                    self.assertIn(word, outcome.err)
                self.assertEqual(self.names(), before)

    def test_interrupt(self):
        size = 4096 << 20  # sparse, and in pieces so small that no test waits for its end
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        path = self.write("long.safetensors", struct.pack("<Q", len(header)) + header)
        with open(path, "ab") as file:
            file.truncate(8 + len(header) + size)
        self.write("out.safetensors", b"earlier")
        terminal = test_terminal.Terminal(self, "save", "long.safetensors", "out.safetensors", "--chunk", "4KiB")
        self.assertTrue(terminal.read_until(b"GB/s"), terminal.seen)  # bytes are moving
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.end()
        self.assertEqual((code, out.count("\n")), (harness.INTERRUPTED, 1), out)  # of what was about to be done
        self.assertEqual((self.dir / "out.safetensors").read_bytes(), b"earlier")
        self.assertEqual(self.names(), ["long.safetensors", "model.safetensors", "out.safetensors"])


if __name__ == "__main__":
    unittest.main()
