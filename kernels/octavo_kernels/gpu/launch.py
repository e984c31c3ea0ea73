"""How kernels follow each other: by programmatic dependent launch where the chip has it.

A kernel launched so may start before the one before it has ended. It must call `wait_for_previous`
before it touches anything that another kernel writes; what it may do before is load constants.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Waits for the kernel before this one, then lets the one behind start.

    In this order all that ran two kernels ago is visible to a kernel even before its own wait.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def let_next_start(TRIGGERS: tl.constexpr):
    """For a kernel that is not launched so itself: the one behind may wait for it on the chip."""
    if TRIGGERS:
        gdc_launch_dependents()


def overlap_options(device: torch.device) -> dict[str, Any]:
    """Arguments for a launch of a kernel that has an OVERLAP parameter."""
    if can_overlap(device):
        return {"OVERLAP": True, "launch_pdl": True}
    return {"OVERLAP": False}


def can_overlap(device: torch.device) -> bool:
    return device.type == "cuda" and capability(device)[0] >= 9


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """Of a CUDA device; asked once, because it stands in the path of every launch."""
    return torch.cuda.get_device_capability(device)


@functools.cache
def num_cores(device: torch.device) -> int:
    """Multiprocessors of a GPU; a small number under the interpreter."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
