"""safetensors files written by hand, so that the package is not compared with itself."""

import json
import random
import struct

# Bits of an element, as safetensors counts them.
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
        "C64": 64, "F64": 64, "I64": 64, "U64": 64}
# Those that NumPy has, by its names.
NUMPY = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "I32": "int32",
         "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}


def nbytes(dtype, shape):
    elements = 1
    for extent in shape:
        elements *= extent
    return elements * BITS[dtype] // 8


def write(path, tensors, metadata=None, padding=0):
    """tensors: {name: (dtype, shape, bytes)}, laid down in that order."""
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + padding)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read(path):
    """{name: (dtype, shape, bytes)} of a file, and its metadata."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    return {name: (entry["dtype"], tuple(entry["shape"]),
                   content[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}, metadata


def random_tensors(seed, count=12, dtypes=tuple(BITS), largest=1 << 18):
    """Tensors of every given type and of odd shapes, with random bytes (0 and 1 for BOOL)."""
    chance = random.Random(seed)
    tensors = {}
    for number in range(count):
        dtype = dtypes[number % len(dtypes)]
        shape = [chance.choice((0, 1, 2, 3, 7, 64, 129)) for _ in range(chance.randrange(4))]
        while nbytes(dtype, shape) > largest:
            shape[shape.index(max(shape))] = 2
        if BITS[dtype] % 8:
            shape = [*shape, 4]  # whole bytes
        data = chance.randbytes(nbytes(dtype, shape))
        if dtype == "BOOL":
            data = bytes(byte & 1 for byte in data)
        tensors[f"layer.{number}.{dtype.lower()}"] = (dtype, tuple(shape), data)
    return tensors


def write_gguf(path, tensors, alignment=32):
    """{name: (GGUF's number of the type, shape with the outermost axis first, bytes)} as a GGUF file, version 3."""
    def text(words):
        return struct.pack("<Q", len(words)) + words.encode()

    infos, data = b"", b""
    for name, (number, shape, content) in tensors.items():
        data += bytes(-len(data) % alignment)
        infos += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += struct.pack("<IQ", number, len(data))
        data += content
    metadata = text("general.name") + struct.pack("<I", 8) + text("a model")  # 8: a string
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1) + metadata + infos
    path.write_bytes(header + bytes(-len(header) % alignment) + data)


def write_sharded(folder, shards):
    """[{name: ...}] as model-0000i-of-n files with their index."""
    names = {}
    for number, tensors in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        write(folder / file, tensors)
        names.update(dict.fromkeys(tensors, file))
    total = sum(len(data) for tensors in shards for _, _, data in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
