"""Names that quantising tools give to tensors instead of the published ones. Knows no files.

GPTQModel and llm-compressor work on transformers' own modules, which name and split some matrices
otherwise than the checkpoints that model makers publish; the layers know the published names.
"""

import re
from collections.abc import Iterable, Iterator

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.source import SafetensorsSource, TensorInfo

MIXTRAL_EXPERT = re.compile(
    r"(?P<layer>.*)\.(mlp|block_sparse_moe)\.experts\.(?P<expert>\d+)"
    r"\.(?P<matrix>gate_proj|up_proj|down_proj)\.(?P<suffix>.*)"
)
MIXTRAL_MATRICES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
MIXTRAL_ROUTER = re.compile(r"(?P<layer>.*)\.mlp\.gate\.(?P<suffix>.*)")


def published_name(model_type: str, name: str) -> str:
    if model_type != "mixtral":
        return name
    if (found := MIXTRAL_EXPERT.fullmatch(name)) is not None:
        experts = f"{found['layer']}.block_sparse_moe.experts"
        return f"{experts}.{found['expert']}.{MIXTRAL_MATRICES[found['matrix']]}.{found['suffix']}"
    if (found := MIXTRAL_ROUTER.fullmatch(name)) is not None:
        return f"{found['layer']}.block_sparse_moe.gate.{found['suffix']}"
    return name


def has_split_gate_up(names: Iterable[str]) -> bool:
    """Whether gate and up are two matrices, also where the published checkpoint has them as one."""
    return any(".mlp.gate_proj." in name for name in names)


class PublishedNames:
    """A source under the names that the layers know."""

    def __init__(self, source: SafetensorsSource, model_type: str) -> None:
        self._source = source
        self._model_type = model_type

    def onto(self, device: torch.device) -> "PublishedNames":
        """The same source, whose tensors come on a GPU."""
        return PublishedNames(self._source.onto(device), self._model_type)

    def infos(self) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for name, info in self._source.infos().items():
            published = published_name(self._model_type, name)
            if published in found:
                raise CheckpointError(
                    f"{info.file}: tensor {name!r} is there twice, as {published!r}"
                )
            found[published] = info
        return found

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Some tensors ahead of the others."""
        wanted = set(names)
        published = {name: published_name(self._model_type, name) for name in self._source.infos()}
        stored = [name for name in published if published[name] in wanted]
        return {published[name]: tensor for name, tensor in self._source.read(stored).items()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._source.tensors():
            yield published_name(self._model_type, name), tensor
