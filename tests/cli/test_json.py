"""What --json prints is what docs/json.md and docs/route.schema.json promise."""

import json
import unittest

import harness

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "integer": int,
}


class Schema:
    """The part of JSON Schema that route.schema.json uses; an unknown keyword is an error."""

    KEYWORDS = {
        "$schema", "$defs", "title", "description", "type", "required", "properties", "items", "minItems",
        "minLength", "minimum", "maximum", "enum", "const", "$ref",
    }

    def __init__(self, path):
        self.root = json.loads(path.read_text())

    def faults(self, value, schema=None, at="$"):
        schema = self.root if schema is None else schema
        unknown = set(schema) - self.KEYWORDS
        assert not unknown, unknown
        if "$ref" in schema:
            target = self.root
            for part in schema["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            return self.faults(value, target, at)
        return list(self._own(value, schema, at)) + list(self._inner(value, schema, at))

    def _own(self, value, schema, at):
        if "type" in schema:
            wanted = TYPES[schema["type"]]
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                yield f"{at} is no {schema['type']}: {value!r}"
                return
        if "enum" in schema and value not in schema["enum"]:
            yield f"{at} is {value!r}"
        if "const" in schema and value != schema["const"]:
            yield f"{at} is {value!r}"
        if "minimum" in schema and value < schema["minimum"]:
            yield f"{at} is {value}"
        if "maximum" in schema and value > schema["maximum"]:
            yield f"{at} is {value}"
        if isinstance(value, (str, list)) and len(value) < schema.get("minLength", schema.get("minItems", 0)):
            yield f"{at} is too short"

    def _inner(self, value, schema, at):
        if isinstance(value, dict):
            for name in schema.get("required", []):
                if name not in value:
                    yield f"{at}.{name} is missing"
            for name, part in schema.get("properties", {}).items():
                if name in value:
                    yield from self.faults(value[name], part, f"{at}.{name}")
        if isinstance(value, list) and "items" in schema:
            for number, item in enumerate(value):
                yield from self.faults(item, schema["items"], f"{at}[{number}]")


class RouteJson(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.schema = Schema(harness.SOURCE_DIR / "docs" / "route.schema.json")

    def test_routes_of_all_kinds(self):
        self.write("a", b"x" * 10000)
        places = ["host", "host:1", "gpu:0", "gpu:5", "file:a"]
        for source in places:
            for target in ["host", "gpu:3", "file:b"]:
                route = self.json_of("route", source, target)
                self.assertEqual(self.schema.faults(route), [], (source, target))
                self.assertEqual((route["from"], route["to"]), (source, target))
                self.assertTrue(route["emulated"])
                self.assertAlmostEqual(sum(lane["share"] for lane in route["lanes"]), 1)
                self.assertEqual(route["direct"], all(len(lane["hops"]) == 1 for lane in route["lanes"]))

    def test_hops_join(self):
        self.write("a", b"x" * 10000)
        route = self.json_of("route", "file:a", "gpu:0")
        for lane in route["lanes"]:
            self.assertEqual(lane["hops"][0]["from"], "file:a")
            self.assertEqual(lane["hops"][-1]["to"], "gpu:0")
            for before, after in zip(lane["hops"], lane["hops"][1:]):
                self.assertEqual(before["to"], after["from"])

    def test_size(self):
        self.assertEqual(self.json_of("route", "gpu:0", "gpu:1")["bytes"], 256 << 20)
        self.assertEqual(self.json_of("route", "gpu:0", "gpu:1", "--size", "4KiB")["bytes"], 4096)
        self.assertEqual(self.json_of("route", "file:absent", "gpu:1", "--size", "4KiB")["bytes"], 4096)

    def test_the_validator_can_fail(self):
        route = self.json_of("route", "gpu:0", "gpu:1")
        route["lanes"][0]["share"] = 2
        route["lanes"][0]["hops"][0]["from_memory"] = "paper"
        route["lanes"][0]["hops"][0]["gb_per_s"] = "fast"
        del route["refused"]
        self.assertEqual(len(self.schema.faults(route)), 4)


class OtherJson(harness.CommandTest):
    def test_receipt(self):
        receipt = self.json_of("copy", "gpu:0", "gpu:1", "--size", "1MiB", "--repeat", "3", "--verify")
        types = {
            "version": int, "bytes": int, "seconds": float, "gb_per_s": float, "share_of_expected": (int, float),
            "verified": bool, "verify_seconds": (int, float), "lane_bytes": list, "lane_failures": list,
            "storage": dict, "stages": list, "notes": list, "route": dict, "runs": list,
        }
        self.assertEqual(set(receipt), set(types))
        for name, wanted in types.items():
            self.assertIsInstance(receipt[name], wanted, name)
        self.assertEqual(receipt["bytes"], 1 << 20)
        self.assertEqual(sum(receipt["lane_bytes"]), 1 << 20)
        self.assertTrue(receipt["verified"])
        self.assertEqual(len(receipt["runs"]), 3)
        self.assertEqual(receipt["runs"][1]["seconds"], receipt["seconds"])
        schema = Schema(harness.SOURCE_DIR / "docs" / "route.schema.json")
        self.assertEqual(schema.faults(receipt["route"]), [])

    def test_not_verified_unless_asked(self):
        self.assertFalse(self.json_of("copy", "gpu:0", "gpu:1", "--size", "4KiB")["verified"])

    def test_topology(self):
        topology = self.json_of("topo")
        self.assertEqual(topology["name"], harness.MACHINE)
        self.assertGreater(len(topology["devices"]), 8)

    def test_file_names_that_are_no_utf8(self):
        name = b"\xff\xfe"
        (self.dir / "a").write_bytes(b"x")
        line = [harness.BINARY, "--machine", harness.MACHINE, "--json", "copy", "file:a", b"file:" + name]
        done = harness.subprocess.run(
            line, capture_output=True, cwd=self.dir, env=harness.environment(), timeout=60, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["bytes"], 1)


if __name__ == "__main__":
    unittest.main()
