"""What ptxas makes of the products with experts for Hopper, with no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED_BYTES_LIMIT = 227 * 1024
# One of the smallest tiles and the other layout of gate and up, one of the largest tiles.
CASES = ["gpt-oss 32", "mixtral 2048"]


@pytest.fixture(scope="module")
def products() -> list[dict[str, Any]]:
    # A process of its own: this one has chosen Triton's interpreter.
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.experts_compile_sm90", *CASES],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any(report["LDL"] or report["STL"] for report in reports), "something spills"
    return [report for report in reports if report["kernel"] == "_expert_kernel"]


def test_rows_go_by_the_copy_engine_to_the_warpgroup_matrix_unit(
    products: list[dict[str, Any]],
) -> None:
    assert len(products) == 2 * len(CASES)
    assert all(report["HGMMA"] and not report["HMMA"] for report in products)
    assert all(report["UTMALDG"] and report["LDGSTS"] for report in products)


def test_two_programs_of_few_pairs_fit_on_a_core(products: list[dict[str, Any]]) -> None:
    small = [report for report in products if report["case"] == "gpt-oss 32"]
    assert all(2 * report["shared_bytes"] <= SHARED_BYTES_LIMIT for report in small)
    assert all(report["shared_bytes"] <= SHARED_BYTES_LIMIT for report in products)
