#!/usr/bin/env python3
"""Checks who includes whom, against the table below.

    tools/check_layers.py                      check the tree; prints each broken rule, exit code 1 on any
    tools/check_layers.py --table              print the table as markdown
    tools/check_layers.py --document FILE      compare FILE's part between the layers: marks with --table
    tools/check_layers.py --document FILE --write   put the table there

Adding a layer, a public header or a library is an edit of the data at the top of this file.
"""

import argparse
import os
import pathlib
import re
import sys
from typing import NamedTuple

# Headers from outside the project: name -> what they are called. The first pattern that fits counts. A
# header that fits none is an error, so a new library is a deliberate line here and in LAYERS.
GROUPS = [
    ("CUDA", r"cuda\w*\.(h|hpp)|cuda/.*|nvml\.h|cufile\.h|nvrtc\.h"),
    ("liburing", r"liburing\.h|liburing/.*"),
    ("OpenSSL", r"openssl/.*"),
    ("verbs", r"infiniband/.*"),
    ("curl", r"curl/.*"),
    ("sockets", r"sys/(socket|un|epoll)\.h|netinet/.*|arpa/.*|netdb\.h|ifaddrs\.h|rdma/.*"),
    ("kernel", r"linux/.*|dlfcn\.h|unwind\.h|sys/(mman|syscall|resource|random|sysmacros|uio|mount|prctl|eventfd|klog)\.h"),
    ("POSIX", r"(unistd|fcntl|dirent|grp|sched|pthread|signal|termios|poll|spawn)\.h"
              r"|sys/(stat|types|wait|ioctl|time|statvfs|vfs|file)\.h"),
    ("intrinsics", r"(x86|imm|emm|xmm)intrin\.h"),
    ("fmt", r"fmt/.*"),
    ("nlohmann-json", r"nlohmann/.*"),
    ("xxhash", r"xxhash\.h"),
    ("expat", r"expat\.h"),
    ("CLI11", r"CLI/.*"),
    ("GoogleTest", r"g(test|mock)/.*"),
    ("pybind11", r"pybind11/.*|Python\.h"),
    ("std", r"[a-z_]+|(assert|errno|inttypes|limits|math|stdbool|stddef|stdint|stdio|stdlib|string|strings|time)\.h"),
]


class Layer(NamedTuple):
    """One folder. `may` and `groups` are all it may include besides itself and include/sidestep."""
    rank: int
    name: str
    holds: str
    may: tuple = ()
    groups: tuple = ("fmt",)
    # Pattern of file names -> further names those files may include.
    only: tuple = ()
    # Standard headers this layer must not use, and why.
    never: str = ""
    why_never: str = ""


