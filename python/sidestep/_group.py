"""Groups: ranks that run collectives together."""

import math
import time
from typing import Any, List, Optional, Tuple

from . import _core
from ._errors import Error
from ._frameworks import DTYPE_OF


def _stream_of(stream: Any) -> int:
    """A CUDA stream of PyTorch, CuPy or as a number; None: the legacy default stream."""
    if stream is None:
        return 0
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    return int(stream)


def _memory_of(tensor: Any) -> Tuple[int, str, int]:
    """Address, type and number of elements; nothing is waited for, since operations run on the caller's stream."""
    if isinstance(tensor, _core.Tensor):
        return tensor.data_ptr, tensor.dtype, math.prod(tensor.shape)
    if hasattr(tensor, "is_contiguous") and tensor.is_contiguous():
        return tensor.data_ptr(), DTYPE_OF.get(str(tensor.dtype).replace("torch.", ""), "?"), tensor.numel()
    interface = getattr(tensor, "__cuda_array_interface__", None)
    if interface is not None and interface.get("strides") is None:
        return interface["data"][0], DTYPE_OF.get(str(tensor.dtype), "?"), math.prod(interface["shape"])
    raise Error(f"a {type(tensor).__name__} is not GPU memory in C order", "invalid_argument", "group",
                "hand over a sidestep.Tensor, a torch.Tensor or an array with __cuda_array_interface__")


class Group:
    """One rank of a group (Context.group). Operations are enqueued on `stream` and run in order; every rank calls the same ones
    in the same order. `out` gets the result; left out, the tensor itself does. Memory is kept until wait(). Where a rank dies or
    calls something else the group ends: every later call is the Error that says so. A context manager, which leaves."""

    def __init__(self, held: _core.Group) -> None:
        self._held: Optional[_core.Group] = held
        self._kept: List[Any] = []
        self.rank, self.ranks, self.place, self.id = held.rank, held.ranks, held.place, held.id

    def _enqueue(self, operation: str, tensor: Any, out: Any, counted: Any, op: str, peer: int, stream: Any) -> None:
        if self._held is None:
            raise Error("the group was left", "invalid_argument", operation)
        source, target = (_memory_of(tensor) if one is None else _memory_of(one) for one in (tensor, out))
        _, dtype, count = _memory_of(counted)
        if {source[1], target[1]} != {dtype}:
            raise Error(f"{source[1]} and {target[1]} are two types", "invalid_argument", operation)
        more = {"all_gather": target, "reduce_scatter": source}.get(operation)
        if more is not None and more[2] != count * self.ranks:
            raise Error(f"{more[2]} elements are not {self.ranks} times {count}", "invalid_argument", operation)
        if more is None and source[2] != target[2]:
            raise Error(f"{source[2]} and {target[2]} elements", "invalid_argument", operation, "both have the same number")
        if operation == "all_to_all":
            if count % self.ranks:
                raise Error(f"{count} elements are no {self.ranks} blocks", "invalid_argument", operation)
            count //= self.ranks
        self._kept.append((tensor, out))
        self._held.enqueue(operation, source[0], target[0], count, dtype, op, peer, _stream_of(stream))

    def all_reduce(self, tensor: Any, out: Any = None, *, op: str = "sum", stream: Any = None) -> None:
        """The combination ('sum', 'prod', 'min', 'max', 'avg') of all ranks' tensors, on every rank."""
        self._enqueue("all_reduce", tensor, out, tensor, op, 0, stream)

    def reduce(self, tensor: Any, out: Any = None, *, root: int = 0, op: str = "sum", stream: Any = None) -> None:
        """As all_reduce, on the root alone."""
        self._enqueue("reduce", tensor, out, tensor, op, root, stream)

    def broadcast(self, tensor: Any, out: Any = None, *, root: int = 0, stream: Any = None) -> None:
        """The root's tensor, on every rank."""
        self._enqueue("broadcast", tensor, out, tensor, "sum", root, stream)

    def all_gather(self, tensor: Any, out: Any, *, stream: Any = None) -> None:
        """All ranks' tensors one behind the other: `out` has `ranks` times the elements."""
        self._enqueue("all_gather", tensor, out, tensor, "sum", 0, stream)

    def reduce_scatter(self, tensor: Any, out: Any, *, op: str = "sum", stream: Any = None) -> None:
        """Block `rank` of the combination of all tensors, each of which has `ranks` times the elements of `out`."""
        self._enqueue("reduce_scatter", tensor, out, out, op, 0, stream)

    def all_to_all(self, tensor: Any, out: Any, *, stream: Any = None) -> None:
        """Block r of the tensor goes to block `rank` of rank r's `out`."""
        self._enqueue("all_to_all", tensor, out, tensor, "sum", 0, stream)

    def send(self, tensor: Any, to: int, *, stream: Any = None) -> None:
        """To one other rank, which calls recv()."""
        self._enqueue("send", tensor, None, tensor, "sum", to, stream)

    def recv(self, tensor: Any, source: int, *, stream: Any = None) -> None:
        """From one other rank, which calls send()."""
        self._enqueue("recv", tensor, None, tensor, "sum", source, stream)

    def wait(self) -> None:
        """Until all operations have ended. Ctrl-C ends the wait."""
        if self._held is not None:
            while not self._held.idle():
                time.sleep(0.0002)
            self._held.wait()
        self._kept.clear()

    def abort(self, why: str = "") -> None:
        """Ends the group on all ranks; operations in flight give up within a second."""
        if self._held is not None:
            self._held.abort(why)

    def close(self) -> None:
        """Leaves the group, after this rank's own operations."""
        self._held = None
        self._kept.clear()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group: rank {self.rank} of {self.ranks} on {self.place}{'' if self._held else ', left'}>"
