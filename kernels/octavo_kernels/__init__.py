"""Triton kernels, each with a plain PyTorch reference that is the oracle and the CPU path."""