# "backends/*" stands for each folder there; a backend never includes another. Every layer may include
# std, and the headers of include/sidestep whose home (below) is of its own rank or a lower one.
LAYERS = [
    Layer(0, "include/sidestep", "the public API, one type a header", groups=()),
    Layer(0, "src/base", "Result, Place, Buffer, units, log, environment, the start of threads", groups=("fmt", "POSIX"),
          only=((r"xxh3_functions\.hpp", ("xxhash",)),)),
    Layer(1, "src/driver", "the only door to CUDA, NVML, io_uring, sockets, RDMA cards, memory maps and descriptors: "
          "loaded symbol tables and RAII types, no policy", ("src/base",),
          ("fmt", "POSIX", "kernel", "sockets", "liburing", "OpenSSL", "CUDA"),
          only=((r"verbs\.(cpp|hpp)", ("verbs",)), (r"http_client\.cpp", ("curl",)))),
    Layer(2, "src/topology", "the model (pure) and its readers; built-in machines; classes; drawing",
          ("src/base",), ("fmt", "nlohmann-json"),
          only=((r".*_reader\.(cpp|hpp)|sysfs_.*|live\.(cpp|hpp)|unseen_gpus\..*|peer_reasons\..*",
            ("src/driver", "POSIX")), (r"xml_parser\.cpp", ("expat", "kernel")))),
    Layer(2, "src/peer", "other processes of this machine: rendezvous, control connections, passing of descriptors",
          ("src/base", "src/driver"), ("fmt", "POSIX")),
    Layer(2, "src/protocol", "what ranks of a group do with each other's memory: tasks, arenas, how copies are agreed on",
          ("src/base",)),
    Layer(3, "src/backend", "the contract of a backend, of a seat too, Support, Capability, registry",
          ("src/base", "src/topology", "src/protocol")),
    Layer(4, "src/route", "topology and capabilities -> Route; pure functions",
          ("src/base", "src/topology", "src/backend"), ("fmt", "nlohmann-json"),
          never=r"fstream|filesystem|iostream|cstdio|thread|mutex|condition_variable|atomic|future",
          why_never="a route is decided by pure functions, without I/O and threads"),
    Layer(4, "backends/*", "one way to move bytes each",
          ("src/base", "src/driver", "src/topology", "src/protocol", "src/backend"), ("fmt", "POSIX", "intrinsics"),
          only=((r".*\.cuh?", ("CUDA",)),)),
    Layer(5, "backends", "builtin.cpp: the list of the backends in this build",
          ("src/base", "src/topology", "src/backend", "backends/*")),
    Layer(5, "src/transfer", "runs a Route: lanes, chunks, staging, verification, memory of other processes",
          ("src/base", "src/topology", "src/peer", "src/backend", "src/route"), ("fmt",),
          only=((r"activity\.hpp", ("src/driver",)), (r"direct_storage\.cpp", ("src/driver", "POSIX")),
                (r"spread_work\.cpp", ("src/driver",)))),
    Layer(6, "src/checkpoint", "safetensors, their indexes and GGUF: strict parsers, layouts, load and save plans",
          ("src/base", "src/driver", "src/topology", "src/backend", "src/route", "src/transfer"),
          ("fmt", "nlohmann-json")),
    Layer(6, "src/collective", "which algorithm, tasks of each rank, groups: joining, sharing of memory, faults",
          ("src/base", "src/driver", "src/topology", "src/peer", "src/protocol", "src/backend", "src/route"),
          ("fmt", "nlohmann-json", "POSIX")),
    Layer(6, "src/wire", "between machines: who they are, what they let others reach, pushes and questions; a backend over any "
          "network engine, and the node that serves",
          ("src/base", "src/driver", "src/topology", "src/backend", "src/route", "src/transfer"), ("fmt", "POSIX"),
          only=((r"etcd\.cpp", ("nlohmann-json",)),)),
    Layer(7, "src/context", "the composition root: builds the topology, registers backends; the C ABI",
          ("src/base", "src/driver", "src/topology", "src/peer", "src/backend", "src/route", "src/transfer",
           "src/checkpoint", "src/collective", "src/wire", "backends"), ("fmt", "POSIX")),
    Layer(8, "shims/nccl", "a library that stands in for NCCL, over the public API", groups=("fmt", "kernel")),
    Layer(8, "shims/cufile", "a library that stands in for NVIDIA's cuFile, over the public API",
          groups=("fmt", "nlohmann-json", "POSIX", "kernel")),
    Layer(8, "src/diagnose", "the doctor's checks, records of machines, trials of every pair of GPUs",
          ("src/base", "src/driver", "src/topology"), ("fmt", "nlohmann-json", "POSIX")),
    Layer(8, "bench", "measured cases", (), ("fmt", "nlohmann-json", "CLI11", "POSIX"),
          only=((r"raw_cuda.*|raw_nccl.*|raw_cufile.*", ("CUDA", "kernel")), (r"report\.cpp|raw_cufile\.cpp", ("src/base",)))),
    Layer(8, "examples", "programs that use the library", groups=()),
    Layer(8, "python", "the Python package; its C++ is the extension module", groups=("pybind11", "POSIX")),
    Layer(9, "cli", "the command, one file a verb", ("bench",), ("fmt", "nlohmann-json", "CLI11", "POSIX"),
          only=((r"ranks\.cpp", ("kernel", "sockets")), (r"help\.cpp", ("src/base",)), (r"main\.cpp", ("src/base",)),
                (r"operand\.cpp", ("src/base",)), (r"report\.cpp", ("src/driver",)), (r"cufile\.cpp", ("shims/cufile",)))),
    # tests/unit/X may include what X may include, and X: see layer_of_test().
    Layer(10, "tests", "programs over the public API, and what all tests may use", ("src/backend",),
          ("fmt", "nlohmann-json", "GoogleTest", "POSIX", "kernel", "sockets")),
    Layer(10, "tests/contract", "one suite that every backend passes",
          ("src/base", "src/driver", "src/topology", "src/backend", "backends/*", "backends"),
          ("fmt", "GoogleTest", "POSIX", "kernel", "CUDA")),
    Layer(10, "tests/failure", "calls that fail, end short or hang, and what becomes of every activity", (),
          ("fmt", "GoogleTest", "POSIX", "kernel", "sockets"), only=((r"driver_calls\.cpp", ("src/driver", "CUDA")), (r"ring_calls\.cpp", ("liburing",)))),
    Layer(10, "tests/cufile", "programs over cuFile's interface", ("shims/cufile",), ("fmt", "GoogleTest", "POSIX", "kernel", "sockets")),
    Layer(10, "tests/fake_cuda", "libraries that stand in for those of the GPU driver",
          ("src/base", "src/driver"), ("fmt", "GoogleTest", "POSIX", "kernel", "CUDA")),
    Layer(10, "tests/fake_cufile", "a library that stands in for cuFile, and the tests over it",
          ("src/base", "src/driver", "src/topology", "src/backend", "src/route", "src/transfer", "backends/*", "backends", "shims/cufile"),
          ("fmt", "GoogleTest", "POSIX", "kernel", "CUDA")),
    Layer(10, "tests/fuzz", "fuzz targets, and their corpora replayed", ("src/backend", "src/checkpoint", "src/wire"), ("fmt", "GoogleTest"),
          only=((r"fuzz_wire\.cpp", ("src/driver",)),)),
    Layer(10, "tests/gpu", "tests that need a GPU",
          ("src/base", "src/driver", "src/topology", "src/protocol", "src/backend", "backends/*", "backends"),
          ("fmt", "GoogleTest", "POSIX", "kernel", "CUDA")),
    Layer(10, "tests/models", "protocols over every execution of a weak memory model", (), ("GoogleTest",)),
    Layer(10, "tests/network", "nodes and their clients over the public API; links and sessions over sockets",
          ("src/base", "src/driver", "src/topology", "src/backend", "src/route", "src/transfer", "src/wire", "backends/*"),
          ("fmt", "GoogleTest", "POSIX", "kernel", "sockets")),
    Layer(10, "tests/nccl", "programs over NCCL's interface", ("shims/nccl",), ("fmt", "GoogleTest", "POSIX", "kernel")),
    Layer(10, "tests/page", "the page of a report, in a browser too", ("bench",), ("fmt",)),
    Layer(10, "tests/install", "projects that use an installed library", groups=()),
]

