"""Sidestep: bytes between GPUs, host memory and files, by the shortest path the machine permits.

    import sidestep
    tensors = sidestep.load("model.safetensors", device="cuda:0", framework="torch")
    with sidestep.open("model.safetensors") as checkpoint:
        part = checkpoint.get_slice("embedding.weight")[:100]
    sidestep.save(tensors, "copy.safetensors")
    print(sidestep.copy("file:model.bin", sidestep.allocate("gpu:0", size)).explain())

The functions here work with one Context for each machine, opened when first needed and kept; a Context has the same as
methods. Failures are sidestep.Error. Sizes are bytes, times seconds, rates GB/s (10^9 bytes a second).
"""

import os as _os
import threading as _threading
from collections import OrderedDict as _OrderedDict
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from ._arguments import machine_of as _machine_of
from ._command import bench as _bench
from ._checkpoint import Checkpoint, Slice, SlicePlan
from . import _core
from ._context import Backend, Context, LoadedTensors, Progress, Publication, Rules
from ._core import Diagnosis, Receipt, Route, Stage, StorageBytes, Tensor, TensorInfo, Topology
from ._core import new_group_id
from ._core import version as __version__
from ._errors import Error
from ._group import Group

__all__ = ["Backend", "Checkpoint", "Context", "Diagnosis", "Error", "Group", "LoadedTensors", "Publication", "Receipt", "Route", "Slice", "SlicePlan", "Stage",
           "StorageBytes", "Tensor", "TensorInfo", "Topology", "allocate", "bench", "copy", "doctor", "load", "new_group_id", "open", "publish", "route", "save",
           "topology", "__version__"]

# Contexts by the machine's name, the last used at the end. Few: one that leaves lives on in its tensors.
_CONTEXTS_KEPT = 4
_contexts: "_OrderedDict[bytes, Context]" = _OrderedDict()
_lock = _threading.Lock()


def _context(machine: Optional[str]) -> Context:
    name = _machine_of(machine)
    with _lock:
        found = _contexts.get(name)
        if found is None:
            found = _contexts[name] = Context(machine)
        _contexts.move_to_end(name)
        while len(_contexts) > _CONTEXTS_KEPT:
            _contexts.popitem(last=False)
        return found


def _after_fork() -> None:
    global _lock
    _lock = _threading.Lock()


_os.register_at_fork(after_in_child=_after_fork)


def load(path: Any, device: Any = "cuda:0", *, layout: str = "replicate", shard: Optional[Rules] = None,
         only: Union[str, Iterable[str], None] = None, verify: bool = False, manifest: Any = None,
         machine: Optional[str] = None, framework: Optional[str] = None, lenient: bool = False,
         page_cache: Optional[str] = None, max_staging: Optional[int] = None, chunk: Optional[int] = None,
         deadline: Optional[float] = None, stall_limit: Optional[float] = None,
         progress: Optional[Progress] = None) -> LoadedTensors:
    """All tensors of a checkpoint, in memory: {name: tensor}, or for several devices {device: {name: tensor}}.

    path         FILE.safetensors, FILE.gguf, FILE.safetensors.index.json, or a folder with them; a list of files that
                 belong together; or a Checkpoint that open() gave, whose framework, device and lenient do not count here
    device       'cuda:0' (CUDA's number), 'gpu:0' (NVML's), 0, torch.device, 'cpu'; a list of them, 'gpu:all', 'cuda:all'.
                 Each file is read once, however many they are. Keys of the result are what was given here
    layout       'replicate': every tensor everywhere; 'tensor': each on one device; 'axis': cut by `shard`
    shard        {pattern: axis}, [(pattern, axis), ...] or the path of a rules file; implies 'axis'. The first that
                 fits counts; tensors that none fits are everywhere. Tensor.axis and .first tell which part it is
    only         a pattern of names or several: '*', '?', '[a-c]', '!' in front takes out again
    verify       reads every byte again from files and devices and compares (Error: mismatch)
    manifest     a file of checksums to compare the bytes with while they are read
    framework    'torch', 'numpy', 'cupy': their arrays; None: sidestep.Tensor, which every library takes by DLPack
    lenient      takes padding after the last tensor, unknown types as bytes, and leaves out what the index does not name
    page_cache   'automatic', 'use' or 'bypass'
    max_staging  bytes of pinned host memory for each device (256 MiB)
    chunk        bytes read at a time; 0: the library chooses
    deadline     seconds, 0: none; opening counts.    stall_limit  seconds without a byte, 0: none (60)
    progress     called with (bytes done, bytes in all) about every 50 ms; what it raises cancels

    Each tensor lies at its own 256-byte aligned address in one allocation a device, which the tensors keep alive: it is
    freed with the last of them. The result also has .receipt, whose notes tell what is odd about the files, and .report
    (the table of what limited the load).
    Error: nothing is handed out in part. out_of_memory is said before anything is read. Waits without the GIL; may be
    called from several threads; KeyboardInterrupt cancels.
    """
    return _context(machine).load(path, device, layout=layout, shard=shard, only=only, verify=verify, manifest=manifest,
                                  framework=framework, lenient=lenient, page_cache=page_cache, max_staging=max_staging,
                                  chunk=chunk, deadline=deadline, stall_limit=stall_limit, progress=progress)


