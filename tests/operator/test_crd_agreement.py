"""The CRD and the Python types say the same: fields, enums, defaults."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel

from octavo_operator import api, conditions
from octavo_operator.kinds import GROUP, INFERENCE_SERVICE, VERSION


@pytest.fixture(scope="module")
def spec_schema(crd) -> dict[str, Any]:
    version = crd["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def pairs(model: type[BaseModel], schema: dict[str, Any], path: str = "spec"):
    """(path, pydantic model, object schema) of the spec and of every object in it."""
    yield path, model, schema
    for name, field in model.model_fields.items():
        inner = schema["properties"][field.alias or name]
        inner = inner.get("items", inner)
        arguments = get_args(field.annotation) or (field.annotation,)
        for argument in arguments:
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                yield from pairs(argument, inner, f"{path}.{field.alias or name}")


def test_the_names_agree(crd):
    assert crd["spec"]["group"] == GROUP
    assert crd["spec"]["names"]["plural"] == INFERENCE_SERVICE.plural
    assert [version["name"] for version in crd["spec"]["versions"]] == [VERSION]


def test_the_fields_agree(spec_schema):
    seen = [path for path, *_ in pairs(api.Spec, spec_schema)]
    assert "spec.engine.env" in seen, "nested parts are compared too"

    for path, model, schema in pairs(api.Spec, spec_schema):
        ours = {field.alias or name for name, field in model.model_fields.items()}
        assert ours == set(schema["properties"]), path


def test_the_required_fields_agree(spec_schema):
    for path, model, schema in pairs(api.Spec, spec_schema):
        ours = {f.alias or name for name, f in model.model_fields.items() if f.is_required()}
        assert ours == set(schema.get("required", [])), path


def test_the_defaults_agree(spec_schema):
    for path, model, schema in pairs(api.Spec, spec_schema):
        for name, field in model.model_fields.items():
            inner = schema["properties"][field.alias or name]
            if inner.get("type") in ("object", "array") or field.is_required():
                continue
            assert field.default == inner.get("default"), f"{path}.{name}"


def test_the_enums_agree(spec_schema):
    compared = 0
    for path, model, schema in pairs(api.Spec, spec_schema):
        for name, field in model.model_fields.items():
            inner = schema["properties"][field.alias or name]
            if "enum" not in inner:
                continue
            literals = [value for value in _literals(field.annotation) if value is not None]
            assert literals == inner["enum"], f"{path}.{name}"
            compared += 1
    assert compared >= 4


def _literals(annotation: Any) -> list[Any]:
    found: list[Any] = []
    for argument in get_args(annotation):
        found += _literals(argument) if get_args(argument) else [argument]
    return [value for value in found if isinstance(value, str)]


def test_every_field_is_described(crd):
    version = crd["spec"]["versions"][0]

    def walk(path: str, schema: dict[str, Any]):
        for name, inner in schema.get("properties", {}).items():
            if f"{path}.{name}" != ".metadata":
                assert len(inner.get("description", "")) > 10, f"{path}.{name}"
            walk(f"{path}.{name}", inner.get("items", inner))

    walk("", version["schema"]["openAPIV3Schema"])


def test_the_condition_types_are_the_ones_described(crd):
    version = crd["spec"]["versions"][0]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    described = status["properties"]["conditions"]["description"]

    for condition_type in get_args(conditions.ConditionType):
        assert f"{condition_type} (" in described


def test_the_crd_fits_client_side_apply():
    from pathlib import Path

    path = Path(__file__).parents[2] / "crds" / "inferenceservices.yaml"
    assert path.stat().st_size < 64_000


def test_what_kubectl_prints(crd):
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [one["name"] for one in columns if one.get("priority", 0) == 0]

    assert shown[:4] == ["Ready", "Reason", "Replicas", "Available"]
    assert shown[4:] == ["Model", "Quant", "TP", "KV%", "Pending", "URL", "Age"]
    assert [one["name"] for one in columns if one.get("priority", 0)] == ["URI"]
