"""Names of Gluon that differ between Triton 3.6 and later."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
REINTERPRET_IS_PUBLIC = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
