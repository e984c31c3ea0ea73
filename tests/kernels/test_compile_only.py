"""A pass over launches that compiles and runs nothing, with no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_each_kernel_and_its_launcher_is_made_once_and_found_the_next_time(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kernels.compile_only_sm90"]
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    counted = [
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]
    launchers = ["_rms_norm_kernel", "_rms_norm_kernel"]
    assert counted == [[1, 0, 2, [4, 256], launchers], [0, 2, 0, [4, 256], launchers]]
