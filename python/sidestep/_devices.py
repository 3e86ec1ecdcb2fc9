"""From the names of devices that array libraries use to places."""

import operator
import re
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._errors import Error


class Machine(NamedTuple):
    """What names of devices are read against."""
    gpus: Sequence[int]  # their numbers, with a gap where the driver has lost one
    cuda_numbers: Mapping[int, int]  # by those; empty where GPUs are emulated: then they are the same


def _number(device: Any) -> Optional[int]:
    """Of an int, or what counts as one (numpy.int64); None for anything else."""
    if isinstance(device, bool):
        return None
    try:
        return operator.index(device)
    except TypeError:
        return None


def _gpu_of_cuda(number: int, machine: Machine) -> str:
    if number < 0:  # hidden GPUs have -1 in cuda_numbers
        raise Error(f"there is no cuda:{number}", "invalid_argument", "device", "CUDA counts from 0")
    if not machine.cuda_numbers:
        return f"gpu:{number}"
    for gpu, shown in machine.cuda_numbers.items():
        if shown == number:
            return f"gpu:{gpu}"
    raise Error(f"there is no cuda:{number}: this process's CUDA shows {_visible(machine)} of {len(machine.gpus)} GPUs",
                "not_found", f"cuda:{number}")


def _visible(machine: Machine) -> int:
    return sum(number >= 0 for number in machine.cuda_numbers.values())


def place_of(device: Any, machine: Machine) -> str:
    """'cpu', 'host:1', 'cuda', 'cuda:2' (CUDA's number), 2 (the same), 'gpu:3' (NVML's number, as everywhere in
    sidestep), torch.device -> 'host', 'host:1', 'gpu:3'. Error (invalid_argument) for anything else."""
    number = _number(device)
    if number is not None:
        return _gpu_of_cuda(number, machine)
    name = str(device)
    if name in ("cpu", "host"):
        return "host"
    if name == "cuda":
        return _gpu_of_cuda(0, machine)
    match = re.fullmatch(r"(cuda|gpu|host):(\d+)", name)
    if match is None:
        raise Error(f"there is no device '{name}'", "invalid_argument", "device",
                    "devices are cpu, cuda:0 (CUDA's number), gpu:0 (NVML's number), host:0 (a NUMA node)")
    if match[1] == "cuda":
        return _gpu_of_cuda(int(match[2]), machine)
    return name


def places_of(device: Any, machine: Machine) -> Tuple[List[Tuple[Any, str]], bool]:
    """[(device as the caller named it, place)], and whether that were several: a list, a tuple, 'gpu:all' (all GPUs of
    the machine) or 'cuda:all' (those that this process's CUDA shows)."""
    if isinstance(device, (list, tuple)):
        if not device:
            raise Error("no device is named", "invalid_argument", "device")
        return [(one, place_of(one, machine)) for one in device], True
    if isinstance(device, str) and device in ("gpu:all", "cuda:all"):
        if device == "gpu:all" or not machine.cuda_numbers:
            numbers = machine.gpus
        else:
            numbers = range(_visible(machine))
        if not numbers:
            raise Error("this machine has no GPU", "not_found", device)
        names = [device.replace("all", str(number)) for number in numbers]
        return [(name, place_of(name, machine)) for name in names], True
    return [(device, place_of(device, machine))], False
