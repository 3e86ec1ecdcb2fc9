"""From sidestep's tensors to those of other libraries. None is imported before it is asked for."""

import importlib
import sys
from typing import Any, Callable, Dict, FrozenSet, Iterable, NamedTuple, Optional, Sequence

from ._core import Checkpoint, Tensor
from ._errors import Error


class Framework(NamedTuple):
    """How one library takes tensors."""
    name: str
    types: Dict[str, Any]  # those it has; by the names of safetensors
    takes_cpu: bool
    takes_gpu: bool
    convert: Callable[[Tensor], Any]
    paired: FrozenSet[str] = frozenset()  # types of which it counts pairs of elements along the last axis
    most_axes: int = sys.maxsize          # of an array

    def check(self, dtypes: Iterable[str], on_cpu: bool) -> None:
        """Error (unsupported) where a tensor of these types, or there, cannot be converted: before anything is read."""
        if not (self.takes_cpu if on_cpu else self.takes_gpu):
            where = "host" if on_cpu else "GPU"
            raise Error(f"{self.name} has no arrays in {where} memory", "unsupported", "framework",
                        "name another device, or leave framework out and use DLPack")
        missing = sorted(set(dtypes) - set(self.types))
        if missing:
            raise Error(f"this {self.name} has no type for {', '.join(missing)}", "unsupported", "framework",
                        "install ml_dtypes, or leave framework out: Tensor.as_bytes() gives the bytes"
                        if self.name == "numpy" else "leave framework out: Tensor.as_bytes() gives the bytes")

    def check_shape(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Error (unsupported) for a shape it cannot have: before anything is read."""
        if len(shape) > self.most_axes:
            raise Error(f"'{name}' has {len(shape)} axes, and arrays of this {self.name} have at most {self.most_axes}",
                        "unsupported", "framework", "leave framework out: Tensor.view() gives it fewer axes")
        if dtype in self.paired and (not shape or shape[-1] % 2):
            raise Error(f"{self.name} has no {dtype} tensor of shape {tuple(shape)}, as '{name}' is: it counts pairs along "
                        "the last axis", "unsupported", "framework",
                        "leave framework out: Tensor.as_bytes() gives the bytes")

    def check_shapes(self, checkpoint: Checkpoint) -> None:
        """check_shape of all tensors. They are looked at one by one only where one of them may be refused."""
        if self.paired.isdisjoint(checkpoint.dtypes) and checkpoint.most_axes <= self.most_axes:
            return
        for info in checkpoint.tensors:
            self.check_shape(info.name, info.dtype, info.shape)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Error(f"{name} cannot be imported: {error}", "unsupported", "framework") from error


# What Python's buffers carry.
_PLAIN = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "I32": "int32",
          "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}
_NARROW = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
           "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
# The other way: what NumPy, ml_dtypes, PyTorch and CuPy call their types.
DTYPE_OF = {name: dtype for dtype, name in (*_PLAIN.items(), *_NARROW.items())}
DTYPE_OF["float4_e2m1fn_x2"] = "F4"


def _numpy() -> Framework:
    numpy = _import("numpy")
    types = {dtype: numpy.dtype(name) for dtype, name in _PLAIN.items()}
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        ml_dtypes = None
    for dtype, name in _NARROW.items():
        scalar = getattr(ml_dtypes, name, None)
        if scalar is not None:
            types[dtype] = numpy.dtype(scalar)

    def convert(tensor: Tensor) -> Any:
        if tensor.dtype in _PLAIN:
            return numpy.asarray(tensor)
        return numpy.asarray(tensor.as_bytes()).view(types[tensor.dtype]).reshape(tensor.shape)

    # NumPy 2 does not say how many axes it has room for: 64.
    return Framework("numpy", types, True, False, convert, most_axes=getattr(numpy, "MAXDIMS", 64))


def _torch() -> Framework:
    torch = _import("torch")
    types = {}
    for dtype, name in (*_PLAIN.items(), *_NARROW.items(), ("F4", "float4_e2m1fn_x2")):
        if hasattr(torch, name):
            types[dtype] = getattr(torch, name)
    # Those that every version of it takes by DLPack; the others come as bytes and are viewed.
    direct = ("F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64", "U8")

    def convert(tensor: Tensor) -> Any:
        if tensor.dtype in direct:
            return torch.from_dlpack(tensor)
        shape = tensor.shape
        if tensor.dtype == "F4":  # two elements a byte, and PyTorch counts the bytes
            shape = (*shape[:-1], shape[-1] // 2)
        return torch.from_dlpack(tensor.as_bytes()).view(types[tensor.dtype]).reshape(shape)

    return Framework("torch", types, True, True, convert, frozenset({"F4"}))


def _cupy() -> Framework:
    cupy = _import("cupy")
    types = {dtype: cupy.dtype(name) for dtype, name in _PLAIN.items()}

    def convert(tensor: Tensor) -> Any:
        flat = cupy.from_dlpack(tensor.as_bytes())
        return flat.view(types[tensor.dtype]).reshape(tensor.shape)

    return Framework("cupy", types, False, True, convert)


_MAKERS = {"torch": _torch, "pt": _torch, "numpy": _numpy, "np": _numpy, "cupy": _cupy}


def framework_of(name: Optional[str]) -> Optional[Framework]:
    """'torch' ('pt'), 'numpy' ('np'), 'cupy', or None for sidestep's own tensors. Error (unsupported) where it cannot be
    imported, Error (invalid_argument) for another name."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in _MAKERS:
        raise Error(f"there is no framework '{name}'", "invalid_argument", "framework",
                    "those known are torch, numpy and cupy; others take sidestep's tensors by DLPack: leave framework out, "
                    "and call jax.dlpack.from_dlpack(tensor) or its like")
    return _MAKERS[name]()
