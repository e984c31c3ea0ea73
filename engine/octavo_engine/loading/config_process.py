"""The program that reads a config for `config_ahead`: one question on stdin, one answer on stdout.

A config needs none of what transformers imports beside its config classes where it is installed:
torch with its compiler and sympy, torchvision, scikit-learn, pandas: seven seconds of a cold start.
Here they are hidden, so transformers reads as in an environment without them: the same defaults, a
dtype as its name. Knows no tensor.
"""

import os
import sys
from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.config_file import check_family_entries, parse_config
from octavo_engine.model_config import ModelConfig
from octavo_engine.models.families import build_model_config

HIDDEN = (
    "PIL",
    "accelerate",
    "av",
    "cv2",
    "flax",
    "jax",
    "librosa",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
    "sympy",
    "tensorflow",
    "torch",
    "torchao",
    "torchaudio",
    "torchcodec",
    "torchvision",
)


class Question(msgspec.Struct):
    raw: dict[str, Any]
    """The entries of config.json, of a family of the table."""
    name: str
    """The file, for messages."""


class Answer(msgspec.Struct):
    config: ModelConfig | None = None
    refusal: str = ""
    """Why there is none."""


def hide() -> None:
    """For this process, from now on."""
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # the import system's "there is none"


def answer(question: Question) -> Answer:
    try:
        config = parse_config(question.raw, question.name)
        check_family_entries(question.raw, config, question.name)
        return Answer(build_model_config(config))
    except CheckpointError as error:
        return Answer(refusal=str(error))


def main() -> None:
    hide()
    # "PyTorch was not found" would worry whoever reads the log.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
