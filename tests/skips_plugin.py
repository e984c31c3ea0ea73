"""In CI a skipped test is a failed one, unless it needs a GPU.

A skip that nobody sees is a test that cannot fail. pytest's -ra prints the reasons of the rest.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

MAY_SKIP = ("gpu", "multigpu")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_allowed = any(item.get_closest_marker(name) for name in MAY_SKIP)
    if report.skipped and os.environ.get("CI") == "true" and not is_allowed:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: nothing but GPU tests may be skipped in CI: {reason}"
    return report
