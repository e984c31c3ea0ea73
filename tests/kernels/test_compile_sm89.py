"""Whether the kernels that every chip runs fit where there is little shared memory, with no GPU."""

import json
import os
import subprocess
import sys

SHARED_BYTES_LIMIT = 99 * 1024
"""Of a program on sm_86 and sm_89 (L4, L40S, RTX 4090)."""


def test_attention_and_products_of_few_tokens_fit_on_chips_smaller_than_hopper() -> None:
    # A process of its own: this one has chosen Triton's interpreter.
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_sm89"],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    launches = [json.loads(line) for line in done.stdout.splitlines()]
    kernels = {launch["kernel"] for launch in launches}
    assert kernels >= {"_prefill_kernel", "_decode_kernel", "_skinny_kernel"}
    assert [one for one in launches if one["shared_bytes"] > SHARED_BYTES_LIMIT] == []
