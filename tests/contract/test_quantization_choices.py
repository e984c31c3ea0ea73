"""What `spec.engine.quantization` accepts is what the engine knows."""

from typing import get_args

from octavo_engine.quantization.choose import CHOICES
from octavo_operator.api import EngineSpec


def test_the_api_and_the_engine_know_the_same_ways_of_quantization():
    assert get_args(EngineSpec.model_fields["quantization"].annotation) == CHOICES
