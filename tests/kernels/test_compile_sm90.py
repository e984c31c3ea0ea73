"""What ptxas makes of the kernels for Hopper, with no GPU: no spills, matrix units used."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# rows, page size, head dimension of the attention launches;
# bfloat16, 32 query and 8 KV heads, pages in e4m3 where it says so
ATTENTION = ["1,64,128", "32,64,128", "32,16,128", "4,64,256", "4,128,128", "32,64,128 e4m3"]
SHARED_BYTES_LIMIT = 227 * 1024


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    script = Path(__file__).with_name("compile_sm90.py")
    cases = ["small", "step", *ATTENTION]
    # A process of its own: this one has chosen Triton's interpreter.
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_sm90", *cases],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=script.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of(reports: list[dict[str, Any]], kernel: str, case: str) -> dict[str, Any]:
    (report,) = (r for r in reports if r["kernel"] == kernel and r["case"] == case)
    return report


def test_every_kernel_compiles(reports: list[dict[str, Any]]) -> None:
    assert {report["kernel"] for report in reports} >= {
        "_rms_norm_kernel",
        "_all_reduce_kernel",
        "_word_sum_kernel",
        "_all_gather_kernel",
        "_part_kernel",
        "_largest_kernel",
        "_first_kernel",
        "_gated_mul_kernel",
        "_hopper_gated_kernel",
        "_rope_kernel",
        "_draw_kernel",
        "_profile_kernel",
        "_gather_kernel",
        "_choose_kernel",
        "_plan_kernel",
        "_decode_kernel",
        "_prefill_kernel",
        "_hopper_prefill_kernel",
        "_merge_kernel",
        "_write_words_kernel",
        "_decode_inputs_kernel",
        "_sampling_inputs_kernel",
        "_commit_sampled_kernel",
        "_kv_write_kernel",
        "_skinny_kernel",
        "_hopper_skinny_kernel",
        "_single_row_kernel",
    }


def test_nothing_spills(reports: list[dict[str, Any]]) -> None:
    spilled = [r for r in reports if r["LDL"] or r["STL"] or r["stack_bytes"]]
    assert spilled == []


def test_shared_memory_fits(reports: list[dict[str, Any]]) -> None:
    assert max(report["shared_bytes"] for report in reports) <= SHARED_BYTES_LIMIT


@pytest.mark.parametrize("case", ["1,64,128", "32,16,128", "4,64,256", "4,128,128"])
def test_prefill_runs_on_the_warpgroup_matrix_unit(
    reports: list[dict[str, Any]], case: str
) -> None:
    report = of(reports, "_prefill_kernel", case)
    assert report["HGMMA"] > 0
    assert report["HMMA"] == 0


def test_the_gluon_prefill_keeps_its_pipeline(reports: list[dict[str, Any]]) -> None:
    report = of(reports, "_hopper_prefill_kernel", "1,64,128")
    assert report["HGMMA"] > 0
    assert report["UTMALDG"] > 0
    assert (
        report["registers"] == 168
    )  # what 240 for the consumers and 24 for the producer add up to


def test_decode_of_a_middle_batch_runs_keys_first(reports: list[dict[str, Any]]) -> None:
    assert of(reports, "_decode_kernel", "32,64,128")["HGMMA"] > 0
    assert of(reports, "_decode_kernel", "1,64,128")["HMMA"] > 0


def test_pages_in_e4m3_meet_the_warpgroup_matrix_unit(reports: list[dict[str, Any]]) -> None:
    for kernel in ("_decode_kernel", "_prefill_kernel"):
        report = of(reports, kernel, "32,64,128 e4m3")
        assert report["HGMMA"] > 0
        assert report["UTMALDG"] > 0


def test_pages_of_a_block_of_keys_come_by_the_copy_engine(reports: list[dict[str, Any]]) -> None:
    assert of(reports, "_decode_kernel", "1,64,128")["UTMALDG"] > 0
    assert of(reports, "_prefill_kernel", "1,64,128")["UTMALDG"] > 0
    assert of(reports, "_decode_kernel", "32,16,128")["LDGSTS"] > 0


def test_products_of_few_tokens_meet_the_warpgroup_matrix_unit(
    reports: list[dict[str, Any]],
) -> None:
    products = [report for report in reports if report["kernel"] == "_skinny_kernel"]
    assert len(products) == 4
    assert all(report["HGMMA"] > 0 and report["UTMALDG"] > 0 for report in products)


def test_products_whose_weights_are_on_their_way_have_a_core_each(
    reports: list[dict[str, Any]],
) -> None:
    products = [report for report in reports if report["kernel"] == "_hopper_skinny_kernel"]
    assert len(products) == 4
    assert all(report["HGMMA"] > 0 and report["UTMALDG"] > 0 for report in products)
    assert min(report["shared_bytes"] for report in products) > SHARED_BYTES_LIMIT / 2
