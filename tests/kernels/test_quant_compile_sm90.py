"""What ptxas makes of the products with packed weights for Hopper, with no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED_BYTES_LIMIT = 227 * 1024


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    script = Path(__file__).with_name("quant_compile_sm90.py")
    # A process of its own: this one has chosen Triton's interpreter.
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.quant_compile_sm90"],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=script.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["case"]: line for line in lines}


def test_nothing_spills(reports: dict[str, dict[str, Any]]) -> None:
    spilled = {case for case, report in reports.items() if report["LDL"] or report["STL"]}
    assert spilled == set()


def test_shared_memory_fits(reports: dict[str, dict[str, Any]]) -> None:
    assert max(report["shared_bytes"] for report in reports.values()) <= SHARED_BYTES_LIMIT


@pytest.mark.parametrize(
    "case", ["int4 1", "int4 zeros 16", "int4 gate 64", "fp8 1", "fp8 blocks 32"]
)
def test_words_go_by_the_copy_engine_to_the_warpgroup_matrix_unit(
    reports: dict[str, dict[str, Any]], case: str
) -> None:
    assert reports[case]["HGMMA"] > 0
    assert reports[case]["HMMA"] == 0
    assert reports[case]["UTMALDG"] > 0


@pytest.mark.parametrize("case", ["int4 1", "int4 zeros 16", "fp8 short 1"])
def test_two_programs_of_few_tokens_fit_on_a_core(
    reports: dict[str, dict[str, Any]], case: str
) -> None:
    assert 2 * reports[case]["shared_bytes"] <= SHARED_BYTES_LIMIT
    assert reports[case]["registers"] <= 128
