"""The Triton kernels and their launchers; imported only by a process that runs them.

A launcher takes tensors on one GPU (or on a CPU under Triton's interpreter), chooses block shapes
and launches on the current stream; it never synchronises.
"""

import os

# Triton 3.9 warns at the first compilation unless this says which default is meant.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
