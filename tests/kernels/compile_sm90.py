"""Compiles launches for sm_90 on a machine without a GPU and reports what ptxas made of them.

Run as a process of its own: it puts a driver that only answers questions in Triton's place, and
turns every launch into a compilation. Prints one JSON line a kernel: name, registers, bytes of
stack and of shared memory, and how often instructions of interest occur.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from tests.kernels.step_launches import step_launches
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from octavo_kernels.gpu import hopper_prefill
from octavo_kernels.gpu.all_reduce import Following, LookUp, all_reduce
from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import decode_attention, decode_config
from octavo_kernels.gpu.gated_mul import silu_mul
from octavo_kernels.gpu.gather import PIECE_LEN, ROWS_A_PIECE, all_gather, first_of_ranks, largest
from octavo_kernels.gpu.hopper_gated import hopper_gated_linear
from octavo_kernels.gpu.logit_changes import changes_table
from octavo_kernels.gpu.mailbox import Mailbox, make_mailboxes
from octavo_kernels.gpu.prefill_attention import prefill_attention, prefill_config
from octavo_kernels.gpu.rms_norm import rms_norm
from octavo_kernels.gpu.rope import rope_kv_write
from octavo_kernels.gpu.sampling import sample
from octavo_kernels.gpu.schedule import plan_decode
from octavo_kernels.gpu.word_sum import word_all_reduce
from octavo_kernels.metadata import KVScales, SamplingTensors

INSTRUCTIONS = ("HGMMA", "HMMA", "UTMALDG", "LDGSTS", "LDL", "STL")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class OfflineDriver:
    """Stands in for the CUDA driver of an H200."""

    class utils:  # noqa: N801  Triton's own name for it
        @staticmethod
        def get_device_properties(device: int) -> dict[str, int]:
            return {
                "multiprocessor_count": 132,
                "max_shared_mem": 232448,
                "warpSize": 32,
                "max_num_regs": 65536,
            }

    @staticmethod
    def launcher_cls(src: Any, metadata: Any) -> None:
        """Nothing is launched."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def report(name: str, compiled: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        code = _run("cuobjdump", "-sass", file.name)
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if match is None:
        raise RuntimeError(f"no resource usage of {name} in {usage!r}")
    counts = {word: len(re.findall(rf"\b{word}", code)) for word in INSTRUCTIONS}
    return {
        "kernel": name,
        "registers": int(match[1]),
        "stack_bytes": int(match[2]),
        "shared_bytes": compiled.metadata.shared,
        **counts,
    }


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run(
        [TOOLS / tool, *arguments], capture_output=True, text=True, check=True
    ).stdout


def collect_launches(
    reports: list[dict[str, Any]],
    offline: OfflineDriver | None = None,
    note: Callable[[str, Any], dict[str, Any]] | None = None,
) -> None:
    """From here on a launch compiles its kernel, appends its report and runs nothing.

    offline: of another chip than an H200. note: instead of `report`.
    """
    driver.set_active(offline or OfflineDriver())
    note = note or report
    compile_or_run = JITFunction.run
    seen: set[int] = set()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = compile_or_run(self, *args, grid=grid, warmup=True, **kwargs)
        if id(compiled) not in seen:
            seen.add(id(compiled))
            reports.append(note(self.fn.__name__, compiled))
        return compiled

    JITFunction.run = run


