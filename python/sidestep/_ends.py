"""From what a caller hands over to buffers: the ends of a copy, and tensors to save."""

import os
import re
import sys
from typing import Any, List, NamedTuple, Optional, Tuple

from . import _core, _cuda
from ._arguments import bytes_in, items_of, path_of, text_of
from ._errors import Error
from ._frameworks import DTYPE_OF


class Given(NamedTuple):
    """A buffer, what it holds where that is known, and what keeps its memory alive."""
    buffer: _core.Buffer
    dtype: Optional[str]
    shape: Optional[Tuple[int, ...]]
    kept: Any


def _parse_range(text: str) -> Tuple[str, Optional[Tuple[int, int]]]:
    """'PATH@OFFSET+SIZE', as the command takes it, with plain numbers of bytes or KiB, MiB, GiB, TiB."""
    path, at, part = text.rpartition("@")
    offset, plus, size = part.partition("+")
    if not (at and plus and path):
        return text, None
    first, nbytes = bytes_in(offset), bytes_in(size)
    return (text, None) if first is None or nbytes is None else (path, (first, nbytes))


def _from_text(text: str) -> _core.Buffer:
    """'file:PATH', 'file:PATH@OFFSET+SIZE', 'shared:NAME', NODE/ before one of these, or a path."""
    far = re.fullmatch(r"([A-Za-z0-9._-]+)/((?:file|shared):.*)", text, re.DOTALL)
    if far:
        return _from_text(far[2]).on(far[1])
    if text.startswith("shared:"):
        name, part = _parse_range(text_of(text, "the name of shared memory", "copy")[len("shared:"):])
        return _core.Buffer.shared(name) if part is None else _core.Buffer.shared_part(name, *part)
    if text.startswith("file:"):
        name, part = _parse_range(text[len("file:"):])
        path = path_of(name, "copy")
        return _core.Buffer.file(path) if part is None else _core.Buffer.file_part(path, *part)
    head, colon, rest = text.partition(":")
    if text in ("host", "cpu", "cuda", "gpu") or (colon and head in ("host", "gpu", "cuda") and rest.isdigit()):
        raise Error(f"'{text}' is a place, not memory", "invalid_argument", "copy",
                    f"allocate memory there: sidestep.allocate('{text}', nbytes); for a file of that name write "
                    f"'file:{text}'")
    return _core.Buffer.file(path_of(text, "copy"))


def _located(context: _core.Context, address: int, nbytes: int, read_only: bool) -> _core.Buffer:
    """A buffer over an address of which only the machine knows where it is."""
    place = "host"
    if nbytes > 0 and context.topology.gpu_count > 0:
        try:
            place = context.cuda_buffer(address, nbytes).place
        except Error as error:
            if error.code != "unsupported":  # no GPU works here, so it is host memory
                raise
    return _core.Buffer.memory(place, address, nbytes, read_only)


def _gaps(what: str) -> Error:
    return Error(f"{what} is not in C order without gaps", "invalid_argument", "memory", "copy it: .contiguous(), "
                 "numpy.ascontiguousarray")


def _refuse_lazy(tensor: Any) -> None:
    """PyTorch's conj() and its kin change a bit of the view: the memory has the values from before."""
    for kind, resolve in (("conj", "resolve_conj"), ("neg", "resolve_neg")):
        is_lazy = getattr(tensor, f"is_{kind}", None)  # older versions have no such views
        if is_lazy is not None and is_lazy():
            raise Error(f"the torch.Tensor is a lazy view: its {kind} bit is set, and its memory has other values",
                        "invalid_argument", "memory", f"have the values written: .{resolve}()")


def _from_torch(context: _core.Context, tensor: Any) -> Given:
    if not tensor.is_contiguous():
        raise _gaps("the torch.Tensor")
    _refuse_lazy(tensor)
    if tensor.device.type == "cuda":
        _cuda.synchronize(tensor.device.index)
    elif tensor.device.type != "cpu":
        raise Error(f"a torch.Tensor on {tensor.device}", "unsupported", "memory", "move it to the CPU or a CUDA GPU")
    nbytes = tensor.numel() * tensor.element_size()
    name = str(tensor.dtype).replace("torch.", "")
    shape = tuple(tensor.shape)
    if name == "float4_e2m1fn_x2":
        shape = (*shape[:-1], 2 * shape[-1])
    return Given(_located(context, tensor.data_ptr(), nbytes, False), DTYPE_OF.get(name), shape, tensor)


