#!/usr/bin/env python3
"""Makes a large checkpoint that takes little of the disk: headers and an index are real, the data is a hole.

    tools/make_sparse_checkpoint.py FOLDER [--files N] [--tensors N] [--shape ROWS,COLUMNS]

The default is 1,000 files and 500,000 BF16 tensors: 13.4 TiB by their sizes, 107 MiB on the disk. To time opening it:

    time sidestep inspect FOLDER --only 'model.layers.0.*.experts.0.*'
"""

import argparse
import json
import pathlib
import struct
import sys

PARTS = ("gate_proj", "up_proj", "down_proj")


def write_file(path, names, shape):
    """One safetensors file; returns the bytes of its tensors."""
    size = 2 * shape[0] * shape[1]
    header = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(names):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [number * size, (number + 1) * size]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + len(names) * size)
    return len(names) * size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--tensors", type=int, default=500_000)
    parser.add_argument("--shape", type=lambda text: [int(n) for n in text.split(",")], default=[2048, 7168])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    weight_map, total = {}, 0
    for number in range(arguments.files):
        # The remainder goes to the first ones.
        count = arguments.tensors // arguments.files + (number < arguments.tensors % arguments.files)
        names = [f"model.layers.{number}.mlp.experts.{i // 3}.{PARTS[i % 3]}.weight" for i in range(count)]
        file = f"model-{number + 1:05}-of-{arguments.files:05}.safetensors"
        total += write_file(arguments.folder / file, names, arguments.shape)
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (arguments.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
