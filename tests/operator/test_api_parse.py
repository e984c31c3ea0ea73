"""From an object of the API server to Python types."""

import pytest

from octavo_operator import api
from octavo_operator.errors import InvalidService
from octavo_operator.reasons import Reason


def test_absent_fields_get_the_schema_defaults(service_body):
    service = api.parse(service_body())

    assert service.spec.replicas == 1
    assert service.spec.engine.tensor_parallel_size == 1
    assert service.spec.accelerator.resource_name == "nvidia.com/gpu"
    assert service.spec.rollout.drain_seconds == 300


def test_the_name_is_served_where_no_other_is_given(service_body):
    assert api.parse(service_body()).served_name == "chat"


def test_a_served_name_wins_over_the_name(service_body):
    body = service_body({"model": {"uri": "file:///m", "servedName": "org/model"}})

    assert api.parse(body).served_name == "org/model"


def test_accelerators_follow_the_tensor_parallel_size(service_body):
    assert api.parse(service_body({"engine": {"tensorParallelSize": 4}})).accelerator_count == 4


def test_a_cpu_service_asks_for_no_accelerator(service_body):
    body = service_body({"accelerator": {"resourceName": "none"}})

    assert api.parse(body).accelerator_count == 0


def test_an_unknown_field_is_named(service_body):
    with pytest.raises(InvalidService, match=r"spec\.engine\.pages: Extra inputs") as caught:
        api.parse(service_body({"engine": {"pages": 3}}))

    assert caught.value.reason is Reason.INVALID_SPEC


def test_a_wrong_value_is_named(service_body):
    with pytest.raises(InvalidService, match=r"spec\.engine\.quantization: Input should be 'auto'"):
        api.parse(service_body({"engine": {"quantization": "int3"}}))


def test_every_example_can_be_parsed(examples):
    assert sorted(examples)[0] == "01-minimal.yaml"
    for name, body in examples.items():
        metadata = {"namespace": "default", "uid": "u", "generation": 1, **body["metadata"]}
        service = api.parse({**body, "metadata": metadata})
        assert service.name == body["metadata"]["name"], name
