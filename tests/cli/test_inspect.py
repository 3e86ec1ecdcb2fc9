"""sidestep inspect: tables, JSON, manifests and refusals."""

import json
import struct
import subprocess
import sys
import unittest

import harness


def safetensors(tensors, metadata=None, data=None):
    """The bytes of a file with tensors {name: (dtype, shape, bytes)}."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + (harness.bytes_that_differ(at) if data is None else data)


SMALL = {"model.a.weight": ("F32", [2, 3], 24), "model.a.bias": ("BF16", [4], 8), "head": ("F8_E4M3", [], 1)}


class Inspect(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.write("m.safetensors", safetensors(SMALL, {"format": "pt"}))

    def test_table(self):
        self.assertEqual(
            self.succeed("inspect", "m.safetensors").out,
            "name            type     shape   bytes  file\n"
            "model.a.weight  F32      [2, 3]     24  m.safetensors\n"
            "model.a.bias    BF16     [4]         8  m.safetensors\n"
            "head            F8_E4M3  []          1  m.safetensors\n"
            "\n"
            "3 tensors, 33 B in 1 file: F32 72.7 %, BF16 24.2 %, F8_E4M3 3.03 %\n"
            "metadata:\n"
            "  format: pt\n")

    def test_metadata_is_shortened(self):
        text = "first line\nsecond " + "x" * 200
        self.write("m.safetensors", safetensors(SMALL, {"license": text, "step": "7"}))
        out = self.succeed("inspect", "m.safetensors").out
        self.assertIn("\nmetadata:\n  license: first line\\x0asecond xxx", out)
        self.assertIn("x...\n  step: 7\n", out)
        self.assertLess(max(map(len, out.splitlines())), 100)
        self.assertEqual(self.json_of("inspect", "m.safetensors")["metadata"]["license"], text)
        self.write("m.safetensors", safetensors(SMALL))
        self.assertNotIn("metadata", self.succeed("inspect", "m.safetensors").out)

    def test_long_names_stay_apart(self):
        names = [150 * "n" + end for end in ("a", "b")]
        self.write("m.safetensors", safetensors({name: ("U8", [1], 1) for name in names}))
        out = self.succeed("inspect", "m.safetensors").out
        for name in names:
            self.assertIn(name + "  U8", out)

    def test_no_machine_is_needed(self):
        # One that does not exist, and no GPU.
        self.assertIn("head", self.succeed("inspect", "m.safetensors", machine="nowhere").out)
        self.assertIn("head", self.succeed("inspect", ".", machine=None).out)

    def test_only(self):
        out = self.succeed("inspect", "m.safetensors", "--only", "model.*", "--only", "!*.bias").out
        self.assertIn("model.a.weight", out)
        self.assertIn("\n1 tensor, 24 B in 1 file", out)
        self.refused(harness.USAGE, ["none of the 3 tensors", "x*"], "inspect", "m.safetensors", "--only", "x*")
        self.refused(harness.USAGE, ["pattern", "without its ']'"], "inspect", "m.safetensors", "--only", "[a")

    def test_json(self):
        answer = self.json_of("inspect", "m.safetensors")
        self.assertEqual(set(answer), {"version", "path", "bytes", "types", "files", "tensors", "metadata", "notes"})
        self.assertEqual((answer["version"], answer["bytes"]), (1, 33))
        self.assertEqual(answer["metadata"], {"format": "pt"})
        begin = answer["files"][0]["data_begin"]
        self.assertEqual(answer["files"][0]["size"], begin + 33)
        self.assertEqual(answer["tensors"][1], {
            "name": "model.a.bias", "type": "BF16", "dtype": "BF16", "shape": [4], "file": 0, "offset": begin + 24, "bytes": 8})
        self.assertEqual(len(self.json_of("inspect", "m.safetensors", "--only", "head")["tensors"]), 1)

    def test_several_files(self):
        self.write("n.safetensors", safetensors({"tail": ("U8", [3], 3)}))
        out = self.succeed("inspect", "n.safetensors", "m.safetensors").out
        self.assertIn("\n4 tensors, 36 B in 2 files", out)
        self.assertLess(out.index("tail"), out.index("model.a.weight"))
        answer = self.json_of("inspect", "m.safetensors", "n.safetensors")
        self.assertEqual(answer["path"], "m.safetensors and 1 more")
        self.assertEqual([file["path"] for file in answer["files"]], ["m.safetensors", "n.safetensors"])
        self.assertEqual([tensor["file"] for tensor in answer["tensors"]], [0, 0, 0, 1])
        # A manifest of both, which does not take the place of either.
        both = ("inspect", "m.safetensors", "n.safetensors")
        self.assertIn("in 2 files", self.succeed(*both, "--manifest", "both.json").out)
        self.assertIn("m.safetensors and 1 more: ", self.succeed(*both, "--verify-manifest", "both.json").out)
        self.refused(harness.USAGE, ["take the place", "n.safetensors"], *both, "--manifest", "n.safetensors")
        self.refused(harness.USAGE, "is in m.safetensors and in m.safetensors", "inspect", "m.safetensors", "m.safetensors")
        self.refused(harness.USAGE, "a folder among several", "inspect", "m.safetensors", ".")

    def test_documented_members(self):
        text = (harness.SOURCE_DIR / "docs" / "json.md").read_text()
        answer = self.json_of("inspect", "m.safetensors")
        for name in answer:
            self.assertIn(f"`{name}`", text)
        for part in ["files", "tensors", "types"]:
            for name in answer[part][0]:
                self.assertIn(f"`{part}[].{name}`", text)

    def test_lenient(self):
        self.write("p.safetensors", safetensors(SMALL) + bytes(100))
        refused = self.refused(harness.USAGE, ["100 bytes more", "--lenient"], "inspect", "p.safetensors")
        self.assertIn("p.safetensors", refused.err)
        self.assertIn("note: p.safetensors: 100 bytes", self.succeed("inspect", "p.safetensors", "--lenient").out)

    def test_index(self):
        self.write("s1.safetensors", safetensors({"a": ("F32", [1], 4)}))
        self.write("s2.safetensors", safetensors({"b": ("F32", [1], 4), "extra": ("U8", [2], 2)}))
        index = {"metadata": {"total_size": 9}, "weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}}
        self.write("x.safetensors.index.json", json.dumps(index).encode())
        self.refused(harness.USAGE, ["\"extra\"", "--lenient"], "inspect", "x.safetensors.index.json")
        out = self.succeed("inspect", "x.safetensors.index.json", "--lenient").out
        self.assertIn("2 tensors, 8 B in 2 files", out)
        self.assertIn("note: total_size of the index is 9, and the tensors have 8 bytes", out)
        self.assertIn("left out: \"extra\"", out)
        index["weight_map"]["a"] = "../s1.safetensors"
        self.write("x.safetensors.index.json", json.dumps(index).encode())
        self.refused(harness.USAGE, ["../s1.safetensors", "another folder"], "inspect", "x.safetensors.index.json")

    def test_many_files(self):
        script = harness.SOURCE_DIR / "tools" / "make_sparse_checkpoint.py"
        subprocess.run([sys.executable, "-B", script, "big", "--files", "50", "--tensors", "2001"], cwd=self.dir, check=True)
        answer = self.json_of("inspect", "big")
        self.assertEqual((len(answer["files"]), len(answer["tensors"]), answer["notes"]), (50, 2001, []))
        self.assertEqual(answer["bytes"], 2001 * 2 * 2048 * 7168)
        self.assertIn("\n6 tensors", self.succeed("inspect", "big", "--only", "*.layers.0.*.experts.[01].*").out)

    def test_as_much_metadata_as_a_header_holds(self):
        metadata = {f"key {i}": "v\"\\\n\u00e9" * 20 + str(i) for i in range(200_000)}
        metadata["long"] = "x" * 40_000_000
        content = safetensors(SMALL, metadata)
        self.assertGreater(struct.unpack("<Q", content[:8])[0], 90_000_000)
        self.write("m.safetensors", content)
        self.assertTrue(self.json_of("inspect", "m.safetensors")["metadata"] == metadata)  # whose difference nobody reads

    def test_what_makes_no_sense(self):
        self.refused(harness.USAGE, "absent", "inspect", "absent")
        self.refused(harness.USAGE, "CHECKPOINT", "inspect")
        self.write("bad", b"\xff" * 100)
        self.refused(harness.USAGE, ["bad", "not a safetensors file"], "inspect", "bad")
        self.write("cut.safetensors", safetensors(SMALL)[:-1])
        self.refused(harness.USAGE, ["1 bytes are missing", '"head"'], "inspect", "cut.safetensors")
        error = json.loads(self.run_command("inspect", "absent", "--json").out)["error"]
        self.assertEqual(error["code"], "not_found")


class Manifest(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.write("m.safetensors", safetensors({"a": ("U8", [3 << 20], 3 << 20), "b": ("F32", [2], 8)}))

    def test_written_and_checked(self):
        out = self.succeed("inspect", "m.safetensors", "--manifest", "m.json").out
        self.assertRegex(out, r"^wrote m\.json: 4 blocks, .* in 1 file, read in .* \(.* GB/s\)\n$")
        manifest = json.loads((self.dir / "m.json").read_text())
        self.assertEqual((manifest["format"], manifest["version"]), ("sidestep-manifest", 1))
        self.assertEqual(len(manifest["files"][0]["blocks"]), 4)
        self.assertRegex(self.succeed("inspect", "m.safetensors", "--verify-manifest", "m.json").out,
                         r"^as the manifest says: m\.safetensors: 4 blocks")
        self.assertEqual(self.succeed("inspect", ".", "--verify-manifest", "m.json", "--quiet").out, "")

    def test_a_wrong_byte(self):
        self.succeed("inspect", "m.safetensors", "--manifest", "m.json")
        content = bytearray((self.dir / "m.safetensors").read_bytes())
        content[-3] ^= 1
        self.write("m.safetensors", content)
        self.refused(harness.FAILED, ["block 3 of m.safetensors", '"b"'],
                     "inspect", "m.safetensors", "--verify-manifest", "m.json")

    def test_a_manifest_takes_no_place_of_the_checkpoint(self):
        before = (self.dir / "m.safetensors").read_bytes()
        (self.dir / "link").symlink_to("m.safetensors")
        for path in ("m.safetensors", "."):
            for target in ("m.safetensors", "./m.safetensors", "link"):
                self.refused(harness.USAGE, ["take the place", target], "inspect", path, "--manifest", target)
        self.assertEqual((self.dir / "m.safetensors").read_bytes(), before)

    def test_json(self):
        answer = self.json_of("inspect", "m.safetensors", "--manifest", "m.json")
        self.assertEqual(set(answer), {"version", "manifest", "verified", "bytes", "blocks", "seconds", "gb_per_s"})
        self.assertEqual((answer["verified"], answer["blocks"]), (False, 4))
        self.assertTrue(self.json_of("inspect", "m.safetensors", "--verify-manifest", "m.json")["verified"])

    def test_what_makes_no_sense(self):
        self.refused(harness.USAGE, "--manifest", "inspect", "m.safetensors", "--manifest", "a", "--verify-manifest", "b")
        self.refused(harness.USAGE, "--only", "inspect", "m.safetensors", "--manifest", "a", "--only", "a")
        self.refused(harness.USAGE, "absent", "inspect", "m.safetensors", "--verify-manifest", "absent")
        self.refused(harness.USAGE, "nowhere", "inspect", "m.safetensors", "--manifest", "nowhere/m.json")
        self.assertEqual(self.names(), ["m.safetensors"])


if __name__ == "__main__":
    unittest.main()
