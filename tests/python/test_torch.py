#!/usr/bin/env python3
"""Loads a checkpoint with sidestep, in a process with PyTorch, and compares every tensor with what safetensors' own loader
gives.

    tests/python/test_torch.py [CHECKPOINT] [--devices cuda:all|cpu|cuda:0,cuda:1] [--machine NAME] [--bytes N]

Needs sidestep, torch and safetensors importable. Without CHECKPOINT a file of N bytes (default 1 GiB) is written, with all
types that torch has. Compares bytes, types, shapes and devices; then slices, a save of GPU tensors, and that memory
stays as long as a tensor and is freed after. The last line is "PASSED: ..." or "FAILED: ..."; exit code 1 on a failure, 77
with "SKIPPED: ..." where torch or safetensors is missing.
"""

import argparse
import contextlib
import gc
import pathlib
import sys
import tempfile
import time
import traceback

try:
    import safetensors.torch
    import torch
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

import sidestep

TYPES = ("bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "complex64",
         "float64", "int64", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
         "float8_e5m2fnuz")


def sample(path, nbytes):
    """A checkpoint of about that size: a large part in bf16 matrices, and small tensors of every type."""
    torch.manual_seed(1)
    tensors = {}

    def random_bytes(count, largest=256):
        return torch.randint(0, largest, (count,), dtype=torch.uint8)

    for number in range(max(1, nbytes // (64 << 20))):
        tensors[f"layers.{number}.weight"] = random_bytes(64 << 20).view(torch.bfloat16).reshape(4096, -1)
    for name in TYPES:
        kind = getattr(torch, name, None)
        if kind is None:
            continue
        data = random_bytes(16 * 24, 2 if name == "bool" else 256)
        size = torch.empty(0, dtype=kind).element_size()
        one = {f"of.{name}": data.view(kind).reshape(-1, 24 // size if 24 % size == 0 else 1)}
        with contextlib.suppress(Exception):  # a type that this safetensors cannot write
            safetensors.torch.save(one)
            tensors.update(one)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(0, 7)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def files_of(path):
    if path.is_file():
        return [path]
    return sorted(path.glob("*.safetensors"))


def expected_tensors(path):
    tensors = {}
    for file in files_of(path):
        tensors.update(safetensors.torch.load_file(file))
    return tensors


def same(one, other):
    """Bit by bit: NaN too."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8))


def compare(got, expected, device, emulated, problems):
    """Every tensor of one device. Emulated GPUs are CPU memory to torch."""
    if set(got) != set(expected):
        problems.append(f"{device}: other names: {sorted(set(got) ^ set(expected))[:5]}")
        return 0
    for name, tensor in got.items():
        if device.startswith("cuda") and not emulated and str(tensor.device) != device:
            problems.append(f"{name}: is on {tensor.device}, not {device}")
        if not same(tensor.cpu(), expected[name]):
            problems.append(f"{name} on {device}: differs from safetensors' ({tensor.dtype}, {tuple(tensor.shape)})")
    return len(got)


def check_slices(path, expected, device, machine, problems):
    with sidestep.open(path, "torch", device, machine=machine) as checkpoint:
        for name, tensor in list(expected.items())[:20]:
            if tensor.ndim == 2 and tensor.shape[0] > 4 and tensor.shape[1] > 4:
                for index in ((slice(1, 3),), (slice(None), slice(1, 4)), (2, ...), (..., 3)):
                    if not same(checkpoint.get_slice(name)[index].cpu(), tensor[index]):
                        problems.append(f"{name}[{index}] differs")
            if not same(checkpoint.get_tensor(name).cpu(), tensor):
                problems.append(f"{name}: get_tensor differs")


def check_save(loaded, expected, folder, machine, problems):
    path = folder / "saved.safetensors"
    sidestep.save(loaded, path, metadata={"format": "pt"}, machine=machine)
    again = safetensors.torch.load_file(path)
    if set(again) != set(expected) or not all(same(again[name], expected[name]) for name in expected):
        problems.append("what sidestep saved is not what safetensors reads")


def check_lifetime(path, device, machine, problems):
    """One tensor keeps all memory of its device; without any it is freed."""
    index = torch.device(device).index
    with sidestep.open(path, machine=machine) as checkpoint:
        nbytes = checkpoint.nbytes
    before = torch.cuda.mem_get_info(index)[0]
    loaded = sidestep.load(path, device, framework="torch", machine=machine)
    name = next(iter(loaded))
    one = loaded[name]
    value = one.cpu()
    del loaded
    gc.collect()
    if before - torch.cuda.mem_get_info(index)[0] < nbytes * 9 // 10:
        problems.append("the memory was freed while a tensor was in use")
    if not same(one.cpu(), value):
        problems.append("a tensor changed when the others were dropped")
    del one
    gc.collect()
    left = before - torch.cuda.mem_get_info(index)[0]
    if left > max(nbytes // 10, 128 << 20):
        problems.append(f"{left} bytes of {device} are still held after the last tensor was dropped")


def run(arguments, folder, problems):
    path = arguments.checkpoint
    if path is None:
        path = folder / "sample.safetensors"
        sample(path, arguments.bytes)
    expected = expected_tensors(path)
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in expected.values())
    devices = arguments.devices.split(",") if "," in arguments.devices else arguments.devices
    begun = time.monotonic()
    loaded = sidestep.load(path, devices, framework="torch", machine=arguments.machine)
    seconds = time.monotonic() - begun
    print(loaded.report)
    places = loaded if isinstance(devices, list) or devices.endswith(":all") else {devices: loaded}
    emulated = arguments.machine is not None
    count = sum(compare(tensors, expected, str(device), emulated, problems) for device, tensors in places.items())
    first = str(next(iter(places)))
    check_slices(path, expected, first, arguments.machine, problems)
    check_save(places[next(iter(places))], expected, folder, arguments.machine, problems)
    names = ", ".join(str(device) for device in places)
    del loaded, places
    if first.startswith("cuda") and arguments.machine is None:
        check_lifetime(path, first, None, problems)
    return (f"{count} tensors on {names} are those of safetensors {safetensors.__version__} (torch {torch.__version__}); "
            f"{nbytes} bytes loaded in {seconds:.3f} s, {nbytes / seconds / 1e9:.1f} GB/s of file bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=pathlib.Path)
    parser.add_argument("--devices", default="cuda:all" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--machine")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    arguments = parser.parse_args()
    problems = []
    with tempfile.TemporaryDirectory(prefix="sidestep-torch-") as folder:
        try:
            words = run(arguments, pathlib.Path(folder), problems)
        except Exception as error:  # whatever it was: the last line says so
            traceback.print_exc()
            problems.append(f"{type(error).__name__}: {error}")
    for problem in problems[:20]:
        print(problem)
    print(f"FAILED: {len(problems)} problems, the first: {problems[0]}" if problems else f"PASSED: {words}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
