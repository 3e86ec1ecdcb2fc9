#!/usr/bin/env python3
"""Programs that know GPUDirect Storage under cuFile's name, each with reads and writes that are compared.

    sidestep run -- python3 tests/cufile/clients.py FOLDER

Each client is a row: passed, failed, or skipped with its reason. The last line counts them. The exit code is 1 if one
failed. FOLDER takes about 2 GiB. A GPU is needed."""

import ctypes
import importlib
import os
import pathlib
import struct
import sys
import time
import traceback
import warnings


class Skipped(Exception):
    """The reason why a client was not run."""


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(str(error)) from error


def libraries():
    """The libraries of this process that carry cuFile's calls, by path."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if "cufile" in os.path.basename(path) and ".so" in path)


def content(size, seed):
    return bytes((seed * 131 + i * 7) & 0xFF for i in range(4096)) * (size // 4096 + 1)


def torch_gds(folder):
    """torch.cuda.gds: a storage is saved and loaded, registered and not, at an offset that is aligned and one that is not."""
    torch = module("torch")
    gds = module("torch.cuda.gds")
    count = 0
    for registered in (False, True):
        for offset in (0, 4096, 12345):
            path = folder / f"torch-{registered}-{offset}"
            saved = torch.randint(0, 255, (3 << 20,), dtype=torch.uint8, device="cuda")
            loaded = torch.zeros_like(saved)
            torch.cuda.synchronize()
            for tensor in (saved, loaded) if registered else ():
                gds.gds_register_buffer(tensor.untyped_storage())
            file = gds.GdsFile(str(path), os.O_CREAT | os.O_RDWR)
            file.save_storage(saved.untyped_storage(), offset)
            file.load_storage(loaded.untyped_storage(), offset)
            for tensor in (saved, loaded) if registered else ():
                gds.gds_deregister_buffer(tensor.untyped_storage())
            assert torch.equal(saved, loaded), path
            with open(path, "rb") as plain:
                plain.seek(offset)
                assert plain.read(saved.numel()) == bytes(saved.cpu().numpy()), path
            count += 1
    return f"{count} storages saved, loaded and compared"


def kvikio_files(folder):
    """KvikIO without its own POSIX path: whole files, futures, and calls on a stream."""
    kvikio = module("kvikio")
    module("kvikio.defaults")
    cupy = module("cupy")
    numpy = module("numpy")
    path = folder / "kvikio"
    with kvikio.defaults.set({"compat_mode": kvikio.CompatMode.OFF, "num_threads": 4}):
        saved = cupy.random.randint(0, 255, 5_000_003, dtype=cupy.uint8)
        with kvikio.CuFile(path, "w") as file:
            assert file.write(saved) == saved.nbytes
        assert path.read_bytes() == saved.get().tobytes()
        with kvikio.CuFile(path, "r") as file:
            for at, size in ((0, saved.size), (1, 4096), (4095, 1_000_001), (saved.size - 10, 10)):
                loaded = cupy.zeros(size, dtype=cupy.uint8)
                assert file.read(loaded, file_offset=at) == size
                assert bool((loaded == saved[at:at + size]).all()), (at, size)
            loaded = cupy.zeros_like(saved)
            futures = [file.pread(loaded[at:at + 500_000], file_offset=at) for at in range(0, saved.size, 500_000)]
            assert sum(future.get() for future in futures) == saved.size
            assert bool((loaded == saved).all())
            host = numpy.zeros(saved.size, dtype=numpy.uint8)
            assert file.read(host) == saved.size and (host == saved.get()).all()
        stream = cupy.cuda.Stream(non_blocking=True)
        with kvikio.CuFile(path, "r+") as file:
            changed = cupy.ascontiguousarray(cupy.flip(saved))
            cupy.cuda.runtime.deviceSynchronize()
            assert file.raw_write_async(changed, stream.ptr).check_bytes_done() == changed.nbytes
            loaded = cupy.zeros_like(changed)
            cupy.cuda.runtime.deviceSynchronize()
            assert file.raw_read_async(loaded, stream.ptr).check_bytes_done() == changed.nbytes
            stream.synchronize()
            assert bool((loaded == changed).all())
    return f"version {kvikio.__version__}: files, futures, host memory and a stream compared"


def safetensors_file(path, tensors):
    """Writes {name: bytes} as U8 tensors."""
    header, at = "", 0
    for name, data in tensors.items():
        header += f'{"," if header else ""}"{name}":{{"dtype":"U8","shape":[{len(data)}],"data_offsets":[{at},{at + len(data)}]}}'
        at += len(data)
    header = ("{" + header + "}").encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(tensors.values()))


def fastsafetensors_gds(folder):
    """fastsafetensors with GDS, beside its own path without."""
    fast = module("fastsafetensors")
    torch = module("torch")
    path = folder / "fast.safetensors"
    tensors = {f"layer.{i}": content(256 << 20, i)[:(256 << 20) - 3 * i] for i in range(8)}
    safetensors_file(path, tensors)
    seconds = {}
    for nogds in (True, False, True, False):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            began = time.perf_counter()
            loader = fast.SafeTensorsFileLoader(fast.SingleGroup(), torch.device("cuda:0"), nogds=nogds)
            loader.add_filenames({0: [str(path)]})
            buffers = loader.copy_files_to_device()
            torch.cuda.synchronize()
            took = time.perf_counter() - began
        for warning in said:
            if not nogds and "nogds" in str(warning.message):
                raise Skipped(f"it calls no cuFile here: {warning.message}")
        seconds[nogds] = min(seconds.get(nogds, took), took)
        for name, data in tensors.items():
            expected = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            assert torch.equal(buffers.get_tensor(name).cpu(), expected), (nogds, name)
        buffers.close()
        loader.close()
    size = path.stat().st_size / 1e9
    return (f"8 tensors compared; {size / seconds[False]:.2f} GB/s with GDS, "
            f"{size / seconds[True]:.2f} GB/s without, {seconds[True] / seconds[False]:.1f} times as quick")


def nixl_plugin(folder, backend):
    api = module("nixl._api")
    torch = module("torch")
    size, blocks = 1 << 20, 16
    path = folder / f"nixl-{backend}"
    agent = api.nixl_agent(f"sidestep-{backend}", api.nixl_agent_config(backends=[]))
    if backend not in agent.get_plugin_list():
        raise Skipped(f"this NIXL has no plugin {backend}")
    agent.create_backend(backend)
    saved = torch.randint(0, 255, (size * blocks,), dtype=torch.uint8, device="cuda")
    loaded = torch.zeros_like(saved)
    torch.cuda.synchronize()
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, size * blocks)
    try:
        for tensor, way in ((saved, "WRITE"), (loaded, "READ")):
            memory = [(tensor.data_ptr() + i * size, size, 0, str(i)) for i in range(blocks)]
            file = [(i * size, size, fd, str(i)) for i in range(blocks)]
            registered = [agent.register_memory(memory, "VRAM"), agent.register_memory(file, "FILE")]
            transfer = agent.initialize_xfer(way, registered[0].trim(), registered[1].trim(), agent.name)
            state = agent.transfer(transfer)
            until = time.monotonic() + 30
            while state not in ("DONE", "ERR"):
                assert time.monotonic() < until, "no end after 30 s"
                state = agent.check_xfer_state(transfer)
            assert state == "DONE", state
            agent.release_xfer_handle(transfer)
            for descriptors in registered:
                agent.deregister_memory(descriptors)
    finally:
        os.close(fd)
    assert torch.equal(saved, loaded)
    assert path.read_bytes() == bytes(saved.cpu().numpy())
    return f"{blocks} blocks of {size} bytes written, read and compared"


def nixl_gds(folder):
    """NIXL's GDS plugin, which uses batches."""
    return nixl_plugin(folder, "GDS")


