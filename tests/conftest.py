"""What all test folders share: the small real model. What one area needs lies in its folder."""

from pathlib import Path

import pytest

pytest_plugins = [
    "tests.triton_plugin",
    "tests.logs_plugin",
    "tests.cluster_plugin",
    "tests.skips_plugin",
]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in bfloat16, cached between runs."""
    from tests.tools.smollm2 import smollm2_folder

    return smollm2_folder()


@pytest.fixture(scope="session")
def smollm2_gguf_path() -> Path:
    """The Q4_1 GGUF file that `smollm2_path` is made from."""
    from tests.tools.smollm2 import smollm2_gguf

    return smollm2_gguf()
