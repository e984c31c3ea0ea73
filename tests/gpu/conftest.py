"""Tests that need a GPU: skipped, with the reason, where there is none."""

import gc
from collections.abc import Iterator

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.nodeid:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="torch finds no usable GPU"))


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """An engine of an earlier test, kept by a cycle, would count as this one's weights."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
