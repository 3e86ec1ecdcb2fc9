"""Reading single tensors, and parts of them, out of a checkpoint."""

import contextlib
import operator
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _core
from ._arguments import paths_of, set_options, text_of
from ._errors import Error
from ._frameworks import framework_of

# A part that lies in more pieces than this, or in smaller ones, is read with what lies between them: a read of its own
# costs about as much as 64 KiB more.
MAX_PIECES = 256
MIN_PIECE = 64 << 10


class SlicePlan(NamedTuple):
    """What reading a part of a tensor comes to (Slice.plan)."""
    shape: Tuple[int, ...]  # of the part
    nbytes: int             # of the part
    read_nbytes: int        # read from the file
    reads: int              # pieces read; more bytes than the part has are read where they would be too many


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors in here say which tensor was asked for."""
    try:
        yield
    except Error as error:
        raise Error(f"tensor '{name}': {error.message}", error.code, error.where, error.hint) from None


def _range(part: slice, extent: int) -> Tuple[int, int]:
    """First position of a slice of an axis, and the one after its last."""
    try:
        first, last, step = part.indices(extent)
    except (TypeError, ValueError) as error:
        raise Error(f"the index {part}: {error}", "invalid_argument", "get_slice") from None
    if step != 1:
        raise Error("a slice with a step", "unsupported", "get_slice", "slice without, and step through what comes")
    return first, max(first, last)


def _position(item: Any, extent: int) -> int:
    """What an int means on an axis."""
    if isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool"):  # would count as 0 or 1
        raise Error("an index of bool is no position: for one NumPy adds an axis, for several it picks", "invalid_argument",
                    "get_slice", "an index is made of ints, slices and ...")
    try:
        position = operator.index(item)
    except TypeError:
        raise Error(f"an index of type {type(item).__name__}", "invalid_argument", "get_slice",
                    "an index is made of ints, slices and ...") from None
    first = position + extent if position < 0 else position
    if not 0 <= first < extent:
        raise Error(f"position {position} of an axis of {extent}", "invalid_argument", "get_slice")
    return first


def _box(shape: Sequence[int], index: Any) -> Tuple[List[int], List[int], List[int]]:
    """First and last positions along each axis, and the shape without the axes that an int took."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, item in enumerate(items) if item is Ellipsis]  # not by ==, which arrays answer with arrays
    given = len(items) - len(dots)
    if len(dots) > 1:
        raise Error("an index with more than one ...", "invalid_argument", "get_slice")
    if given > len(shape):
        raise Error(f"an index of {given} axes for a tensor of {len(shape)}", "invalid_argument", "get_slice")
    for at in dots:
        items[at:at + 1] = [slice(None)] * (len(shape) - given)
    items += [slice(None)] * (len(shape) - len(items))
    begin, end, kept = [], [], []
    for item, extent in zip(items, shape):
        if isinstance(item, slice):
            first, last = _range(item, extent)
            kept.append(last - first)
        else:
            first = _position(item, extent)
            last = first + 1
        begin.append(first)
        end.append(last)
    return begin, end, kept