def attention_launches(rows: int, page: int, head_dim: int, *, is_narrow: bool) -> None:
    """is_narrow: over pages in e4m3."""
    dtype = torch.bfloat16
    q = torch.empty(rows, 32, head_dim, dtype=dtype)
    cache = torch.empty(8, 8, page, head_dim, dtype=dtype)
    scales = None
    if is_narrow:
        cache, scales = cache.to(torch.float8_e4m3fn), KVScales(torch.ones(8), torch.ones(8))
    table = torch.zeros(rows, 4, dtype=torch.int32)
    options = AttentionOptions(scale=head_dim**-0.5, scales=scales)
    lens = torch.ones(rows, dtype=torch.int32)
    plan = plan_decode(lens, num_kv_heads=8, window=None, target_items=16)
    config = decode_config(rows, head_dim, page, 2, tma_possible=True, is_narrow=is_narrow)
    decode_attention(q, cache, cache, q, plan, table, config, options)
    tiles = torch.zeros(3, 4, dtype=torch.int32)
    prefill = prefill_config(head_dim, page, 2, tma_possible=True)
    prefill_attention(q, cache, cache, q, tiles, table, prefill, options)
    if hopper_prefill.can_run(q, cache, options):
        hopper_prefill.hopper_prefill_attention(q, cache, cache, q, tiles, table, options, 132)


def rank_launches(x: torch.Tensor) -> None:
    """What two ranks exchange."""
    box, words = mailbox(x.shape[1], x.dtype), mailbox(ROWS_A_PIECE, torch.int64)
    all_reduce(x, box, Following(x, x[0], 1e-5, 0.0))
    ids = torch.zeros(4, dtype=torch.int64)
    all_reduce(x, box, Following(None, x[0], 1e-5, 0.0), LookUp(ids, 0))
    word_all_reduce(x, mailbox(x.shape[1] // 2, torch.int64), Following(x, x[0], 1e-5, 0.0))
    all_gather(x, mailbox(PIECE_LEN, x.dtype))
    largest(x, words)
    first_of_ranks(ids, words)


def mailbox(width: int, dtype: torch.dtype) -> Mailbox:
    inboxes = [torch.empty(2, 2, 8, width, dtype=dtype) for _ in range(2)]
    flags = [torch.zeros(2, 8, dtype=torch.int32) for _ in range(2)]
    return make_mailboxes(inboxes, flags)[0]


def small_launches() -> None:
    dtype = torch.bfloat16
    x = torch.empty(4, 4096, dtype=dtype)
    rms_norm(x, x[0], 1e-5, residual=x)
    rank_launches(x)
    silu_mul(torch.empty(4, 2 * 14336, dtype=dtype))
    many, weight = torch.empty(128, 4096, dtype=dtype), torch.empty(28672, 4096, dtype=dtype)
    hopper_gated_linear(many, weight, gelu=False)
    q, k = torch.empty(4, 32, 128, dtype=dtype), torch.empty(4, 8, 128, dtype=dtype)
    tables, positions = torch.empty(100, 64), torch.zeros(4, dtype=torch.int64)
    cache = torch.empty(8, 8, 64, 128, dtype=dtype)
    norm = (torch.empty(128, dtype=dtype), torch.empty(128, dtype=dtype))
    arguments = (q, k, k, tables, tables, positions, cache, cache, positions)
    rope_kv_write(*arguments, qk_norm=norm, eps=1e-6)
    numbers = torch.ones(4)
    for all_greedy, any_filter in ((True, False), (False, False), (False, True)):
        params = SamplingTensors(
            temperature=numbers, top_k=numbers.int(), top_p=numbers, min_p=numbers,
            seeds=numbers.long(), positions=numbers.long(),
            all_greedy=all_greedy, any_filter=any_filter,
        )  # fmt: skip
        sample(torch.empty(4, 128256, dtype=dtype), params)
        sample(torch.empty(4, 128256), params, changes_table([None] * 4, numbers.device))


def main(cases: list[str]) -> None:
    reports: list[dict[str, Any]] = []
    collect_launches(reports)
    for case in cases:
        if case == "small":
            small_launches()
        elif case == "step":
            step_launches()
        else:
            numbers, _, kind = case.partition(" ")
            rows, page, head_dim = map(int, numbers.split(","))
            attention_launches(rows, page, head_dim, is_narrow=kind == "e4m3")
        for line in reports:
            print(json.dumps({"case": case} | line))
        reports.clear()


if __name__ == "__main__":
    main(sys.argv[1:])
