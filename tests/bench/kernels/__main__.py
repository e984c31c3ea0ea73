"""Times every kernel: `python -m tests.bench.kernels [--only NAME ...] [--csv FILE]`, on a GPU.

All but the sum over ranks, which needs several: `python -m tests.bench.gpu_ranks`.
"""

import argparse
from pathlib import Path

import torch
from tests.bench.kernels import (
    experts,
    gated_mul,
    kv_write,
    paged_attention,
    quant_linear,
    rms_norm,
    rope,
    row_ops,
    sampling,
    skinny_linear,
)
from tests.bench.kernels.harness import append_csv, run

MODULES = {
    "rms_norm": rms_norm,
    "gated_mul": gated_mul,
    "rope": rope,
    "kv_write": kv_write,
    "sampling": sampling,
    "row_ops": row_ops,
    "paged_attention": paged_attention,
    "skinny_linear": skinny_linear,
    "quant_linear": quant_linear,
    "experts": experts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MODULES), default=list(MODULES))
    parser.add_argument("--csv", type=Path, help="append rows to this file")
    parser.add_argument("--commit", help="what was measured, where git cannot tell")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("these benchmarks need an NVIDIA GPU, and torch sees none")
    timings = []
    for name in options.only:
        timings += run(MODULES[name].cases())
    if options.csv is not None:
        append_csv(options.csv, timings, options.commit)


if __name__ == "__main__":
    main()
