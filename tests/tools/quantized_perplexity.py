"""Perplexity of a quantised checkpoint in this engine and in its tool's own reference; outside CI.

usage:
  python -m tests.tools.quantized_perplexity make nf4|int8 OUT    SmolLM2 by bitsandbytes
  python -m tests.tools.quantized_perplexity compare FOLDER       any quantised checkpoint

The reference is transformers in float32, with the weights dequantised by bitsandbytes or loaded by
the library that the checkpoint's config names (compressed-tensors, gptqmodel), which must be there.
Exits with 1 when the engine's perplexity is more than 0.5 % above the reference's.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tests.engine.runner_driver import Job, run_jobs
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams

TEXT = Path(__file__).parents[2] / "LICENSE"
WINDOW_LEN = 256
NUM_WINDOWS = 4
ALLOWED_RATIO = 1.005


def windows(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    token_ids: list[int] = tokenizer(TEXT.read_text())["input_ids"]
    return [
        token_ids[first : first + WINDOW_LEN]
        for first in range(0, NUM_WINDOWS * WINDOW_LEN, WINDOW_LEN)
    ]


def engine_perplexity(folder: Path, prompts: list[list[int]]) -> float:
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", dtype="float32"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.5),
        )
    )
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    outcomes = run_jobs(runner, [Job(prompt, 1, params) for prompt in prompts])
    runner.close()
    logprobs = [
        position.chosen.logprob
        for result in outcomes[0].results
        for entry in result.prompt_logprobs
        for position in entry.positions
    ]
    expected = sum(len(prompt) - 1 for prompt in prompts)
    if len(logprobs) != expected:
        raise RuntimeError(f"{len(logprobs)} prompt logprobs instead of {expected}")
    return math.exp(-sum(logprobs) / len(logprobs))


@torch.inference_mode()
def reference_perplexity(model: Any, prompts: list[list[int]]) -> float:
    losses = []
    for prompt in prompts:
        token_ids = torch.tensor([prompt])
        logits = model(token_ids).logits[0, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits, token_ids[0, 1:]))
    return math.exp(float(torch.stack(losses).mean()))


def load_reference(folder: Path, scratch: Path) -> Any:
    config = json.loads((folder / "config.json").read_text())
    if config["quantization_config"]["quant_method"] == "bitsandbytes":
        from tests.fixtures.make_bitsandbytes import reference_model

        return reference_model(folder, scratch)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make(kind: str, out: Path) -> None:
    from tests.fixtures.make_bitsandbytes import quantize
    from tests.tools.smollm2 import smollm2_folder

    parent = smollm2_folder()
    quantize(parent, out, kind)
    AutoTokenizer.from_pretrained(parent).save_pretrained(out)


def compare(folder: Path) -> bool:
    prompts = windows(folder)
    with tempfile.TemporaryDirectory() as scratch:
        reference = reference_perplexity(load_reference(folder, Path(scratch)), prompts)
    engine = engine_perplexity(folder, prompts)
    ratio = engine / reference
    print(f"{folder.name}: engine {engine:.4f}, reference {reference:.4f}, ratio {ratio:.5f}")
    return ratio <= ALLOWED_RATIO


def main(arguments: list[str]) -> int:
    match arguments:
        case ["make", kind, out]:
            make(kind, Path(out))
            return 0
        case ["compare", folder]:
            return 0 if compare(Path(folder)) else 1
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
