"""A process for `test_generate.py` to kill: `generate_file` over a slow fake runner.

python -m tests.engine.generate_child INPUT OUTPUT SECONDS_A_STEP
"""

import sys
from pathlib import Path

from tests.engine import byte_tokenizer
from tests.engine.fake_runner import FakeRunner

from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.offline.generate import BatchSummary, generate_file


def run(input_path: Path, output_path: Path, runner: FakeRunner) -> BatchSummary:
    runner.vocab_size = byte_tokenizer.VOCAB_SIZE
    engine = InProcessEngine(runner, SchedulerSettings())
    try:
        return generate_file(
            engine,
            byte_tokenizer.make_tokenizer(),
            input_path,
            output_path,
            served_model_names=("tiny",),
            is_progress_shown=False,
        )
    finally:
        engine.close_blocking()


if __name__ == "__main__":
    seconds = float(sys.argv[3])
    run(Path(sys.argv[1]), Path(sys.argv[2]), FakeRunner(step_seconds=lambda batch: seconds))
