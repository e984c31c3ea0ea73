"""The paged-attention engine and its OpenAI server. Knows no Kubernetes.

`LLM` and `SamplingParams` are imported when first asked for: importing the package alone loads
neither torch nor a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo_engine.offline.llm import LLM
    from octavo_engine.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]

_MODULES = {"LLM": "octavo_engine.offline.llm", "SamplingParams": "octavo_engine.sampling_params"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
