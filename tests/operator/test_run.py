"""When the process calls itself unhealthy."""

from dataclasses import dataclass

import pytest

from octavo_operator import run
from octavo_operator.config import OperatorConfig


@dataclass
class Ages:
    """Stands for the Lease and the listing."""

    contact_age_s: float = 0.0
    age_s: float | None = None


@pytest.mark.parametrize(
    ("contact_age_s", "listing_age_s", "problem"),
    [
        (1.0, None, None),
        (1.0, 100.0, None),
        (44.0, None, None),
        (46.0, 1.0, "no answer about the Lease for 46 s"),
        (1.0, 1300.0, "nothing listed anew for 1300 s, limit 1260 s"),
    ],
)
def test_health_is_staleness(engine_defaults, contact_age_s, listing_age_s, problem):
    config = OperatorConfig(engine=engine_defaults)
    ages = Ages(contact_age_s, listing_age_s)

    assert run._staleness(ages, ages, config)() == problem


def test_a_pod_is_the_same_holder_after_a_restart(monkeypatch):
    monkeypatch.setenv("POD_NAME", "octavo-operator-1")

    assert run._identity() == "octavo-operator-1"


def test_processes_outside_a_pod_are_different_holders(monkeypatch):
    monkeypatch.delenv("POD_NAME", raising=False)

    assert run._identity() != run._identity()
