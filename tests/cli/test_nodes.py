"""sidestep topo NODE: what other machines are made of. sidestep load NODE/file:...: their checkpoints."""

import json
import os
import unittest

import harness
import test_load
import test_save
from harness import FAILED, USAGE


class Topo(harness.NodeTest):
    def test_a_node_is_shown_as_this_machine(self):
        self.serve()
        here = json.loads(self.succeed("topo", "--json").out)
        there = json.loads(self.succeed("topo", "n", "--json", env=self.env).out)
        self.assertEqual(there.pop("name"), "n")
        here.pop("name")
        self.assertEqual(there, here)
        text = self.succeed("topo", "n", env=self.env).out
        self.assertTrue(text.startswith("machine n"), text)
        self.assertIn("NV18", text)

    def test_several_nodes(self):
        self.serve()
        nodes = self.env["SIDESTEP_NODES"]
        both = ("--nodes", nodes + ",m" + nodes[1:], "topo", "n", "m")
        self.assertEqual([one["name"] for one in json.loads(self.succeed(*both, "--json", env=self.env).out)], ["n", "m"])
        text = self.succeed(*both, env=self.env).out
        self.assertIn("machine n", text)
        self.assertIn("\nmachine m", text)
        outcome = self.run_command(*both, "--format", "svg", env=self.env)
        self.assertEqual(outcome.code, USAGE)
        self.assertIn("one machine", outcome.err)

    def test_a_drawing_of_a_node(self):
        self.serve()
        self.succeed("topo", "n", "--output", self.dir / "n.svg", env=self.env)
        self.assertIn(b"<svg", (self.dir / "n.svg").read_bytes())

    def test_one_error(self):
        self.serve()
        other = self.write("other", b"a" * 64 + b"\n")
        os.chmod(other, 0o600)
        for arguments, code, words in ((("topo", "nosuch.invalid"), USAGE, "sidestep serve"),
                                       (("topo", "a/b"), USAGE, "is not a place"),
                                       (("--key-file", other, "topo", "n"), FAILED, "another key"),
                                       (("--key-file", self.dir / "none", "topo", "n"), USAGE, "key"),
                                       (("topo", "n", "--as", "dgx-h100"), USAGE, "--as"),
                                       (("topo", "n", "--record", self.dir / "record"), USAGE, "recorded")):
            with self.subTest(arguments=arguments):
                outcome = self.run_command(*arguments, env=self.env)
                self.assertEqual(outcome.code, code, outcome.err)
                self.assertIn(words, outcome.err)
                self.assertEqual(outcome.err.count("\n"), 1, outcome.err)
                self.assertEqual(outcome.out, "")


class Load(harness.NodeTest):
    def setUp(self):
        super().setUp()
        self.content = harness.bytes_that_differ(2_000_000)
        self.model = self.write("in/model.safetensors", test_load.safetensors([("w", "U8", [2_000_000], self.content)]))
        index = {"metadata": {}, "weight_map": {"w": "model.safetensors"}}
        self.write("in/model.safetensors.index.json", json.dumps(index).encode())

    def test_a_checkpoint_is_saved_here(self):
        self.serve("--allow", self.allow)
        outcome = self.succeed("save", f"n/file:{self.dir}/in", "here.safetensors", "--verify", env=self.env)
        self.assertIn("verified", outcome.out)
        self.assertEqual((self.dir / "here.safetensors").read_bytes()[-2_000_000:], self.content)

    def test_tensors_in_files_become_a_checkpoint_here(self):
        self.serve("--allow", self.allow)
        self.write("in/w.bin", self.content)
        there = f"n/file:{self.dir}/in"
        outcome = self.succeed("save", f"all={there}/w.bin", f"part={there}/w.bin@1MiB+24,dtype=f32,shape=2x3", f"none={there}/w.bin@8+0",
                               f"here=file:{self.dir}/in/w.bin@8+8", "out.safetensors", "--verify", env=self.env)
        self.assertIn(f"{there}/w.bin -> host -> file:out.safetensors", outcome.out)
        self.assertEqual(test_save.parse((self.dir / "out.safetensors").read_bytes())[0],
                         {"all": ("U8", [2_000_000], self.content), "none": ("U8", [0], b""), "here": ("U8", [8], self.content[8:16]),
                          "part": ("F32", [2, 3], self.content[1 << 20 : (1 << 20) + 24])})
        self.write("secret", b"secret")
        for code, words, place in [(USAGE, ["there is no such file", "/in/none"], f"{there}/none"),
                                   (FAILED, ["has 2000000 bytes"], f"{there}/w.bin@1MiB+1MiB"),
                                   (FAILED, ["n says", "has to allow it"], f"n/file:{self.dir}/secret")]:
            with self.subTest(place):
                self.refused(code, words, "save", f"w={place}", "new.safetensors", env=self.env)
                self.assertNotIn("new.safetensors", self.names())

    def test_tensors_arrive(self):
        self.serve("--allow", self.allow)
        for name in ("model.safetensors", "model.safetensors.index.json", ""):
            with self.subTest(name=name):
                said = json.loads(self.succeed("load", f"n/file:{self.dir}/in/{name}", "--to", "gpu:0,host", "--verify",
                                               "--json", env=self.env).out)
                self.assertEqual(said["file_bytes"], 2_000_000)
                self.assertEqual(said["bytes"], 4_000_000)
                self.assertTrue(said["verified"])
                self.assertIn("by the node that has it", json.dumps(said["route"]))

    def test_tensors_are_listed(self):
        self.serve("--allow", self.allow)
        path = f"n/file:{self.model}"
        listed = json.loads(self.succeed("inspect", path, "--json", env=self.env).out)
        self.assertEqual([tensor["name"] for tensor in listed["tensors"]], ["w"])
        self.assertEqual(listed["files"][0]["node"], "n")
        self.assertEqual(listed["path"], path)
        outcome = self.run_command("inspect", path, "--manifest", self.dir / "manifest", env=self.env)
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("run it on n", outcome.err)

    def test_one_error(self):
        self.serve("--allow", self.allow)
        self.write("secret", b"secret")
        for path, code, words in ((f"n/file:{self.dir}/in/none.safetensors", USAGE, "none.safetensors"),
                                  (f"n/file:{self.dir}/secret", FAILED, "n says"),
                                  (f"n/file:{self.dir}/", FAILED, "n says"),
                                  (f"nosuch.invalid/file:{self.dir}/in/x.safetensors", USAGE, "sidestep serve")):
            with self.subTest(path=path):
                outcome = self.run_command("load", path, env=self.env)
                self.assertEqual(outcome.code, code, outcome.err)
                self.assertIn(words, outcome.err)
                self.assertEqual(outcome.err.count("\n"), 1, outcome.err)


if __name__ == "__main__":
    unittest.main()