def _from_capsule(context: _core.Context, other: Any) -> Given:
    # Other libraries order the capsule with a stream; sidestep uses streams of its own, so the GPU is waited for.
    device_type, number = other.__dlpack_device__()
    gpu = int(device_type) in (2, 13)
    if gpu:
        _cuda.synchronize(int(number))
    elif int(device_type) not in (1, 3):
        raise Error(f"memory on a device of DLPack's type {int(device_type)}", "unsupported", "memory")
    try:
        try:
            capsule = other.__dlpack__(max_version=(1, 1))
        except TypeError:
            capsule = other.__dlpack__()
    except BufferError as error:
        raise Error(f"{type(other).__name__}: {error}", "unsupported", "memory") from error
    held = _core.Imported(capsule)
    if not held.contiguous:
        raise _gaps(f"the {type(other).__name__}")
    buffer = _located(context, held.data_ptr, held.nbytes, held.read_only)
    return Given(buffer, held.dtype, held.shape, held)


def _from_numpy(context: _core.Context, array: Any) -> Given:
    if not array.flags.c_contiguous:
        raise _gaps("the numpy.ndarray")
    if array.dtype.hasobject:  # its bytes are addresses, which nobody counts
        raise Error("the numpy.ndarray holds Python objects", "invalid_argument", "memory",
                    "convert it to a type with values: array.astype")
    if array.dtype.byteorder == ">":
        raise Error("the numpy.ndarray is big endian", "invalid_argument", "memory",
                    "convert it: array.astype(array.dtype.newbyteorder('<'))")
    interface = array.__array_interface__["data"]
    buffer = _located(context, interface[0], array.nbytes, interface[1])
    return Given(buffer, DTYPE_OF.get(array.dtype.name), array.shape, array)


def _from_object(context: _core.Context, given: Any) -> Given:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(given, numpy.ndarray):
        return _from_numpy(context, given)
    if torch is not None and isinstance(given, torch.Tensor):
        return _from_torch(context, given)
    if hasattr(given, "__dlpack__"):
        return _from_capsule(context, given)
    try:
        held = _core.Borrowed(given)
    except (TypeError, BufferError) as error:
        raise Error(f"a {type(given).__name__} is not memory: {error}", "invalid_argument", "memory",
                    "hand over a sidestep.Tensor, an array with __dlpack__, or what has Python's buffer protocol") from error
    return Given(_located(context, held.data_ptr, held.nbytes, held.read_only), held.dtype, held.shape, held)


def end_of(context: _core.Context, given: Any) -> Given:
    """An end of a copy. Error (invalid_argument) for what is neither a path nor memory in C order."""
    if isinstance(given, _core.Tensor):
        return Given(given.buffer, given.dtype, given.shape, given)
    if isinstance(given, str):
        return Given(_from_text(given), None, None, None)
    if isinstance(given, os.PathLike):
        return Given(_core.Buffer.file(path_of(given, "copy")), None, None, None)
    return _from_object(context, given)


def tensors_of(context: _core.Context, tensors: Any) -> Tuple[List[Tuple[str, str, List[int], _core.Buffer]], List[Any]]:
    """What a save takes, and what keeps its memory alive."""
    rows, kept = [], []
    for name, tensor in items_of(tensors, "what is to be saved", "save"):
        text_of(name, "a tensor's name", "save")
        if isinstance(tensor, (str, os.PathLike)):
            raise Error(f"'{name}' is a path, not a tensor", "invalid_argument", "save")
        given = end_of(context, tensor)
        if given.dtype is None:
            raise Error(f"'{name}' has a type that safetensors does not know", "invalid_argument", "save")
        rows.append((name, given.dtype, list(given.shape or ()), given.buffer))
        kept.append(given.kept)
    return rows, kept