# The layer a public header belongs to; its rank says who may include it.
HOMES = {
    "src/base": ("api.h", "result.hpp", "place.hpp", "buffer.hpp", "units.hpp", "memory_kind.hpp",
                 "version.hpp", "options.hpp", "allocation.hpp", "network.hpp", "pinned.hpp", "publication.hpp",
                 "storage_bytes.hpp", "stage.hpp", "dtype.hpp"),
    "src/topology": ("topology.hpp", "machines.hpp", "topology_diff.hpp", "drawing.hpp", "nccl_xml.hpp", "probe_report.hpp",),
    "src/route": ("route.hpp", "receipt.hpp"),
    "src/transfer": ("transfer.hpp",),
    "src/collective": ("collective.hpp",),
    "src/checkpoint": ("checkpoint.hpp", "tensor_info.hpp", "load.hpp", "loaded.hpp", "repair.hpp", "save.hpp"),
    "src/diagnose": ("doctor.hpp", "fleet.hpp", "peer_doctor.hpp", "record.hpp", "probe.hpp", "sidestep.hpp"),
    "src/context": ("context.hpp", "cuda.hpp", "group.hpp", "node.hpp", "sidestep.h"),
}

# Headers without anything of their layer's -> who may include them besides.
OPEN = {"src/base/try.hpp": ("bench", "cli")}

# Headers the build writes -> who may include them.
GENERATED = {
    "config.hpp": ("src/base", "src/driver", "backends", "src/context", "bench", "cli", "tests"),
    "completion_scripts.hpp": ("cli",),
}

FOLDERS = ("include", "src", "backends", "shims", "bench", "cli", "python", "examples", "tests")
SUFFIXES = (".hpp", ".cpp", ".h", ".c", ".cu", ".cuh")
BANNED_FOLDERS = ("utils", "util", "common", "misc", "helpers")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
BEGIN, END = "<!-- layers:begin -->", "<!-- layers:end -->"

BY_NAME = {layer.name: layer for layer in LAYERS}
HOME_OF = {header: home for home, headers in HOMES.items() for header in headers}


