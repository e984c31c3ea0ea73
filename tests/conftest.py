"""What all test folders share: the small real model. What one area needs lies in its folder."""

from pathlib import Path

import pytest
from tests.tools.smollm2 import smollm2_folder, smollm2_gguf

pytest_plugins = ["tests.cluster_plugin", "tests.skips_plugin"]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in bfloat16, cached between runs."""
    return smollm2_folder()


@pytest.fixture(scope="session")
def smollm2_gguf_path() -> Path:
    """The Q4_1 GGUF file that `smollm2_path` is made from."""
    return smollm2_gguf()
