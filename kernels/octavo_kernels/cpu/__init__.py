"""The hot ops on a CPU in bfloat16, compiled by numba where it is installed.

Between two products of a decode step PyTorch needs some thirty small ops and a copy of all visible
keys and values; each of these is one pass. `run` chooses: what they do not cover (another dtype,
an odd layout, no numba) runs by `reference`, which is their oracle too.
"""