class Tree:
    """The files of a checkout and what each includes."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = sorted(
            path.relative_to(self.root).as_posix()
            for folder in FOLDERS for path in (self.root / folder).rglob("*")
            if path.suffix in SUFFIXES and path.is_file())
        self.known = set(self.files)

    def includes(self, file):
        text = (self.root / file).read_text(encoding="utf-8", errors="replace")
        for match in INCLUDE.finditer(text):
            yield text.count("\n", 0, match.start(2)) + 1, match.group(1), match.group(2)

    def resolve(self, file, mark, name):
        """The project's file an include means, or None where it is not one of the project's."""
        beside = os.path.normpath(os.path.join(os.path.dirname(file), name))
        candidates = [f"include/{name}"] if mark == "<" else [f"src/{name}", name, beside, f"include/{name}"]
        return next((c for c in candidates if c in self.known), None)


def folder_layer(file):
    """The name in LAYERS of the folder a file lies in; backends keep their own name."""
    parts = file.split("/")
    if parts[0] == "backends":
        return "backends" if len(parts) == 2 else f"backends/{parts[1]}"
    for length in (2, 1):
        name = "/".join(parts[:length])
        if len(parts) > length and name in BY_NAME:
            return name
    return None


def row_of(name):
    """The row of LAYERS for a name; each backend has the row backends/*."""
    if name.startswith("backends/"):
        name = "backends/*"
    return BY_NAME[name]


def layer_of_test(file):
    """The row for tests/unit/X: X's own permissions, X, and what every test may include."""
    parts = file.split("/")
    tested = None
    if parts[1] == "unit" and len(parts) > 3:
        whole = parts[2] if parts[2] != "backends" else ""
        tested = next((n for n in (f"src/{parts[2]}", whole, f"backends/{parts[2]}")
                       if n in BY_NAME or n.startswith("backends/")), None)
    if tested is None:
        return row_of(folder_layer(file))
    if tested.startswith("backends/") and tested not in BY_NAME:
        tested = "backends/" + parts[3] if parts[2] == "backends" and len(parts) > 4 else tested
    row = row_of(tested)
    extra = {name for _, names in row.only for name in names}
    groups = set(row.groups) | {n for n in extra if n not in BY_NAME} | set(BY_NAME["tests"].groups)
    may = set(row.may) | {n for n in extra if n in BY_NAME} | {tested}
    return Layer(10, "/".join(parts[:3]), "", tuple(may), tuple(groups))


def permissions(file):
    """The row that holds for a file, with what `only` grants to its name added."""
    row = layer_of_test(file) if file.startswith("tests/") else row_of(folder_layer(file))
    for pattern, names in row.only:
        if re.fullmatch(pattern, file.rsplit("/", 1)[-1]):
            row = row._replace(may=row.may + names, groups=row.groups + names)
    return row


def group_of(name):
    return next((group for group, pattern in GROUPS if re.fullmatch(pattern, name)), None)


def home_rank(header):
    return BY_NAME[HOME_OF[header]].rank


def check_public(file, row, header):
    """An include of include/sidestep/<header>."""
    if header not in HOME_OF:
        return f"include/sidestep/{header} has no home: add it to HOMES in tools/check_layers.py"
    own = HOME_OF.get(file.rsplit("/", 1)[-1]) if file.startswith("include/") else None
    rank = BY_NAME[own].rank if own else row.rank
    if home_rank(header) > rank:
        return f"<sidestep/{header}> belongs to {HOME_OF[header]}, which ranks above {row.name}"
    return None


def check_internal(file, row, target):
    """An include of a file under src/, backends/, bench/ and so on."""
    here, there = folder_layer(file), folder_layer(target)
    if there is None:
        return f"{target} lies in no layer of the table"
    if here == there or target.rsplit("/", 1)[0] == file.rsplit("/", 1)[0]:
        return None
    if there in row.may or here in OPEN.get(target, ()) or (there.startswith("backends/") and "backends/*" in row.may):
        return None
    if here.startswith("backends/") and there.startswith("backends/"):
        return f"a backend never includes another ({target})"
    if here.startswith("tests/") and there.startswith("tests"):
        return None
    return f"{row.name} may not include {there} ({target})"


def check_external(row, name):
    group = group_of(name)
    if group is None:
        return f"<{name}> is of no group known to tools/check_layers.py"
    if group == "std":
        if row.never and re.fullmatch(row.never, name):
            return f"{row.name} may not include <{name}>: {row.why_never}"
        return None
    return None if group in row.groups else f"{row.name} may not include <{name}> ({group})"


def check_include(tree, file, mark, name):
    row = permissions(file)
    target = tree.resolve(file, mark, name)
    if ".." in name.split("/"):
        return f'"{name}" climbs out of its folder: name the file from its root'
    if target is None:
        if mark == '"':
            if name not in GENERATED:
                return f'"{name}" is not a file of the project'
            allowed = any(row.name == n or row.name.startswith(n + "/") for n in GENERATED[name])
            return None if allowed else f'{row.name} may not include "{name}"'
        return check_external(row, name)
    if target.startswith("include/sidestep/"):
        if mark == '"':
            return f"write <{name}>: public headers are included with angle brackets"
        return check_public(file, row, target[len("include/sidestep/"):])
    if file.startswith(("src/", "backends/")) and target not in (f"src/{name}", name):
        return f'write "{target.removeprefix("src/")}": includes are named from the root'
    return check_internal(file, row, target)


def find_cycle(graph):
    """One cycle of a graph {node: [node]} as a list of nodes, or None."""
    done = set()
    for start in graph:
        stack, path = [(start, iter(graph[start]))], [start]
        while stack and start not in done:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                done.add(node)
                stack.pop()
                path.pop()
            elif following in path:
                return path[path.index(following):] + [following]
            elif following not in done:
                path.append(following)
                stack.append((following, iter(graph.get(following, ()))))
    return None


def check_tree(root):
    """Every broken rule of a checkout, as lines of text."""
    tree = Tree(root)
    if not tree.files:
        return [f"{root}: no source files found, nothing was checked"]
    problems = []
    graph = {}
    for file in tree.files:
        for folder in pathlib.PurePosixPath(file).parts[:-1]:
            if folder in BANNED_FOLDERS:
                problems.append(f"{file}: a folder called {folder} becomes a drawer: name what it holds")
        if folder_layer(file) is None:
            problems.append(f"{file}: its folder is in no row of the table")
            continue
        graph[file] = []
        for line, mark, name in tree.includes(file):
            problem = check_include(tree, file, mark, name)
            if problem:
                problems.append(f"{file}:{line}: {problem}")
            target = tree.resolve(file, mark, name)
            if target:
                graph[file].append(target)
    cycle = find_cycle(graph)
    if cycle:
        problems.append("files include each other: " + " -> ".join(cycle))
    return problems


def check_table():
    """The table itself: what a layer may include ranks below it."""
    problems = []
    for layer in LAYERS:
        granted = layer.may + tuple(n for _, names in layer.only for n in names)
        for name in granted:
            if name in BY_NAME and BY_NAME[name].rank >= layer.rank:
                problems.append(f"the table lets {layer.name} include {name}, which does not rank below it")
            if name not in BY_NAME and name not in dict(GROUPS):
                problems.append(f"the table lets {layer.name} include {name}, which does not exist")
    return problems


def markdown_table():
    lines = ["| rank | folder | holds | may include |", "| --- | --- | --- | --- |"]
    for layer in LAYERS:
        names = [f"`{name}`" for name in layer.may] + ["std"] + list(layer.groups)
        text = ", ".join(names)
        for pattern, granted in layer.only:
            text += f"; only {readable(pattern)}: " + ", ".join(
                f"`{n}`" if n in BY_NAME else n for n in granted)
        lines.append(f"| {layer.rank} | `{layer.name}` | {layer.holds} | {text} |")
    return "\n".join(lines) + "\n"


def readable(pattern):
    """A pattern of file names as a reader writes it: `*_reader.cpp`."""
    for regex, text in ((r"\.(cpp|hpp)", ""), (r"\.cuh?", ".cu"), (".*", "*")):
        pattern = pattern.replace(regex, text)
    return ", ".join(f"`{part}`" for part in pattern.split("|"))


def check_document(path, write):
    """Compares the part of a document between the marks with the table."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        return [f"{path}: the marks {BEGIN} and {END} must stand there once each"]
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    if write:
        pathlib.Path(path).write_text(f"{before}{BEGIN}\n{markdown_table()}{END}{after}", encoding="utf-8")
    elif inside.strip() != markdown_table().strip():
        return [f"{path}: the include table is not that of tools/check_layers.py: "
                f"run tools/check_layers.py --document {path} --write"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--document")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown_table(), end="")
        return 0
    if arguments.document:
        problems = check_document(arguments.document, arguments.write)
    else:
        problems = check_table() + check_tree(arguments.root)
    for problem in problems:
        print(problem)
    print(f"check_layers: {len(problems)} problems" if problems else "check_layers: every rule holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