def nixl_gds_mt(folder):
    """NIXL's GDS_MT plugin, which uses plain calls of many threads."""
    return nixl_plugin(folder, "GDS_MT")


def which_library(folder):
    """The calls are those of the preloaded library, also where NVIDIA's is loaded beside it."""
    handle = ctypes.CDLL("libcufile.so.0")
    preloaded = [os.path.realpath(path) for path in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()]
    own = [path for path in libraries() if os.path.realpath(path) in preloaded]
    assert own, f"no library under cuFile's name is preloaded: {libraries()}"
    ours = ctypes.CDLL(own[0])
    address = ctypes.cast(handle.cuFileRead, ctypes.c_void_p).value
    assert address == ctypes.cast(ours.cuFileRead, ctypes.c_void_p).value, f"cuFileRead is not that of {own[0]}"
    version = ctypes.c_int()

    class Error(ctypes.Structure):
        _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]

    handle.cuFileGetVersion.restype = Error
    assert handle.cuFileGetVersion(ctypes.byref(version)).err == 0
    return f"cuFileRead is that of {own[0]}, version {version.value}"


CLIENTS = (torch_gds, kvikio_files, fastsafetensors_gds, nixl_gds, nixl_gds_mt, which_library)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[2:]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for client in CLIENTS:
        if wanted and client.__name__ not in wanted:
            continue
        try:
            verdict, words = "passed", client(folder)
        except Skipped as reason:
            verdict, words = "skipped", str(reason)
        except Exception as error:  # any other is a failure of that client alone
            traceback.print_exc()
            verdict, words = "failed", f"{type(error).__name__}: {error}"
        counts[verdict] += 1
        print(f"{client.__name__:<20} {verdict:<8} {words}", flush=True)
    print("clients: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
