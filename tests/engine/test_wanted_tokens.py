"""The last layer computes only tokens that are wanted: the same numbers as if it computed all."""

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
import torch
from tests.engine.tiny_models import COMMON, FAMILY_CONFIGS, VOCAB_SIZE

from octavo_engine.batch import AdmittedRow, RowWork
from octavo_engine.layers.context import StepContext
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_file import parse_config
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import build_model_config
from octavo_engine.parallel.group import SoloGroup
from octavo_engine.runner.inputs import InputsBuilder, StepInputs, rotated_lens
from octavo_engine.runner.kv_cache import KVCache, PageShape
from octavo_engine.runner.request_table import RequestTable, RowInfo
from octavo_engine.runner.rope_tables import RopeTables
from octavo_engine.runner.wanted import are_all_tokens_wanted
from octavo_engine.sampling_params import SamplingParams
from octavo_kernels import KVScales

CPU = torch.device("cpu")
BLOCK_SIZE = 16
PLAIN = SamplingParams(temperature=0.0)
WITH_LOGPROBS = SamplingParams(temperature=0.0, prompt_logprobs=2)
LENGTHS = [41, 30, 17, 40, 1, 60]
MIX = [
    RowWork(3, 39, 1, True, "decode"),
    RowWork(0, 0, 41, True, "prefill"),  # ends in the middle of a page
    RowWork(1, 0, 21, False, "prefill"),  # to be continued
    RowWork(2, 16, 1, True, "prefill"),  # the one token left of a chunked prompt
    RowWork(4, 0, 1, True, "prefill"),
    RowWork(5, 56, 4, True, "decode"),
]
BEFORE = [
    RowWork(3, 0, 39, False, "prefill"),
    RowWork(2, 0, 16, False, "prefill"),
    RowWork(5, 0, 56, False, "prefill"),
]
"""What the rows of MIX have done by then."""


@dataclass(frozen=True)
class _CountedGroup(SoloGroup):
    """Of one rank; notes of how many rows each sum is that it is asked for."""

    num_rows: list[int] = field(default_factory=list)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.num_rows.append(len(x))
        return x

    def all_reduce_add_rms_norm(self, x: torch.Tensor, *rest: Any) -> Any:
        self.num_rows.append(len(x))
        return super().all_reduce_add_rms_norm(x, *rest)


