"""The Triton kernels and their launchers; imported only by a process that runs them.

A launcher takes tensors on one GPU (or on a CPU under Triton's interpreter), chooses block shapes
and launches on the current stream; it never synchronises.
"""
