"""Contexts: what everything else is done with."""

import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

from . import _core, _cuda, _devices
from ._arguments import (bytes_in, lanes_of, machine_of, message_of, metadata_of, number_of, path_of, paths_of, patterns_of, place_name_of,
                         progress_of, rules_of, seconds_of, set_options, size_of, text_of)
from ._checkpoint import Checkpoint, content_of
from ._ends import end_of, tensors_of
from ._errors import Error
from ._frameworks import framework_of
from ._group import Group

Progress = Callable[[int, int], Any]
Rules = Union[str, "os.PathLike[str]", Mapping[str, int], Iterable[Tuple[str, int]]]


class LoadedTensors(Dict[Any, Any]):
    """What load() gives: a dict, name -> tensor, or device -> {name: tensor}, and how it went."""

    receipt: _core.Receipt
    report: str  # the closing table: bytes by path, rate of each stage, the stage that limits, what would make it faster


class Backend(NamedTuple):
    """Whether one way to move bytes works on this machine."""
    name: str
    usable: bool
    reason: str  # why not, or what it found
    remedy: str  # what would make it work; may be ''


class Publication:
    """Memory under a name, for as long as this lives: close(), or leave its `with`. Keeps the memory."""

    def __init__(self, name: str, held: _core.Publication, kept: Any) -> None:
        self.name = name
        self._held: Optional[_core.Publication] = held
        self._kept = kept

    def close(self) -> None:
        """Withdraws the name. Processes that opened it keep what they have."""
        self._held = self._kept = None

    def __enter__(self) -> "Publication":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Publication: shared:{self.name}{'' if self._held else ', withdrawn'}>"


def _shard(options: _core.LoadOptions, layout: str, shard: Optional[Rules]) -> None:
    set_options(options, layout=layout)
    if shard is None:
        return
    if layout == "tensor":
        raise Error("layout 'tensor' cuts no tensors, so it has no rules", "invalid_argument", "shard")
    options.layout = "axis"
    if isinstance(shard, (str, os.PathLike)):
        options.read_rules(path_of(shard, "shard"))
    else:
        options.rules = rules_of(shard)


_all: "weakref.WeakSet[Context]" = weakref.WeakSet()


