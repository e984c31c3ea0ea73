"""What of a start on a GPU needs neither torch nor a model, on a thread beside torch's import.

    context       of the first GPU: torch takes it as its own when it needs one
    triton's key  a digest of its compiler, half a gigabyte, without which no kernel is found

Both wait for the driver or hash: they leave the interpreter to the import. A failure is no news
here: who needs either meets it again and says so.
"""

import ctypes
import os
import threading

import structlog

log = structlog.get_logger(__name__)

_DRIVER = "libcuda.so.1"


def prepare_gpu() -> threading.Thread:
    # As torch has it: kernels of libraries are loaded when they are first launched.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    thread = threading.Thread(target=_prepare, name="octavo-gpu-ahead", daemon=True)
    thread.start()
    return thread


def _prepare() -> None:
    try:
        make_context(ctypes.CDLL(_DRIVER))
        from triton.runtime.cache import triton_key

        triton_key()
    except (OSError, ImportError, RuntimeError) as error:
        log.debug("gpu_not_prepared", error=str(error))


def make_context(driver: ctypes.CDLL) -> None:
    """The first GPU's primary context, which stays for the life of the process. Raises RuntimeError
    with the driver's code."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuInit", driver.cuInit(0))
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), 0))
    retained = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _check("cuDevicePrimaryCtxRetain", retained)


def _check(call: str, code: int) -> None:
    if code != 0:
        raise RuntimeError(f"{call} failed with {code}")
