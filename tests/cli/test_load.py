"""sidestep load: tensors really arrive, the table says how, and bad input is one line of error."""

import json
import signal
import struct
import unittest

import harness
import test_terminal
from harness import FAILED, INTERRUPTED, USAGE

MIB = 1 << 20


def safetensors(tensors):
    """A file of (name, dtype, shape, bytes) as the format's rules have it."""
    header, data = {}, b""
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


class Load(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.content = harness.bytes_that_differ(3 * MIB)
        tensors = [
            ("layers.0.weight", "F32", [512, 1024], self.content[: 2 * MIB]),
            ("layers.1.weight", "U8", [1024, 1024], self.content[2 * MIB :]),
            ("layers.1.bias", "U8", [7], b"biasses"),
            ("scale", "F64", [], struct.pack("<d", 0.5)),
        ]
        self.path = self.write("model.safetensors", safetensors(tensors))
        self.bytes = 3 * MIB + 15

    def test_table(self):
        text = self.succeed("load", "model.safetensors").out
        for word in ["4 tensors to gpu:0", "layout replicate", "path", "page cache", "stage", "read", "host to GPU",
                     "limit:", "faster:", "emulated"]:
            self.assertIn(word, text)

    def test_no_bar_without_a_terminal(self):
        self.assertEqual(self.succeed("load", "model.safetensors").err, "")
        outcome = self.succeed("load", "model.safetensors", "--quiet")
        self.assertEqual(outcome.out + outcome.err, "")

    def test_every_gpu_verified(self):
        told = self.json_of("load", ".", "--to", "gpu:all", "--verify")
        self.assertEqual([place["place"] for place in told["places"]], [f"gpu:{i}" for i in range(8)])
        self.assertEqual({place["bytes"] for place in told["places"]}, {self.bytes})
        self.assertEqual(told["bytes"], 8 * self.bytes)
        self.assertEqual(told["file_bytes"], self.bytes)
        self.assertTrue(told["verified"])
        self.assertEqual(told["stages"][0]["name"], "read")
        self.assertEqual(told["stages"][0]["bytes"], self.bytes)
        self.assertGreaterEqual(sum(told["storage"].values()), self.bytes)
        self.assertIn(told["limit"], ["", *(stage["name"] for stage in told["stages"])])
        self.assertTrue(told["faster"])

    def test_a_gpu_that_the_driver_lost_leaves_a_gap(self):
        topology = self.json_of("topo", machine="dgx-h100!gpu:3.lost")
        text = json.dumps(topology)
        for number in range(6, 2, -1):
            text = text.replace(f'"gpu:{number}"', f'"gpu:{number + 1}"')
        topology = json.loads(text)
        for device in topology["devices"]:
            if device["kind"] == "gpu":
                device["index"] = int(device["name"][4:])
        machine = self.write("gap.json", json.dumps(topology).encode())
        told = self.json_of("load", "model.safetensors", "--to", "gpu:all", machine=machine)
        numbers = [0, 1, 2, 4, 5, 6, 7]
        self.assertEqual([place["place"] for place in told["places"]], [f"gpu:{i}" for i in numbers])
        bench = ["bench", "--smoke", "--case", "host_link"]
        self.assertIn("gpu:7", self.succeed(*bench, machine=machine).out)
        self.refused(USAGE, "gpu:3", *bench, "--gpu", "3", machine=machine)

    def test_members_are_documented(self):
        text = (harness.SOURCE_DIR / "docs" / "load.md").read_text()
        for member in self.json_of("load", "."):
            self.assertIn(f"`{member}`", text)

    def test_several_files(self):
        second = struct.pack("<d", 1.5)
        self.write("second.safetensors", safetensors([("second.scale", "F64", [], second)]))
        told = self.json_of("load", "model.safetensors", "second.safetensors", "--only", "*scale", "--to", "host")
        self.assertEqual((told["checkpoint"], told["tensors"]), ("model.safetensors and 1 more", 2))
        told = self.json_of("load", "--to", "host", "second.safetensors", "model.safetensors", "--verify")
        self.assertEqual((told["tensors"], told["file_bytes"]), (5, self.bytes + 8))
        self.refused(USAGE, ['"second.scale"', "second.safetensors"],
                     "load", "second.safetensors", "model.safetensors", "second.safetensors")
        self.refused(USAGE, "none.safetensors", "load", "model.safetensors", "none.safetensors")

    def test_notes_of_the_files(self):
        self.path.write_bytes(self.path.read_bytes() + bytes(100))
        (note,) = self.json_of("load", ".", "--lenient")["notes"]
        self.assertIn("100 bytes", note)
        outcome = self.succeed("load", ".", "--lenient")
        self.assertIn(f"note:   {note}\n", outcome.out)
        self.assertEqual((outcome.out.count(note), outcome.err), (1, ""))

    def test_interrupt(self):
        size = 4096 * MIB  # sparse, and in pieces so small that no test waits for its end
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        header += b" " * (-len(header) % 8)
        path = self.write("long.safetensors", struct.pack("<Q", len(header)) + header)
        with open(path, "ab") as file:
            file.truncate(8 + len(header) + size)
        for number in [signal.SIGINT, signal.SIGTERM]:
            terminal = test_terminal.Terminal(self, "load", "long.safetensors", "--chunk", "4KiB")
            self.assertTrue(terminal.read_until(b"GB/s"), terminal.seen)  # bytes are moving
            terminal.process.send_signal(number)
            code, out = terminal.end()
            self.assertEqual((code, out.count("\n")), (INTERRUPTED, 1), out)  # of what was about to be done
            self.assertIn(b"sidestep: ", terminal.seen)

    def test_layouts(self):
        told = self.json_of("load", ".", "--to", "gpu:0,gpu:1,host", "--layout", "tensor")
        self.assertEqual(sum(place["bytes"] for place in told["places"]), self.bytes)
        self.assertEqual(sum(place["tensors"] for place in told["places"]), 4)
        rules = {"rules": [{"pattern": "*.weight", "axis": -1}]}
        self.write("rules.json", json.dumps(rules).encode())
        told = self.json_of("load", ".", "--to", "gpu:0,gpu:1", "--shard", "rules.json", "--verify")
        self.assertEqual([place["bytes"] for place in told["places"]], [3 * MIB // 2 + 15] * 2)

    def test_only_some(self):
        told = self.json_of("load", ".", "--only", "layers.*", "--only", "!*.bias")
        self.assertEqual(told["tensors"], 2)
        self.assertEqual(told["file_bytes"], 3 * MIB)
        self.refused(USAGE, "nothing.*", "load", ".", "--only", "nothing.*")

    def test_options_that_make_no_sense(self):
        self.refused(USAGE, "gpu:9", "load", ".", "--to", "gpu:9")
        self.refused(USAGE, "gpu:0 is named twice", "load", ".", "--to", "gpu:0,gpu:0")
        self.refused(USAGE, "--to", "load", ".", "--to", "gpu:0,")
        self.refused(USAGE, "shard rules", "load", ".", "--layout", "axis")
        self.refused(USAGE, "--require", "load", ".", "--require", "direct")
        self.refused(USAGE, "none.safetensors", "load", "none.safetensors")
        self.refused(USAGE, "none.json", "load", ".", "--shard", "none.json")
        self.write("rules.json", b'{"rules": [{"pattern": "scale", "axis": 0}]}')
        self.refused(USAGE, ["tensor scale", "scalar"], "load", ".", "--shard", "rules.json")

    def test_a_lying_file(self):
        whole = self.path.read_bytes()
        self.path.write_bytes(whole[:-1])
        self.refused(USAGE, "model.safetensors", "load", ".")
        self.path.write_bytes(whole + b"\0")
        self.refused(USAGE, "model.safetensors", "load", ".")
        self.succeed("load", ".", "--lenient")

    def test_bytes_of_no_elements(self):
        rules = {"rules": [{"pattern": "*", "axis": 1}]}
        for axis in (0, 1):
            rules["rules"][0]["axis"] = axis
            self.write("rules.json", json.dumps(rules).encode())
            self.write("lying.safetensors", safetensors([("a", "X", [0, 4], bytes(9))]))
            self.refused(USAGE, ['"a"', "no elements"], "load", "lying.safetensors", "--lenient",
                         "--to", "gpu:0,gpu:1", "--shard", "rules.json")

    def test_too_little_memory(self):
        env = harness.environment(SIDESTEP_EMULATED_GPU_MEMORY="2MiB")
        self.refused(FAILED, ["gpu:1", "are missing"], "load", ".", "--to", "gpu:0,gpu:1", env=env)

    def test_bar_on_a_terminal(self):
        # Small chunks make a load that is slow enough to be seen.
        size = 256 * MIB
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(self.dir / "large.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        terminal = test_terminal.Terminal(self, "load", "large.safetensors", "--chunk", "4KiB")
        code, out = terminal.end()
        self.assertEqual(code, harness.DONE)
        seen = terminal.seen.decode()
        self.assertRegex(seen, r"\r\[#*-*\] +\d+ %  .* of 256 MiB")
        self.assertTrue(seen.endswith("\r\x1b[K"), seen[-40:])
        self.assertIn("limit:", out)

    def test_error_as_json(self):
        outcome = self.run_command("load", ".", "--to", "gpu:9", "--json")
        self.assertEqual(outcome.code, USAGE)
        self.assertEqual(json.loads(outcome.out)["error"]["code"], "not_found")


if __name__ == "__main__":
    unittest.main()