def open(path: Any, framework: Optional[str] = None, device: Any = "cpu", *, machine: Optional[str] = None,
         lenient: bool = False, deadline: Optional[float] = None) -> Checkpoint:
    """A checkpoint to read single tensors from; path, device, framework, lenient and deadline (of this call alone) as for
    load(). A context manager, with the calls of safetensors.safe_open: keys, offset_keys, metadata, get_tensor,
    get_tensors, get_slice, and table(), tensors(), get_info. Only headers are read here. Error: not_found;
    invalid_argument with file, tensor and byte for a malformed one; timed_out."""
    return _context(machine).open(path, framework, device, lenient=lenient, deadline=deadline)


def save(tensors: Mapping[str, Any], path: Any, *, metadata: Optional[Mapping[str, str]] = None, shard_bytes: int = 0,
         manifest: bool = False, sync_file: bool = False, sync_replaced: bool = True, verify: bool = False,
         machine: Optional[str] = None, page_cache: Optional[str] = None, max_staging: Optional[int] = None,
         chunk: Optional[int] = None, deadline: Optional[float] = None, stall_limit: Optional[float] = None,
         progress: Optional[Progress] = None) -> Receipt:
    """Writes {name: tensor} to a safetensors file, or with shard_bytes to several of about that many bytes, with their
    index, in the folder `path`, which is there. Tensors are sidestep.Tensor, arrays with __dlpack__, or objects with
    Python's buffer protocol, in C order, on any device; nobody writes to them meanwhile. GPU arrays of other libraries
    are waited for first.

    metadata   text pairs for __metadata__
    manifest   also writes PATH.manifest.json with checksums, for load(manifest=)
    sync_file  flushed to the device before the files get their names; a save over an earlier one is so anyway,
               unless sync_replaced is False
    verify     reads files and tensors again and compares

    Files appear under their names when all are whole; a failed save leaves what was there before.
    Error (invalid_argument) for gaps in memory, lazy views of PyTorch (conj), and types that safetensors lacks. Waits
    without the GIL."""
    return _context(machine).save(tensors, path, metadata=metadata, shard_bytes=shard_bytes, manifest=manifest,
                                  sync_file=sync_file, sync_replaced=sync_replaced, verify=verify,
                                  page_cache=page_cache, max_staging=max_staging, chunk=chunk, deadline=deadline,
                                  stall_limit=stall_limit, progress=progress)