class Slice:
    """A tensor of an open checkpoint, to take parts of: `part = checkpoint.get_slice(name)[2:4, ..., 7]`. Ints, slices
    without a step and `...`, as NumPy counts them; no lists, arrays, bools or None. Safe to use from several threads."""

    def __init__(self, checkpoint: "Checkpoint", info: _core.TensorInfo) -> None:
        self._checkpoint = checkpoint
        self._info = info

    def get_shape(self) -> List[int]:
        """Of the whole tensor."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """As the file spells it: 'BF16'."""
        return self._info.dtype

    def _runs(self, index: Any) -> Tuple[_core.Runs, List[int], bool]:
        """The bytes of a part, its shape, and whether each run is read by itself."""
        bits = self._info.bits
        if bits == 0 or bits % 8:
            raise Error(f"'{self._info.name}' is {self._info.dtype}, whose elements are not whole bytes", "unsupported",
                        "get_slice", "take the whole tensor: get_tensor")
        begin, end, shape = _box(self._info.shape, index)
        runs = _core.Runs(self._info.shape, begin, end, bits // 8)
        return runs, shape, runs.count <= 1 or (runs.count <= MAX_PIECES and runs.length >= MIN_PIECE)

    def plan(self, index: Any) -> SlicePlan:
        """What slice[index] reads. Nothing is read for it."""
        runs, shape, apart = self._runs(index)
        nbytes = runs.count * runs.length
        if apart:
            return SlicePlan(tuple(shape), nbytes, nbytes, runs.count)
        return SlicePlan(tuple(shape), nbytes, runs.span(), 1)

    def __getitem__(self, index: Any) -> Any:
        """The part, on the checkpoint's device. Reads only its bytes where they lie together in the file, or in at most 256
        pieces of at least 64 KiB; else also what lies between the first and the last of them, through host memory of
        that size (plan() tells). Errors as of get_tensor; Error (invalid_argument) for an index that does not fit."""
        runs, shape, apart = self._runs(index)
        return self._checkpoint._read_runs(self._info, runs, shape, apart)


def content_of(path: Any, call: str, lenient: bool, deadline: Optional[float]) -> _core.Checkpoint:
    options = set_options(_core.CheckpointOptions(), lenient=bool(lenient), deadline=deadline)
    return _core.Checkpoint.open(paths_of(path, call), options)


class Checkpoint:
    """An opened checkpoint (sidestep.open): headers only, tensors are read when they are asked for. A context manager.
    Safe to use from several threads, except close()."""

    def __init__(self, path: Any, context: Any, device: Any, framework: Optional[str], lenient: bool,
                 deadline: Optional[float] = None) -> None:
        self._framework, self._framework_name = framework_of(framework), framework
        self._context = context
        self._place = context.place_of(device)
        opened = content_of(path, "sidestep.open", lenient, deadline)
        self._files = opened.files
        self._opened: Optional[_core.Checkpoint] = opened

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Nothing can be read after; tensors that were read stay. Closing twice is allowed."""
        self._opened = None

    @property
    def _content(self) -> _core.Checkpoint:
        if self._opened is None:
            raise Error("the checkpoint is closed", "invalid_argument", "sidestep.open")
        return self._opened

    def keys(self) -> List[str]:
        """The names, sorted."""
        return sorted(self._content.names)

    def offset_keys(self) -> List[str]:
        """The names in the order of the files, and within one of their offsets: the quickest to read them in."""
        return self._content.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        files = ", ".join(os.fsdecode(file) for file in self._files[:3]) + (", ..." if len(self._files) > 3 else "")
        return f"<Checkpoint: {files}, {'closed' if self._opened is None else f'{len(self)} tensor' + 's' * (len(self) != 1)}>"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._content.find(name) is not None

    def metadata(self) -> Optional[Dict[str, str]]:
        """__metadata__ of safetensors, the key-value pairs of GGUF, 'index.' keys of an index. None where there is none."""
        return dict(self._content.metadata) or None

    @property
    def notes(self) -> List[str]:
        """What is odd but allowed, in sentences."""
        return self._content.notes

    @property
    def nbytes(self) -> int:
        """The sum over all tensors."""
        return self._content.nbytes

    @property
    def files(self) -> List[str]:
        """The paths of the files."""
        return [os.fsdecode(path) for path in self._files]

    def tensors(self) -> List[_core.TensorInfo]:
        """Name, dtype, shape, file, offset and nbytes of each, in the order of offset_keys()."""
        return self._content.tensors

    def summary(self) -> str:
        """One line: number of tensors, bytes and files, types with their shares."""
        return self._content.summary()

    def table(self) -> str:
        """What `sidestep inspect` prints: name, type, shape, bytes, file of each tensor."""
        return self._content.to_text()

    def get_info(self, name: str) -> _core.TensorInfo:
        """Error (not_found) where there is none of that name."""
        info = self._content.find(text_of(name, "the name of the tensor", "sidestep.open"))
        if info is None:
            raise Error(f"there is no tensor '{name}'", "not_found", "sidestep.open")
        return info

    def get_shape(self, name: str) -> List[int]:
        """The shape of one tensor."""
        return list(self.get_info(name).shape)

    def get_dtype(self, name: str) -> str:
        """The type of one tensor, as the file spells it: 'BF16'."""
        return self.get_info(name).dtype

    def get_slice(self, name: str) -> Slice:
        """A tensor to take parts of. Reads nothing yet."""
        return Slice(self, self.get_info(name))

    def get_tensor(self, name: str) -> Any:
        """The whole tensor, on the checkpoint's device, as the framework's or as a sidestep.Tensor. Waits for it, without
        the GIL. Error: not_found, out_of_memory, io_error; mismatch or end_of_file for a file that changed since it was
        opened."""
        info = self.get_info(name)
        with _naming(name), self._reading(info, info.shape):
            memory = self._context._handle.allocate(self._place, info.nbytes)
            if info.nbytes:
                self._copy([(self._piece(info, 0, info.nbytes), memory.buffer)], memory)
        return self._given(memory, info, info.shape)

    def get_tensors(self) -> Dict[str, Any]:
        """All tensors by their names, in the order of offset_keys(), as get_tensor gives them, read at once. They share one
        allocation, which goes with the last of them. Errors as of sidestep.load."""
        return self._context.load(self, self._place, framework=self._framework_name)

    def _piece(self, info: _core.TensorInfo, first: int, nbytes: int) -> _core.Buffer:
        return _core.Buffer.file_part(self._files[info.file], info.offset + first, nbytes)

    def _copy(self, items: List[Tuple[_core.Buffer, _core.Buffer]], *owners: _core.Tensor) -> None:
        core, options = self._context._handle, _core.CopyOptions()
        if len(items) == 1:
            core.copy(*items[0], options, None, owners)
        else:
            core.copy_batch(items, options, None, owners)

    @contextlib.contextmanager
    def _reading(self, info: _core.TensorInfo, shape: Sequence[int]) -> Iterator[None]:
        """Whether it, or a part of that shape, can be read is said before; and whether the file was the one that was
        opened, before and after: offsets out of an old header would cut tensors out of a new file."""
        content = self._content  # raises when closed
        content.check_file(info.file)
        if max(info.shape, default=0) >= 1 << 63:
            raise Error(f"it has an axis of {max(info.shape)}, and arrays have at most 2^63 - 1", "unsupported",
                        "sidestep.open")
        if self._framework is not None:
            self._framework.check([info.dtype], self._context.on_cpu(self._place))
            self._framework.check_shape(info.name, info.dtype, shape)
        yield
        content.check_file(info.file)

    def _given(self, memory: _core.Tensor, info: _core.TensorInfo, shape: Sequence[int]) -> Any:
        if info.bits:
            tensor = memory.view(info.dtype, list(shape))
        else:
            tensor = memory.as_raw(info.dtype, list(shape))
        return tensor if self._framework is None else self._framework.convert(tensor)

    def _read_runs(self, info: _core.TensorInfo, runs: _core.Runs, shape: Sequence[int], apart: bool) -> Any:
        core, length = self._context._handle, runs.length
        with _naming(info.name), self._reading(info, shape):
            memory = core.allocate(self._place, runs.count * length)
            if apart and runs.count:
                self._copy([(self._piece(info, begin, length), memory.part(i * length, length).buffer)
                            for i, begin in enumerate(runs.begins())], memory)
            elif runs.count:
                around = core.allocate("host", runs.span())
                self._copy([(self._piece(info, runs.first, runs.span()), around.buffer)], around)
                together = memory if self._place == "host" else core.allocate("host", runs.count * length)
                runs.gather(around, together)
                if together is not memory:
                    self._copy([(together.buffer, memory.buffer)], together, memory)
        return self._given(memory, info, shape)
