"""Runs an architecture that is not in the table: transformers' own modules over our pages.

Slower than the table's decoder (nothing is packed or fused), so its use is logged. What cannot be
followed exactly is refused by name: attention that does not come through, a head that does more
than a product, rotations that depend on a sequence's length.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import structlog
import torch

from octavo_engine.batch import KVGroup
from octavo_engine.errors import CheckpointError
from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.layers.linear import Build
from octavo_engine.model_config import kv_groups
from octavo_engine.models.fallback_attention import (
    HOLDER_NAME,
    INTERFACE_NAME,
    InterceptSdpa,
    LayerAttention,
    LayerFacts,
    register_interface,
)
from octavo_engine.rope import RopeConfig

log = structlog.get_logger(__name__)

CALLS_SDPA_ITSELF = frozenset({"falcon"})
PROBE_IDS = (1, 2, 3)


class _ReachedHead(Exception):
    """Carries the hidden states out of a forward pass, before its head multiplies them."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class FallbackModel:
    """Implements `Model` over a transformers module."""

    def __init__(self, module: Any, *, calls_sdpa: bool) -> None:
        self._module = module
        self._head = module.get_output_embeddings()
        self._attention = LayerAttention()
        self._calls_sdpa = calls_sdpa
        for part in module.modules():
            if hasattr(part, "layer_idx"):
                setattr(part, HOLDER_NAME, self._attention)
        self._head.register_forward_pre_hook(self._leave_before_head)
        self._is_leaving = False
        self._group_of: Mapping[int, int] = {}
        self.facts: Mapping[int, LayerFacts] = {}

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """None: the module rotates by itself."""
        return ()

    def use_groups(self, groups: tuple[KVGroup, ...]) -> None:
        self._group_of = {id_: idx for idx, group in enumerate(groups) for id_ in group.layer_ids}

    def hidden_states(
        self, token_ids: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        self._attention.set_step(context, caches, self._group_of)
        hidden = self._forward(token_ids, context.groups[0].attention.positions)
        # Its modules know one number of tokens for all layers.
        return hidden if context.wanted is None else hidden[context.wanted.tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.narrow_logits(hidden).float()

    def narrow_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(hidden)
        return logits

    def probe(self, num_layers: int) -> None:
        """Records what each layer asks of attention; checks that the module can be followed."""
        ids = torch.tensor(PROBE_IDS, device=self._module.device)
        positions = torch.arange(len(ids), device=ids.device)
        name = type(self._module).__name__
        try:
            with torch.inference_mode():
                hidden = self._forward(ids, positions)
                with self._interception():
                    whole = self._module(**_inputs(ids, positions)).logits[0]
                logits = self._head(hidden)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{name} cannot run over paged attention: {error!r}") from error
        if sorted(self._attention.facts) != list(range(num_layers)):
            raise CheckpointError(
                f"{name}: attention of {len(self._attention.facts)} of its {num_layers} layers "
                "goes through transformers' attention interface, all must"
            )
        if not torch.allclose(whole.float(), logits.float(), rtol=1e-3, atol=1e-3):
            raise CheckpointError(f"{name}: its head changes the logits after the product")
        self.facts = self._attention.facts

    def _forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self._is_leaving = True
        try:
            with self._interception():
                self._module(**_inputs(token_ids.long(), positions))
        except _ReachedHead as reached:
            return reached.hidden[0]
        finally:
            self._is_leaving = False
        raise CheckpointError(f"{type(self._module).__name__} does not use its output embedding")

    def _leave_before_head(self, _: Any, args: tuple[torch.Tensor, ...]) -> None:
        if self._is_leaving:
            raise _ReachedHead(args[0])

    def _interception(self) -> AbstractContextManager[Any]:
        return InterceptSdpa(self._attention) if self._calls_sdpa else nullcontext()


def _inputs(token_ids: torch.Tensor, positions: torch.Tensor) -> dict[str, Any]:
    return {
        "input_ids": token_ids.unsqueeze(0),
        "position_ids": positions.unsqueeze(0),
        "use_cache": False,
    }


def load_fallback(folder: Path, config: Any, build: Build) -> FallbackModel:
    """Loads with transformers, checks by a probe. Raises CheckpointError naming what is wrong."""
    from transformers import AutoModelForCausalLM

    _refuse_length_dependent_rope(config)
    calls_sdpa = config.model_type in CALLS_SDPA_ITSELF
    register_interface()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=build.dtype,
            attn_implementation="sdpa" if calls_sdpa else INTERFACE_NAME,
            output_loading_info=True,
            local_files_only=True,
            use_safetensors=True,
        )
    except Exception as error:  # many kinds; all mean that transformers cannot run this checkpoint
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error
    module, found = loaded
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found.get(problem):
            raise CheckpointError(f"{folder}: {problem}: {sorted(map(str, found[problem]))[:5]}")
    model = FallbackModel(module.to(build.device).eval(), calls_sdpa=calls_sdpa)
    model.probe(config.num_hidden_layers)
    log.warning(
        "transformers_fallback",
        architecture=type(module).__name__,
        text="not one of our own families: its transformers modules run over our paged attention",
    )
    return model


def fallback_groups(model: FallbackModel, max_model_len: int) -> tuple[KVGroup, ...]:
    """KV groups from what layers asked for. Raises CheckpointError for caches of unlike shape."""
    shapes = {(facts.num_kv_heads, facts.head_dim) for facts in model.facts.values()}
    if len(shapes) != 1:
        raise CheckpointError(f"layers cache keys of unlike shapes (heads, dimensions): {shapes}")
    windows = [model.facts[layer_id].window for layer_id in sorted(model.facts)]
    groups = kv_groups([w if w is not None and w < max_model_len else None for w in windows])
    model.use_groups(groups)
    return groups


def _refuse_length_dependent_rope(config: Any) -> None:
    params = getattr(config, "rope_parameters", None) or {}
    nested = [params, *(value for value in params.values() if isinstance(value, dict))]
    for entry in nested:
        if entry.get("rope_type") in ("dynamic", "longrope"):
            raise CheckpointError(
                f"model_type {config.model_type!r} with rope_type {entry['rope_type']!r} is not "
                "supported: its modules rotate a whole batch by its longest sequence"
            )