def _after_fork() -> None:
    """A child has none of its parent's threads: its contexts are opened anew, and the old ones are not ended here."""
    for context in list(_all):
        context._opened = None
        context._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Context:
    """Opens a machine, finds the ways to move bytes, and carries out copies. Cheap to keep, not to make (0.1 s and more with
    GPUs): make one and share it. All methods may be called from several threads at once; all wait without the GIL. In
    the main thread Ctrl-C cancels what is waited for, and is raised as KeyboardInterrupt. In a child of fork()
    it is opened anew. What was allocated or loaded may outlive the context.

    machine: 'live', a built-in machine ('dgx-h100'), a cluster of it, a topology file; None: the environment's
    SIDESTEP_MACHINE, else 'live'. GPUs of any but the live machine are emulated in host memory.
    nodes: where other machines listen, 'node7=10.0.0.7:47900' with commas between, a file of such lines, or
    'etcd://HOST:PORT/PREFIX'; None: the environment's SIDESTEP_NODES. A name that the resolver knows needs none.
    key_file: the key by which machines know each other; None: SIDESTEP_KEY_FILE, else ~/.config/sidestep/key.
    network_checksums: bytes to and from other machines carry checksums; what changed on its way is sent again.
    network_encryption: they are encrypted, of what this context asks for and of what it serves.
    """

    def __init__(self, machine: Optional[str] = None, *, nodes: Optional[str] = None,
                 key_file: Optional[Union[str, "os.PathLike[str]"]] = None, network_checksums: bool = False,
                 network_encryption: bool = False) -> None:
        self._name = machine_of(machine)
        self._nodes = "" if nodes is None else path_of(nodes, "nodes")
        self._key_file = "" if key_file is None else path_of(key_file, "key_file")
        self._checksums = bool(network_checksums)
        self._encryption = bool(network_encryption)
        self._lock = threading.Lock()
        self._numbers: Dict[int, int] = {}
        self._opened: Optional[_core.Context] = None
        _all.add(self)
        topology = self._handle.topology
        if not topology.emulated and topology.gpu_count:
            self._numbers = _cuda.numbers(topology.gpu_bus_ids)
            self._handle.set_cuda_numbers(self._numbers)
        self._machine = _devices.Machine(list(topology.gpu_bus_ids), self._numbers)

    def __repr__(self) -> str:
        topology = self.topology()
        return f"<Context: machine {topology.name}, {topology.gpu_count} GPUs{', emulated' if topology.emulated else ''}>"

    @property
    def _handle(self) -> _core.Context:
        if self._opened is not None:
            return self._opened
        with self._lock:
            if self._opened is None:
                opened = _core.Context(self._name, self._nodes, self._key_file, self._checksums,
                                       self._encryption)
                if self._numbers:
                    opened.set_cuda_numbers(self._numbers)
                self._opened = opened
            return self._opened

    def topology(self) -> _core.Topology:
        """The machine that this context works on."""
        return self._handle.topology

    def backends(self) -> List[Backend]:
        """Each way to move bytes, whether it works here, and why not."""
        return [Backend(*row) for row in self._handle.backends()]

    def serve(self, allow: str, *, listen: str = "127.0.0.1:47900", key_file: Optional[Union[str, "os.PathLike[str]"]] = None,
              name: str = "", metrics: str = "", notifications: int = 0, rate: int = 0) -> _core.Serving:
        """Lets other machines reach what `allow` names ('gpu:*,host=8GiB,file:/data,file:/out=rw,shared:kv'), and nothing else,
        for as long as the answer lives. It has `addresses`, `key_file`, `allowed`, `counts()` (clients, bytes received,
        bytes sent) and `metrics()`, all it counts in Prometheus' text format. With `metrics='127.0.0.1:9478'` a page over
        HTTP has that text (GET /metrics), for whoever reaches it; `metrics_addresses` says where. Up to `notifications` texts
        of clients (`Context.notify`) wait for `next_notification(milliseconds)`, which gives (who, bytes), or None where
        none comes in that time. `rate`: most bytes a second that all clients together move here, and from here; 0: no bound."""
        return self._handle.serve(text_of(listen, "listen", "serve"), text_of(allow, "allow", "serve"),
                                  "" if key_file is None else path_of(key_file, "key_file"), text_of(name, "name", "serve"),
                                  text_of(metrics, "metrics", "serve"), number_of(notifications, "notifications", "serve", (1 << 31) - 1),
                                  number_of(rate, "rate", "serve", (1 << 64) - 1))

    def notify(self, node: str, text: Union[str, bytes]) -> None:
        """Gives a program that serves at the node up to 4096 bytes (a str as UTF-8), once; waits until the node has them.
        After a copy has ended it says that the bytes are there."""
        self._handle.notify(text_of(node, "node", "notify"), message_of(text))

    def publish(self, name: str, memory: Any, *, deadline: Optional[float] = None) -> Publication:
        """See sidestep.publish."""
        given = end_of(self._handle, memory)
        options = set_options(_core.PublishOptions(), deadline=deadline)
        return Publication(name, self._handle.publish(text_of(name, "a name", "publish"), given.buffer, options), given)

    def group(self, device: Any = None, *, id: Optional[str] = None, rank: Optional[int] = None, ranks: Optional[int] = None,
              timeout: Optional[float] = None, name: str = "") -> Group:
        """Joins a group as one rank, and waits for the others: as the launcher says (`sidestep run -n`, torchrun, mpirun, srun),
        or with an `id` of sidestep.new_group_id() that all ranks are given, `rank` and `ranks` (0 and 1, if left out). `device` is
        this rank's GPU; None: that of the local rank. timeout: seconds that a rank waits for another (60), 0: no limit. Ctrl-C ends
        the wait. `sidestep ps` shows `name`."""
        if id is None and (rank is not None or ranks is not None):
            raise Error("rank and ranks come from the launcher where no id is given", "invalid_argument", "group",
                        "give all ranks one id of sidestep.new_group_id(), or leave rank and ranks out")
        place = "" if device is None else self.place_of(device)
        return Group(self._handle.group("" if id is None else text_of(id, "an id", "group"),
                                        number_of(0 if rank is None else rank, "rank", "group", (1 << 31) - 1),
                                        number_of(1 if ranks is None else ranks, "ranks", "group", (1 << 31) - 1), place,
                                        None if timeout is None else seconds_of(timeout, "timeout"), text_of(name, "a name", "group")))

    def place_of(self, device: Any) -> str:
        """'cpu', 'cuda:0' (CUDA's number), 0 (the same), 'gpu:0' (NVML's number), torch.device -> 'host', 'gpu:0'."""
        return _devices.place_of(device, self._machine)

    def on_cpu(self, place: str) -> bool:
        """Whether the CPU can read memory of that place: host memory, and emulated GPUs."""
        return not (place.startswith("gpu:") and self._machine.cuda_numbers)

    def allocate(self, device: Any, nbytes: int, *, pageable: bool = False) -> _core.Tensor:
        """See sidestep.allocate."""
        return self._handle.allocate(self.place_of(device), size_of(nbytes, "allocate"), bool(pageable))

    def open(self, path: Any, framework: Optional[str] = None, device: Any = "cpu", *, lenient: bool = False,
             deadline: Optional[float] = None) -> Checkpoint:
        """See sidestep.open."""
        return Checkpoint(path, self, device, framework, lenient, deadline)

    def load(self, path: Any, device: Any = "cuda:0", *, layout: str = "replicate", shard: Optional[Rules] = None,
             only: Union[str, Iterable[str], None] = None, verify: bool = False, manifest: Any = None,
             framework: Optional[str] = None, lenient: bool = False, page_cache: Optional[str] = None,
             max_staging: Optional[int] = None, chunk: Optional[int] = None, deadline: Optional[float] = None,
             stall_limit: Optional[float] = None, progress: Optional[Progress] = None) -> LoadedTensors:
        """See sidestep.load."""
        called = progress_of(progress)
        taken_by = framework_of(framework)
        targets, several = _devices.places_of(device, self._machine)
        if isinstance(path, Checkpoint):
            checkpoint = path._content
        else:
            begin = time.monotonic()
            checkpoint = content_of(path, "load", lenient, deadline)
            if deadline:
                deadline = max(deadline - (time.monotonic() - begin), 0.001)
        if only is not None:
            checkpoint = checkpoint.only(patterns_of(only))
        if taken_by is not None:
            for _, place in targets:
                taken_by.check(checkpoint.dtypes, self.on_cpu(place))
            taken_by.check_shapes(checkpoint)
        options = set_options(_core.LoadOptions(), to=[place for _, place in targets], verify=verify,
                              page_cache=page_cache, max_staging=max_staging, chunk=chunk, deadline=deadline,
                              stall_limit=stall_limit, manifest=None if manifest is None else path_of(manifest, "manifest"))
        _shard(options, layout, shard)
        places, receipt, report = self._handle.load(checkpoint, options, called)
        if taken_by is not None:
            for tensors in places.values():
                for name, tensor in tensors.items():
                    tensors[name] = taken_by.convert(tensor)
        if several:
            loaded = LoadedTensors((name, places[place]) for name, place in targets)
        else:
            loaded = LoadedTensors(places[targets[0][1]])
        loaded.receipt, loaded.report = receipt, report
        return loaded

    def save(self, tensors: Mapping[str, Any], path: Any, *, metadata: Optional[Mapping[str, str]] = None,
             shard_bytes: int = 0, manifest: bool = False, sync_file: bool = False, sync_replaced: bool = True,
             verify: bool = False, page_cache: Optional[str] = None, max_staging: Optional[int] = None,
             chunk: Optional[int] = None, deadline: Optional[float] = None, stall_limit: Optional[float] = None,
             progress: Optional[Progress] = None) -> _core.Receipt:
        """See sidestep.save."""
        called = progress_of(progress)
        rows, kept = tensors_of(self._handle, tensors)
        options = set_options(_core.SaveOptions(), metadata=None if metadata is None else metadata_of(metadata),
                              shard_bytes=shard_bytes, manifest=manifest, sync_file=sync_file,
                              sync_replaced=sync_replaced, verify=verify, page_cache=page_cache, max_staging=max_staging,
                              chunk=chunk, deadline=deadline, stall_limit=stall_limit)
        return self._handle.save(rows, path_of(path, "save"), options, called, kept)

    def copy(self, src: Any, dst: Any, *, require: str = "any", prefer: str = "automatic", lanes: Union[int, str] = "all",
             verify: bool = False, sync_file: bool = False, page_cache: Optional[str] = None,
             max_staging: Optional[int] = None, chunk: Optional[int] = None, deadline: Optional[float] = None,
             stall_limit: Optional[float] = None, progress: Optional[Progress] = None) -> _core.Receipt:
        """See sidestep.copy."""
        called = progress_of(progress)
        source, target = end_of(self._handle, src), end_of(self._handle, dst)
        options = set_options(_core.CopyOptions(), require=require, prefer=prefer, lanes=lanes_of(lanes), verify=verify,
                              sync_file=sync_file, page_cache=page_cache, max_staging=max_staging, chunk=chunk,
                              deadline=deadline, stall_limit=stall_limit)
        return self._handle.copy(source.buffer, target.buffer, options, called, (source.kept, target.kept))

    def route(self, src: str, dst: str, nbytes: Union[int, str], *, require: str = "any", prefer: str = "automatic",
              lanes: Union[int, str] = "all") -> _core.Route:
        """See sidestep.route."""
        options = set_options(_core.CopyOptions(), require=require, prefer=prefer, lanes=lanes_of(lanes))
        size = bytes_in(nbytes) if isinstance(nbytes, str) else size_of(nbytes, "nbytes")
        if size is None:
            raise Error(f"'{nbytes}' is not a size", "invalid_argument", "nbytes", "write 4096, '4KiB', '1.5GiB'")
        return self._handle.route(place_name_of(src, "src"), place_name_of(dst, "dst"), size, options)
