"""The scales of pages in e4m3, one for each KV head of each layer: the checkpoint's, else measured.

Measured by running a few tokens through the model at start-up: a scale puts the largest number that
they make well inside what e4m3 holds. Numbers of e4m3 are as fine near zero as in the middle, so
room above costs nothing. All replicas of a model measure the same. Knows no request.
"""

from collections.abc import Mapping

import torch

from octavo_engine.batch import AdmittedRow, KVGroup, RowWork
from octavo_engine.layers.context import StepContext
from octavo_engine.models.protocol import Model
from octavo_engine.runner.inputs import InputsBuilder, rotated_lens
from octavo_engine.runner.kv_cache import KVCache, PageShape
from octavo_engine.runner.request_table import RequestTable
from octavo_engine.runner.rope_tables import RopeTables
from octavo_engine.sampling_params import SamplingParams
from octavo_kernels import KVScales
from octavo_kernels.metadata import PAGE_MAX

NUM_TOKENS = 256
HEADROOM = 4.0
"""Times the largest number measured that is stored without being cut off."""
STRIDE = 7919
"""A prime: the tokens come from everywhere in the vocabulary."""


def choose_kv_scales(
    stored: Mapping[int, KVScales],
    model: Model,
    groups: tuple[KVGroup, ...],
    shape: PageShape,
    *,
    num_q_heads: int,
    vocab_size: int,
    context_len: int,
    device: torch.device,
) -> list[KVScales]:
    """For each layer. stored: by layer, those of the checkpoint. shape: pages in the model's
    dtype."""
    num_layers = sum(len(group.layer_ids) for group in groups)
    if len(stored) == num_layers:
        return [stored[layer_id] for layer_id in range(num_layers)]
    probe = _Probe(
        model,
        groups,
        shape,
        num_q_heads=num_q_heads,
        num_tokens=min(NUM_TOKENS, context_len),
        device=device,
    )
    probe.run(vocab_size)
    return [stored.get(layer_id) or probe.scales(layer_id) for layer_id in range(num_layers)]


class _Probe:
    """One prompt over pages in the model's dtype, each KV group with pages of its own."""

    def __init__(
        self,
        model: Model,
        groups: tuple[KVGroup, ...],
        shape: PageShape,
        *,
        num_q_heads: int,
        num_tokens: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._num_tokens = num_tokens
        self._device = device
        num_blocks = -(-num_tokens // shape.block_size)
        self._blocks = [
            list(range(1 + idx * num_blocks, 1 + (idx + 1) * num_blocks))
            for idx in range(len(groups))
        ]
        self._group_of = {id_: idx for idx, group in enumerate(groups) for id_ in group.layer_ids}
        self._cache = KVCache(
            groups,
            shape,
            num_blocks=1 + len(groups) * num_blocks,
            num_host_blocks=0,
            device=device,
        )
        self._table = RequestTable(
            max_num_rows=1,
            max_model_len=num_tokens,
            num_groups=len(groups),
            block_size=shape.block_size,
            device=device,
        )
        self._inputs = InputsBuilder(
            groups,
            num_q_heads=num_q_heads,
            num_kv_heads=shape.num_kv_heads,
            block_size=shape.block_size,
            device=device,
        )

    @torch.inference_mode()
    def run(self, vocab_size: int) -> None:
        num_tokens = self._num_tokens
        self._table.admit(
            AdmittedRow(
                row=0,
                token_ids=[(1 + idx * STRIDE) % vocab_size for idx in range(num_tokens)],
                num_prompt_tokens=num_tokens,
                params=SamplingParams(),
                seed=0,
                block_tables=self._blocks,
            )
        )
        work = RowWork(row=0, start=0, num_tokens=num_tokens, samples=False, phase="prefill")
        inputs = self._inputs.build([work], self._table)
        ropes = RopeTables(self._model.ropes, max_model_len=num_tokens, device=self._device)
        lens = None
        if ropes.needs_seq_lens:
            lens = rotated_lens(inputs, self._table, of_all_known=ropes.turns_whole_sequences)
        context = StepContext(groups=inputs.groups, ropes=ropes.step(inputs.positions, lens))
        self._model.hidden_states(inputs.token_ids, context, self._cache.layers)

    def scales(self, layer_id: int) -> KVScales:
        cache = self._cache.layers[layer_id]
        blocks = torch.tensor(self._blocks[self._group_of[layer_id]], device=self._device)
        return KVScales(_scale(cache.k[blocks]), _scale(cache.v[blocks]))


def _scale(pages: torch.Tensor) -> torch.Tensor:
    """pages[blocks, Hkv, block_size, D] -> [Hkv]; 1 for a head that makes nothing but zeros."""
    largest = pages.float().abs().amax(dim=(0, 2, 3))
    return torch.where(largest > 0, largest * (HEADROOM / PAGE_MAX), torch.ones_like(largest))
