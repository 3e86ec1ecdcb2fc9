"""sidestep topo: formats, files, drawings that a real XML parser reads, and what differs between two machines."""

import json
import os
import re
import resource
import signal
import subprocess
import unittest
import xml.etree.ElementTree

import harness
from test_load import safetensors

SVG = "{http://www.w3.org/2000/svg}"


def models():
    """The built-in machines, as the completion offers them."""
    command = [harness.BINARY, "completion", "words", "--", "topo", "--as", ""]
    done = harness.subprocess.run(command, capture_output=True, env=harness.environment(), timeout=60, check=True)
    return done.stdout.decode().split()


class Size(harness.CommandTest):
    """What grows with the square of the GPUs ends here for want of memory."""

    LIMIT = 1500 << 20

    def limit(self):
        resource.setrlimit(resource.RLIMIT_AS, (self.LIMIT, self.LIMIT))

    def test_a_route_among_as_many_gpus_as_there_may_be(self):
        for machine in ["dgx-h100*25000", "dgx-a100*25000", "mi300x*25000", "gb200-nvl72*2777", "pcie-4l40s*50000", "gb200-tray*50000"]:
            with self.subTest(machine=machine):
                process = subprocess.Popen([harness.BINARY, "--machine", machine, "route", "gpu:0", "gpu:1", "--size", "1G"],
                                           stdout=subprocess.PIPE, env=harness.environment(), preexec_fn=self.limit)
                self.assertIn("GB/s", process.stdout.read().decode())
                process.stdout.close()
                _, process.returncode, used = os.wait4(process.pid, 0)
                self.assertEqual(process.returncode, 0)
                self.assertLess(used.ru_maxrss, 500 << 10, "KiB")

    def test_a_route_among_many_gpus(self):
        tag = '<pci busid="{:04x}:{:02x}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="{}" sm="90"/></pci>'
        gpus = "".join(tag.format(n // 200, n % 200, n) for n in range(20000))
        self.write("many.xml", f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'.encode())
        for machine in ["dgx-h100*25000", "./many.xml"]:
            with self.subTest(machine=machine):
                route = self.succeed("route", "host", "gpu:1", "--size", "1M", machine=machine, preexec_fn=self.limit)
                self.assertIn("55.5 GB/s", route.out)


class Records(harness.CommandTest):
    """A machine as a folder of files."""

    def record(self, files):
        for path, text in files.items():
            place = self.dir / "record" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text + "\n")

    def test_memory_of_a_gpu_is_no_node_of_the_host(self):
        gpu = "sys/bus/pci/devices/0009:01:00.0/"
        self.record({
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1000 kB",
            "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 1000 kB",
            "sys/devices/system/node/has_cpu": "0",
            "proc/driver/nvidia/gpus/0009:01:00.0/numa_status": "Node:\t\t 2\nStatus:\t\t online",
            gpu + "class": "0x030200", gpu + "vendor": "0x10de", gpu + "device": "0x2342",
        })
        self.refused(harness.USAGE, ["NUMA node 2 is the memory of gpu:0", "use gpu:0"],
                     "route", "host:2", "gpu:0", "--size", "1M", machine="./record")
        self.succeed("route", "host:0", "gpu:0", "--size", "1M", machine="./record")

    def test_a_link_that_leads_out(self):
        self.record({"sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1000 kB", "proc/sys/kernel/x": ""})
        (self.dir / "secret").write_text("the secret")
        (self.dir / "record/proc/sys/kernel/osrelease").symlink_to(self.dir / "secret")
        for verb in ["topo", "doctor"]:
            outcome = self.run_command(verb, machine="./record")
            self.assertNotIn("the secret", outcome.out + outcome.err)
        self.assertIn("/proc/sys/kernel/osrelease leads out of the record", self.succeed("topo", machine="./record").out)


    def test_names_steer_no_terminal(self):
        steers = "\x1b[2J\x1b]0;mine\x07\nFAKE \x9b31m"
        machine = {"format": "sidestep-topology", "version": 1, "name": steers, "notes": [steers], "links": [], "properties": {steers: steers},
                   "devices": [{"name": "gpu:0", "kind": "gpu", "index": 0, "model": steers, "properties": {"cc": steers, steers: steers}},
                               {"name": "cpu:0", "kind": "cpu", "index": 0, "model": steers}]}
        self.write("steers.json", json.dumps(machine).encode())
        for words in [["topo"], ["topo", "--format", "tree"], ["topo", "--format", "dot"], ["doctor"], ["doctor", "--all"],
                      ["route", "gpu:0", "gpu:0", "--size", "1"], ["topo", "diff", "dgx-h100", "./steers.json"],
                      ["copy", "host", "gpu:9"], ["bench", "--case", "host_small", "--smoke"]]:
            with self.subTest(words=words):
                outcome = self.run_command(*words, machine="./steers.json")
                self.assertNotRegex(outcome.out + outcome.err, "[\x00-\x08\x0b-\x1f\x7f-\x9f]")
                self.assertNotRegex(outcome.out + outcome.err, "(?m)^FAKE")


class Formats(harness.CommandTest):
    def test_text_is_the_default(self):
        text = self.succeed("topo").out
        self.assertEqual(text, self.succeed("topo", "--format", "text").out)
        self.assertTrue(text.startswith("machine dgx-h100 (emulated): 8 GPUs\n"), text)
        row = next(line for line in text.splitlines() if line.startswith("gpu:3 ")).split()
        self.assertEqual(row[1:9], ["NV18"] * 3 + ["X"] + ["NV18"] * 4)
        for word in ["mlx5_0", "NUMA", "NODE", "network cards"]:
            self.assertIn(word, text)

    def test_tree(self):
        text = self.succeed("topo", "--format", "tree").out
        self.assertIn("├─ cpu:0", text)
        self.assertIn("─ gpu:7", text)

    def test_json_is_the_global_option(self):
        out = self.succeed("topo", "--format", "json").out
        self.assertEqual(out, self.succeed("topo", "--json").out)
        self.assertEqual(json.loads(out)["format"], "sidestep-topology")

    def test_xml(self):
        root = xml.etree.ElementTree.fromstring(self.succeed("topo", "--format", "xml").out)
        self.assertEqual(root.tag, "system")
        self.assertEqual(len(root.findall(".//gpu")), 8)

    def test_xml_as_a_model(self):
        # A file without NVLinks, and the same with those of a model.
        tree = xml.etree.ElementTree.fromstring(self.succeed("topo", "--format", "xml").out)
        for gpu in tree.iter("gpu"):
            for link in gpu.findall("nvlink"):
                gpu.remove(link)
        self.write("bare.xml", xml.etree.ElementTree.tostring(tree))
        bare = self.succeed("topo", machine="bare.xml").out
        self.assertNotIn("NV18", bare)
        self.assertIn("--as MODEL lends those of a built-in machine (dgx-h100, dgx-h200)", bare)
        self.assertIn("NV18", self.succeed("topo", "--as", "dgx-h100", machine="bare.xml").out)
        self.refused(harness.USAGE, "dgx-h100", "topo", "--as", "dgx-h100")
        self.write("cut.json", b'{"format":')
        self.refused(harness.USAGE, "the file is no JSON: parse error at line 1", "topo", machine="cut.json")
        lent = {**harness.environment(), "SIDESTEP_MACHINE": "bare.xml!as=dgx-h100"}
        route = ["route", "gpu:0", "gpu:1", "--size", "1G"]
        for words, how in [(["--as", "dgx-h100", *route], {"machine": "bare.xml"}),
                           ([*route, "--as", "dgx-h100"], {"machine": "bare.xml"}),
                           (route, {"machine": "", "env": lent}), (route, {"machine": "bare.xml!as=dgx-h100"})]:
            self.assertIn("18 links through NVSwitch", self.succeed(*words, **how).out)
        self.assertIn("--as one of: dgx-h100, dgx-h200", self.succeed(*route, machine="bare.xml").out)
        # Otherwise it would find nothing wrong with a machine whose NVLinks it never saw.
        examined = re.sub(r"\s+", " ", self.run_command("doctor", machine="bare.xml").out)
        self.assertIn("not looked at topology: the file tells of no NVLinks", examined)
        self.assertIn("--as MODEL lends those of a built-in machine (dgx-h100, dgx-h200)", examined)
        self.write("m.safetensors", safetensors([("x", "U8", [8], bytes(8))]))
        for words in (["copy", "gpu:0", "gpu:1", "--size", "4KiB"], ["load", "m.safetensors"], ["tune", "--ranks", "2"]):
            self.assertIn("note: the file tells of no NVLinks", self.succeed(*words, machine="bare.xml").err)
        measured = self.succeed("bench", "--case", "host_small", "--samples", "1", machine="bare.xml").out
        self.assertIn("--as MODEL lends those of a built-in machine (dgx-h100, dgx-h200)", measured)

    def test_dot(self):
        text = self.succeed("topo", "--format", "dot").out
        self.assertTrue(text.startswith('graph "dgx-h100" {\n'), text[:100])
        self.assertEqual(text.count("{"), text.count("}"))
        self.assertIn('"gpu:0" -- "nvswitch:0"', text)

    def test_live_machine_in_every_format(self):
        for name in ["text", "tree", "json", "dot", "svg"]:
            self.assertTrue(self.succeed("topo", "--format", name, machine="live").out, name)

    def test_what_makes_no_sense(self):
        self.refused(harness.USAGE, "png", "topo", "--format", "png")
        self.refused(harness.USAGE, ["--theme", "svg"], "topo", "--theme", "dark")
        self.refused(harness.USAGE, "--node", "topo", "--node", "1")
        self.refused(harness.USAGE, "node7", "topo", "--format", "svg", "--node", "7")
        self.refused(harness.USAGE, "nowhere", "topo", machine="nowhere")
        outcome = self.run_command("topo", "--json", "--format", "svg")
        self.assertEqual(outcome.code, harness.USAGE)
        self.assertEqual(json.loads(outcome.out)["error"]["code"], "invalid_argument")


class Output(harness.CommandTest):
    def test_an_unknown_ending_is_refused(self):
        for name in ["a.png", "folder.svg/a.jpg"]:
            self.refused(harness.USAGE, [name, ".svg"], "topo", "--output", name)
        self.assertEqual(self.names(), [])
        self.succeed("topo", "--format", "text", "--output", "a.png")

    def test_the_ending_decides(self):
        for name, start in [
            ("a.svg", "<?xml"), ("a.dot", "graph "), ("a.gv", "graph "), ("a.json", "{"), ("a.txt", "machine "),
            ("a.xml", "<system"), ("a", "machine "),
        ]:
            outcome = self.succeed("topo", "--output", name)
            self.assertEqual((outcome.out, outcome.err), ("", ""))
            self.assertTrue((self.dir / name).read_text().startswith(start), name)

    def test_the_format_decides_over_the_ending(self):
        self.succeed("topo", "--format", "tree", "--output", "a.svg")
        self.assertTrue((self.dir / "a.svg").read_text().startswith("dgx-h100"))

    def test_a_file_is_what_standard_output_would_get(self):
        self.succeed("topo", "--output", "a.svg")
        self.assertEqual((self.dir / "a.svg").read_text(), self.succeed("topo", "--format", "svg").out)
        self.assertEqual(self.succeed("topo", "--output", "-").out, self.succeed("topo").out)

    def test_a_file_can_be_a_machine(self):
        self.succeed("topo", "--output", "mine.json")
        self.assertEqual(self.succeed("topo", machine="./mine.json").out, self.succeed("topo").out)

    def test_where_nothing_can_be_written(self):
        self.refused(harness.USAGE, "absent/a.svg", "topo", "--output", "absent/a.svg")
        self.refused(harness.USAGE, str(self.dir), "topo", "--output", self.dir)
        self.refused(harness.FAILED, "/dev/full", "topo", "--output", "/dev/full")


class Drawings(harness.CommandTest):
    def drawing(self, machine, *options):
        return xml.etree.ElementTree.fromstring(
            self.succeed("topo", "--format", "svg", *options, machine=machine).out
        )

    def test_every_model_draws(self):
        names = models()
        self.assertIn("dgx-h100", names)
        for name in names + ["dgx-h100*128", "gb200-nvl72*4"]:
            with self.subTest(machine=name):
                root = self.drawing(name)
                self.assertEqual(root.tag, SVG + "svg")
                self.assertEqual(root.find(SVG + "title").text, name)
                width, height = (float(root.get(side)) for side in ["width", "height"])
                self.assertEqual(root.get("viewBox"), f"0 0 {root.get('width')} {root.get('height')}")
                sizes = [float(text.get("font-size")) for text in root.iter(SVG + "text")]
                self.assertGreaterEqual(min(sizes), 11)
                for rect in root.iter(SVG + "rect"):
                    if rect.get("width") != "100%":
                        self.assertLessEqual(float(rect.get("x")) + float(rect.get("width")), width)
                        self.assertLessEqual(float(rect.get("y")) + float(rect.get("height")), height)

    def test_every_recorded_machine_draws(self):
        files = sorted((harness.SOURCE_DIR / "tests" / "recorded").glob("*.json"))
        self.assertNotIn("emulated", self.succeed("topo", machine=str(files[0])).out)
        self.assertTrue(files)
        for file in [*map(str, files), "h200x2-vm"]:
            root = self.drawing(file)
            self.assertNotIn("emulated", "".join(root.itertext()))
        self.assertIn("emulated", "".join(self.drawing("dgx-h100").itertext()))

    def test_it_stands_alone(self):
        for element in self.drawing("dgx-1v").iter():
            self.assertNotIn(element.tag, [SVG + "script", SVG + "image", SVG + "use", SVG + "foreignObject"])
            for name, value in element.attrib.items():
                self.assertNotIn("href", name)
                self.assertNotIn("url(", value)

    def test_it_has_its_details(self):
        titles = [title.text for title in self.drawing("dgx-h100").iter(SVG + "title")]
        self.assertTrue(any("gpu:0 - nvswitch:0: NVLink x5" in title for title in titles))
        self.assertTrue(any(title.startswith("gpu:0\nNVIDIA H100 80GB HBM3\n0000:1b:00.0") for title in titles))

    def test_themes(self):
        style = {name: self.drawing("laptop", *options).find(SVG + "style").text
                 for name, options in [("auto", ()), ("light", ("--theme", "light")), ("dark", ("--theme", "dark"))]}
        self.assertIn("prefers-color-scheme", style["auto"])
        for name in ["light", "dark"]:
            self.assertNotIn("prefers-color-scheme", style[name])
        self.assertNotEqual(style["light"], style["dark"])

    def test_a_machine_of_a_cluster(self):
        texts = [text.text for text in self.drawing("dgx-h100*64", "--node", "40").iter(SVG + "text")]
        self.assertTrue(any(text.startswith("node40 of 64 machines") for text in texts), texts[:5])
        heads = texts[texts.index("Path classes") + 1:]
        self.assertEqual(heads[:8], [str(gpu) for gpu in range(8)])

    def test_odd_names(self):
        machine = {
            "format": "sidestep-topology", "version": 1, "name": "</title>&\"'\u0007",
            "devices": [{"name": "gpu:<0>", "kind": "gpu", "index": 0, "model": "]]>\u0001<!--"}],
            "links": [], "notes": ["<svg>"],
        }
        self.write("odd.json", json.dumps(machine).encode())
        root = self.drawing("./odd.json")
        self.assertEqual(root.find(SVG + "title").text, "</title>&\"'\ufffd")


class Diff(harness.CommandTest):
    def changed(self):
        """A file like the machine, but for one link that came up half as wide and a card that is gone."""
        machine = self.json_of("topo")
        for link in machine["links"]:
            if "gpu:2" in (link["a"], link["b"]) and link["kind"] == "pcie":
                link["width"] //= 2
                link["gb_per_s"] /= 2
        machine["devices"] = [device for device in machine["devices"] if device["name"] != "nic:mlx5_0"]
        machine["links"] = [link for link in machine["links"] if "nic:mlx5_0" not in (link["a"], link["b"])]
        self.write("changed.json", json.dumps(machine).encode())
        return "./changed.json"

    def test_the_same(self):
        outcome = self.run_command("topo", "diff", "dgx-h100", "dgx-h100")
        self.assertEqual((outcome.code, outcome.out), (0, "dgx-h100 and dgx-h100 are the same\n"))
        self.succeed("topo", "--output", "mine.json")
        self.assertEqual(self.run_command("topo", "diff", "dgx-h100", "./mine.json").code, 0)

    def test_what_differs(self):
        outcome = self.run_command("topo", "diff", "dgx-h100", self.changed())
        self.assertEqual(outcome.code, 1, outcome.err)
        self.assertEqual(outcome.err, "")
        self.assertIn("nic:mlx5_0 is gone (NVIDIA ConnectX-7, 0000:18:00.0)\n", outcome.out)
        self.assertRegex(outcome.out, r"gpu:2 - pcie_switch:\d+: width 16 -> 8, worse\n|"
                                      r"pcie_switch:\d+ - gpu:2: width 16 -> 8, worse\n")
        self.assertRegex(outcome.out, r"\n\d+ differences\n$")
        quiet = self.run_command("topo", "diff", "dgx-h100", "./changed.json", "--quiet")
        self.assertEqual((quiet.code, quiet.out), (1, ""))

    def test_json(self):
        outcome = self.run_command("topo", "diff", "dgx-h100", self.changed(), "--json")
        self.assertEqual((outcome.code, outcome.err), (1, ""))
        answer = json.loads(outcome.out)
        self.assertEqual((answer["before"], answer["after"], answer["same"]), ("dgx-h100", "dgx-h100", False))
        kinds = {difference["kind"] for difference in answer["differences"]}
        self.assertEqual(kinds, {"device-gone", "link-changed"})
        for difference in answer["differences"]:
            self.assertEqual(set(difference), {"kind", "what", "aspect", "before", "after", "worse", "text"})
            self.assertTrue(difference["worse"])
        same = self.run_command("topo", "diff", "dgx-h100", "dgx-h100", "--json")
        self.assertEqual((same.code, json.loads(same.out)["differences"]), (0, []))

    def test_what_makes_no_sense(self):
        self.refused(harness.USAGE, "nowhere", "topo", "diff", "dgx-h100", "nowhere")
        self.refused(harness.USAGE, "B", "topo", "diff", "dgx-h100")
        self.refused(harness.USAGE, "'c'", "topo", "diff", "dgx-h100", "laptop", "c")


class Record(harness.CommandTest):
    def test_a_record_replays(self):
        outcome = self.succeed("topo", "--record", "here", machine="live")
        self.assertTrue(outcome.out)
        self.assertTrue((self.dir / "here").is_dir())
        # The name of the machine, and whether it is this one, is all that may differ.
        self.assertEqual(self.run_command("topo", "diff", "live", "./here").out, "live and ./here are the same\n")

    def test_a_recording_that_was_killed_is_no_record(self):
        # The first file above this size ends the process.
        small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))
        outcome = self.run_command("topo", "--record", "here", machine="live", preexec_fn=small)
        self.assertEqual(outcome.code, -signal.SIGXFSZ, outcome.err + outcome.out)
        self.assertTrue((self.dir / "here/sys").is_dir())
        for verb in ("topo", "doctor"):
            self.refused(harness.USAGE, ["./here", "not recorded to the end"], verb, machine="./here")

    def test_only_this_machine_can_be_recorded(self):
        self.refused(harness.USAGE, "dgx-h100", "topo", "--record", "there")
        for other in ("--format svg", "--output a.svg", "--theme dark", "--node 3"):
            self.refused(harness.USAGE, "--record", "topo", "--record", "there", *other.split(), machine="live")
        self.assertEqual(self.names(), [])


class Document(harness.CommandTest):
    """docs/topology.md names what there is."""

    def test_classes_and_formats(self):
        text = (harness.SOURCE_DIR / "docs" / "topology.md").read_text()
        for word in ["NV#", "XGMI", "PIX", "PXB", "PHB", "NODE", "SYS", "NET"]:
            self.assertIn(f"| `{word}` |", text)
        formats = re.search(r"--format (\S+)", self.succeed("help", "topo").out).group(1)
        for name in formats.split("|"):
            self.assertIn(f"| `{name}` |", text)
        for kind in ["device-gone", "device-new", "device-changed", "link-gone", "link-new", "link-changed",
                     "class-changed", "peer-changed", "property-changed"]:
            self.assertIn(f"`{kind}`", text)


if __name__ == "__main__":
    unittest.main()
