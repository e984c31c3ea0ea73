"""Rows of the tables that benchmarks on GPUs print and append to a CSV, with their provenance."""

import csv
import datetime
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from tests.bench.gpu_dummy import commit_of_checkout

FIELDS = ["date", "gpu", "torch", "triton", "commit", "case", "value", "unit", "vllm", "goal"]


@dataclass(frozen=True)
class Row:
    case: str
    value: float
    unit: str
    vllm: float | None = None
    """vLLM 0.26.0 with FlashAttention 3 on one H200."""
    goal: float | None = None


def print_row(row: Row) -> None:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"

    print(
        f"{row.case:36} {shown(row.value):>10} {row.unit:13} "
        f"vLLM {shown(row.vllm):>7}  goal {shown(row.goal):>7}",
        flush=True,
    )


def append_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                    "gpu": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "triton": triton.__version__,
                    "commit": commit_of_checkout(),
                    "case": row.case,
                    "value": f"{row.value:.4g}" if row.value < 100 else f"{row.value:.0f}",
                    "unit": row.unit,
                    "vllm": row.vllm,
                    "goal": row.goal,
                }
            )