@dataclass
class _Rig:
    """A decoder with steps made as a runner makes them."""

    name: str
    page_dtype: torch.dtype = torch.float32
    params: SamplingParams = PLAIN
    group: _CountedGroup = field(default_factory=_CountedGroup)

    def __post_init__(self) -> None:
        raw = {**COMMON, **FAMILY_CONFIGS[self.name], "model_type": self.name.partition("-")[0]}
        config = build_model_config(parse_config(raw, "a test's config"))
        groups = kv_groups([layer.window for layer in config.layers])
        self.decoder = Decoder(config, groups, Build(CPU, torch.float32, group=self.group))
        generator = torch.Generator().manual_seed(2)
        for slot in self.decoder.slots():
            drawn = torch.randn(slot.shape, generator=generator)
            slot.write(drawn * 0.2 if drawn.dim() > 1 else 1 + 0.2 * drawn)
        self.decoder.finish()
        self.ropes = RopeTables(self.decoder.ropes, max_model_len=256, device=CPU)
        num_blocks = 1 + len(groups) * 4 * len(LENGTHS)
        shape = PageShape(
            num_kv_heads=config.num_kv_heads,
            block_size=BLOCK_SIZE,
            head_dim=config.head_dim,
            dtype=self.page_dtype,
        )
        scale = torch.full((config.num_kv_heads,), 0.02)
        scales = [KVScales(scale, scale)] * len(config.layers)
        self.cache = KVCache(
            groups,
            shape,
            num_blocks=num_blocks,
            num_host_blocks=0,
            device=CPU,
            scales=scales if self.page_dtype == torch.float8_e4m3fn else None,
        )
        self.table = RequestTable(
            max_num_rows=len(LENGTHS),
            max_model_len=256,
            num_groups=len(groups),
            block_size=BLOCK_SIZE,
            device=CPU,
        )
        self.inputs = InputsBuilder(
            groups,
            num_q_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            block_size=BLOCK_SIZE,
            device=CPU,
        )
        self._admit(len(groups))
        self.run(BEFORE)

    def _admit(self, num_groups: int) -> None:
        for row, length in enumerate(LENGTHS):
            first = 1 + 4 * num_groups * row
            self.table.admit(
                AdmittedRow(
                    row=row,
                    token_ids=[(3 + 7 * idx * (row + 1)) % VOCAB_SIZE for idx in range(length)],
                    num_prompt_tokens=length,
                    params=self.params,
                    seed=0,
                    block_tables=[
                        list(range(first + 4 * idx, first + 4 * idx + 4))
                        for idx in range(num_groups)
                    ],
                )
            )

    def run(self, work: list[RowWork], **changes: Any) -> tuple[StepInputs, torch.Tensor]:
        inputs = self.inputs.build(work, self.table)
        lens = None
        if self.ropes.needs_seq_lens:
            of_all_known = self.ropes.turns_whole_sequences
            lens = rotated_lens(inputs, self.table, of_all_known=of_all_known)
        context = StepContext(inputs.groups, self.ropes.step(inputs.positions, lens), inputs.wanted)
        self.group.num_rows.clear()
        with torch.inference_mode():
            hidden = self.decoder.hidden_states(
                inputs.token_ids, replace(context, **changes), self.cache.layers
            )
        return inputs, hidden

    def pages(self) -> torch.Tensor:
        return torch.stack([torch.stack((layer.k, layer.v)).float() for layer in self.cache.layers])

    def rows_of_products(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
        """Filled by later runs: of how many tokens each layer's parts were asked."""
        seen: dict[str, list[int]] = {"mlp": [], "output": []}
        for block in self.decoder.blocks:
            for owner, name in ((block, "mlp"), (block.attention, "output")):
                monkeypatch.setattr(owner, name, _noted(getattr(owner, name), seen[name]))
        return seen


def _noted(part: Any, seen: list[int]) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return part(x)

    return run


NUM_TOKENS = sum(item.num_tokens for item in MIX)
NUM_SAMPLING = sum(item.samples for item in MIX)
CASES = [(name, torch.float32) for name in FAMILY_CONFIGS] + [("gemma3_text", torch.float8_e4m3fn)]


@pytest.mark.parametrize(("name", "page_dtype"), CASES)
def test_wanted_tokens_come_out_as_if_all_were_computed(name: str, page_dtype: torch.dtype) -> None:
    rig = _Rig(name, page_dtype)
    inputs, found = rig.run(MIX)
    pages = rig.pages()
    _, whole = rig.run(MIX, wanted=None)
    assert len(found) == NUM_SAMPLING < len(whole) == NUM_TOKENS
    expected = whole[inputs.sampling_tokens]
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 1e-5
    assert torch.equal(rig.pages(), pages), "keys and values are those of all tokens"


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_moe", "olmo2", "granite"])
def test_the_last_layer_multiplies_rows_that_sample_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _Rig(name)
    seen = rig.rows_of_products(monkeypatch)
    rig.run(MIX)
    num_layers = len(rig.decoder.blocks)
    expected = [NUM_TOKENS] * (num_layers - 1) + [NUM_SAMPLING]
    assert seen == {"mlp": expected, "output": expected}
    assert rig.group.num_rows[-2:] == [NUM_SAMPLING] * 2, "ranks add up no more than that"
    assert set(rig.group.num_rows[:-2]) == {NUM_TOKENS}


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_moe"])
def test_a_step_that_samples_nothing_ends_with_its_keys_and_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _Rig(name)
    work = [msgspec.structs.replace(item, samples=False) for item in MIX]
    rig.run(work, wanted=None)
    pages = rig.pages()
    num_sums = len(rig.group.num_rows)
    for layer in rig.cache.layers:
        layer.k.zero_()
        layer.v.zero_()
    rig.run(BEFORE)
    seen = rig.rows_of_products(monkeypatch)
    _, hidden = rig.run(work)
    assert hidden.shape == (0, COMMON["hidden_size"])
    num_layers = len(rig.decoder.blocks)
    assert {name: len(counts) for name, counts in seen.items()} == {
        "mlp": num_layers - 1,
        "output": num_layers - 1,
    }
    assert len(rig.group.num_rows) == num_sums - 2
    assert torch.equal(rig.pages(), pages)


def test_decodes_are_all_wanted_as_they_are() -> None:
    inputs, hidden = _Rig("llama").run([MIX[0], MIX[3], MIX[4]])
    assert inputs.wanted is None
    assert len(hidden) == 3


def test_logprobs_of_a_prompt_want_its_whole_step() -> None:
    inputs, hidden = _Rig("llama", params=WITH_LOGPROBS).run(MIX)
    assert inputs.wanted is None
    assert len(hidden) == NUM_TOKENS


@pytest.mark.parametrize(
    ("item", "params", "num_prompt_tokens", "expected"),
    [
        (RowWork(0, 0, 8, False, "prefill"), PLAIN, 20, False),
        (RowWork(0, 0, 8, False, "prefill"), WITH_LOGPROBS, 20, True),
        (RowWork(0, 18, 1, False, "prefill"), WITH_LOGPROBS, 20, True),
        # The prompt's last token gives the logprobs of none of its own.
        (RowWork(0, 19, 4, True, "prefill"), WITH_LOGPROBS, 20, False),
        (RowWork(0, 25, 1, True, "decode"), PLAIN, 20, True),
        (RowWork(0, 25, 2, True, "decode"), PLAIN, 20, False),
        (RowWork(0, 25, 1, False, "prefill"), PLAIN, 20, False),
    ],
)
def test_what_makes_a_step_want_all_its_tokens(
    item: RowWork, params: SamplingParams, num_prompt_tokens: int, expected: bool
) -> None:
    info = RowInfo(params, 0, num_prompt_tokens, num_prompt_tokens)
    assert are_all_tokens_wanted([item], [info]) == expected