def copy(src: Any, dst: Any, *, require: str = "any", prefer: str = "automatic", lanes: Union[int, str] = "all", verify: bool = False,
         sync_file: bool = False, machine: Optional[str] = None, page_cache: Optional[str] = None,
         max_staging: Optional[int] = None, chunk: Optional[int] = None, deadline: Optional[float] = None,
         stall_limit: Optional[float] = None, progress: Optional[Progress] = None) -> Receipt:
    """Copies bytes and waits for them. An end is a path, 'file:PATH', 'file:PATH@OFFSET+SIZE' (as a target written in
    place), 'shared:NAME' (memory that another process published), NODE/ before one of these (on another machine, docs/network.md),
    a sidestep.Tensor, an array with __dlpack__, or an
    object with Python's buffer protocol (writable, as a target), in C order. Sizes must agree, save that a whole file as
    a target takes what comes: it is written under another name and renamed when every byte is there.

    require    'any'; 'direct': one hop or Error (path_unavailable) with the reasons; 'host': through host memory
    prefer     'automatic', 'copy-engine', 'kernel'
    lanes      most paths at once; 'all': as many as make it quicker
    verify     both ends are read again and compared
    sync_file  a written file is flushed before it appears

    Receipt.explain() tells the path, and the better ones refused. After a failure or Ctrl-C a memory target, or a part of
    a file, is partly written; a whole file is as it was. Both ends stay as they are meanwhile. Waits without the GIL; may be
    called from several threads."""
    return _context(machine).copy(src, dst, require=require, prefer=prefer, lanes=lanes, verify=verify, sync_file=sync_file,
                                  page_cache=page_cache, max_staging=max_staging, chunk=chunk, deadline=deadline,
                                  stall_limit=stall_limit, progress=progress)


def route(src: str, dst: str, nbytes: Union[int, str], *, machine: Optional[str] = None, require: str = "any",
          prefer: str = "automatic", lanes: Union[int, str] = "all") -> Route:
    """The way a copy of `nbytes` bytes ('1GiB' too) between two places would take, and every way refused with the reason.
    Moves nothing. Places are 'host', 'host:1', 'gpu:3', 'file:PATH', 'node7/gpu:1'. Error: path_unavailable, not_found."""
    return _context(machine).route(src, dst, nbytes, require=require, prefer=prefer, lanes=lanes)


def topology(machine: Optional[str] = None) -> Topology:
    """Devices and links of this machine, a built-in one ('dgx-h100', 'dgx-h100*128') or a file. str() prints it."""
    if machine is None:
        return _context(None).topology()
    return Topology.open(_machine_of(machine))


def doctor(machine: Optional[str] = None) -> Diagnosis:
    """Why a fast path of this machine, or of a recorded one, is off or slow, and what to type. str() prints the report,
    to_json() has every finding. Changes nothing, and needs no GPU."""
    return _core.doctor(_machine_of(machine))


def bench(*cases: str, machine: Optional[str] = None, smoke: bool = False, samples: Optional[int] = None) -> Dict[str, Any]:
    """Measures this machine as `sidestep bench` does, in a process of its own, and gives the report that docs/bench-format.md
    describes. cases are keys such as 'host_link' or 'peer_*'; none: all. smoke only shows that each works. Ctrl-C ends it."""
    return _bench(cases, machine, smoke, samples)


def publish(name: str, memory: Any, *, deadline: Optional[float] = None, machine: Optional[str] = None) -> Publication:
    """Lets other processes copy to and from memory as 'shared:NAME', for as long as the answer lives (docs/sharing.md).
    memory is a sidestep.Tensor on a GPU, or of allocate('host', nbytes, pageable=True). deadline: seconds, 0: none. Error
    (invalid_argument) where the name is taken, (timed_out) where the folder of names does not answer in time."""
    return _context(machine).publish(name, memory, deadline=deadline)


def allocate(device: Any, nbytes: int, *, pageable: bool = False, machine: Optional[str] = None) -> Tensor:
    """`nbytes` bytes at a device, contents undefined, as a U8 tensor of one axis; Tensor.view gives it another type.
    Freed with the last tensor or array over it. Error (out_of_memory) names what was asked and what was free.
    Host memory is pinned where there are GPUs; `pageable` is ordinary memory, which publish() can give a name."""
    return _context(machine).allocate(device, nbytes, pageable=pageable)
