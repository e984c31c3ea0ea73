"""Embedding and head: matrices over the vocabulary, of which each rank has a run of ids.

The last ranks' runs may be padded. A tied head is the embedding itself.
"""

from collections.abc import Iterator

import torch
from torch.nn import functional

from octavo_engine.layers.linear import Build, DenseLinear, make_linear
from octavo_engine.layers.packed import PackedMatrix, pack_for_cpu
from octavo_engine.loading.parts import Part, share_into
from octavo_engine.loading.slots import Slot
from octavo_engine.model_config import ModelConfig
from octavo_engine.parallel.group import with_norm
from octavo_engine.parallel.shares import vocabulary_share
from octavo_kernels.linear_ops import RowNorm, embed_rows, vocabulary_linear

EMBEDDING_NAME = "model.embed_tokens"
HEAD_NAME = "lm_head"


class Vocabulary:
    def __init__(self, config: ModelConfig, build: Build) -> None:
        self._config = config
        self._group = build.group
        self._share = vocabulary_share(config.vocab_size, build.group.rank, build.group.size)
        self.embedding = build.empty(self._share.size, config.hidden_size)
        self.head = None
        if not config.tie_word_embeddings:
            parts = [Part(HEAD_NAME, config.vocab_size, self._share)]
            self.head = make_linear(parts, config.hidden_size, has_bias=False, build=build)
        self._packed_embedding: PackedMatrix | None = None
        scale = torch.tensor(config.embedding_scale, dtype=build.dtype)
        self._embedding_scale = float(scale)

    def embedding_slots(self) -> Iterator[Slot]:
        shape = (self._config.vocab_size, self._config.hidden_size)
        write = share_into(self.embedding, self._share)
        yield Slot(f"{EMBEDDING_NAME}.weight", shape, write)

    def head_slots(self) -> Iterator[Slot]:
        if self.head is not None:
            yield from self.head.slots()

    def optional_names(self) -> frozenset[str]:
        """Tensors that a checkpoint may hold without need: a tied head, saved all the same."""
        return frozenset({f"{HEAD_NAME}.weight"} if self.head is None else ())

    def finish(self) -> None:
        if self.head is not None:
            self.head.finish()
        else:
            self._packed_embedding = pack_for_cpu(self.embedding)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids[T] -> [T, hidden_size]."""
        if self._group.size == 1:
            x = functional.embedding(token_ids, self.embedding)
        else:
            x, _ = self._group.look_up(token_ids, self.embedding)
        return x if self._embedding_scale == 1.0 else x * self._embedding_scale

    def embed_with_norm(
        self, token_ids: torch.Tensor, norm: RowNorm | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(`embed`, the norm of it if one is asked for), in one launch where it can be."""
        if self._group.size == 1:
            return embed_rows(token_ids, self.embedding, self._embedding_scale, norm)
        if self._embedding_scale == 1.0:
            return self._group.look_up(token_ids, self.embedding, norm)
        return with_norm(self.embed(token_ids), norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden[R, hidden_size] -> [R, vocab_size], in hidden's dtype."""
        whole = self._group.all_gather(self._own_logits(hidden))
        vocab_size = self._config.vocab_size
        return whole if whole.shape[1] == vocab_size else whole[:, :vocab_size].contiguous()

    def largest(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden[R, hidden_size] -> [R] int64: the id of each row's largest logit, the first of
        equal ones. Ranks do not bring their logits together for it."""
        # Padding copies the last id's row: the id itself comes first.
        return self._group.largest(self._own_logits(hidden))

    def _own_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the rank's run of ids and its padding."""
        logits = self._own_products(hidden)
        if self._config.logits_divisor != 1.0:
            logits = logits / self._config.logits_divisor
        if (cap := self._config.final_softcap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _own_products(self, hidden: torch.Tensor) -> torch.Tensor:
        if isinstance(self.head, DenseLinear) and self.head.is_plain:
            return vocabulary_linear(hidden, self.head.weight)
        if self.head is not None:
            return self.head(hidden)
        if self._packed_embedding is not None:
            return self._packed_embedding(hidden)
        return vocabulary_linear(hidden, self.embedding)
