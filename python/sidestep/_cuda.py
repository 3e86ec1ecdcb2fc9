"""What must be asked of the CUDA driver itself: which number it gives a GPU, and to wait for one."""

import ctypes
import functools
from typing import Any, Dict, Mapping, Optional, Tuple

from ._errors import Error


@functools.lru_cache(maxsize=1)
def _driver() -> Optional[ctypes.CDLL]:
    """The driver, made ready; None where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _address(bus_id: str) -> Optional[Tuple[int, ...]]:
    """'0000:1B:00.0', with a domain of four or eight digits, as numbers."""
    try:
        domain, bus, rest = bus_id.split(":")
        return int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    except ValueError:
        return None


def numbers(bus_ids: Mapping[int, str]) -> Dict[int, int]:
    """CUDA's number of each GPU, by NVML's; -1 for one that CUDA_VISIBLE_DEVICES hides. NVML's order, which places use, and CUDA's
    differ with that variable and with CUDA_DEVICE_ORDER."""
    driver = _driver()
    found = {}
    count = ctypes.c_int(0)
    if driver is not None and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for number in range(count.value):
            device, text = ctypes.c_int(0), ctypes.create_string_buffer(32)
            if driver.cuDeviceGet(ctypes.byref(device), number) == 0 and \
                    driver.cuDeviceGetPCIBusId(text, len(text), device) == 0:
                found[_address(text.value.decode())] = number
    return {gpu: found.get(_address(bus_id), -1) for gpu, bus_id in bus_ids.items()}


def synchronize(number: int) -> None:
    """Waits until a GPU has done all work of this process. Without the GIL, as all calls of ctypes."""
    driver = _driver()
    if driver is None:
        raise Error("there is no CUDA driver", "unsupported", f"cuda:{number}")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code != 0:
            raise Error(f"{name} failed with {code}", "device_error", f"cuda:{number}")

    device, context = ctypes.c_int(0), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), number)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            call("cuCtxSynchronize")
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
