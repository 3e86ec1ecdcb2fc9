"""sidestep repair: what killed saves and copies left in a folder."""

import json
import os
import struct
import unittest

import harness


def safetensors(content):
    header = json.dumps({"t": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}}).encode()
    return struct.pack("<Q", len(header)) + header + content


class Repair(harness.CommandTest):
    def test_names_come_back_and_leftovers_go(self):
        name, index = "model-00001-of-00002.safetensors", "model.safetensors.index.json"
        self.write(f".{name}.sidestep-before", safetensors(b"earlier"))
        self.write(name, safetensors(b"of the save that was killed"))
        self.write(".big.bin.sidestep-0", b"left")
        self.write(".mine", b"stays")
        self.write(index, json.dumps({"metadata": {"a": "b"}, "weight_map": {"t": f".{name}.sidestep-before"}}).encode())
        text = self.succeed("repair", ".", machine=None).out
        for words in ("removed .big.bin.sidestep-0", "1 files", f"removed .{name}.sidestep-before"):
            self.assertIn(words, text)
        self.assertEqual(self.names(), sorted([".mine", name, index]))
        self.assertEqual((self.dir / name).read_bytes(), safetensors(b"earlier"))
        self.assertEqual(json.loads((self.dir / index).read_text()), {"metadata": {"a": "b"}, "weight_map": {"t": name}})
        self.assertIn("nothing is to be done", self.succeed("repair", ".", machine=None).out)
        self.assertEqual(self.json_of("repair", ".", machine=None), {"done": []})

    def test_a_name_that_is_no_text(self):
        self.write(os.fsdecode(b".\xff.bin.sidestep-0"), b"left")
        self.assertEqual(self.json_of("repair", ".", machine=None), {"done": ["removed .\ufffd.bin.sidestep-0, which was never finished"]})
        self.assertEqual(self.names(), [])

    def test_what_is_refused(self):
        self.write("file", b"x")
        self.refused(harness.USAGE, "there is no folder absent", "repair", "absent", machine=None)
        self.refused(harness.USAGE, "there is no folder file", "repair", "file", machine=None)
        self.refused(harness.USAGE, "FOLDER", "repair", machine=None)


if __name__ == "__main__":
    unittest.main()
