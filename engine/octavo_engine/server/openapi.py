"""The OpenAPI document: what the routes say of themselves, completed so that tools can use it."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Of a route that parses its body by hand, so that FastAPI does not see it."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def complete_openapi(app: FastAPI, model_names: Sequence[str]) -> None:
    """Moves the definitions of request bodies to where their references point, and names the
    models that can be asked for."""
    made_by_routes = app.openapi

    def openapi() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        document = made_by_routes()
        if is_new:
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for schema in _body_schemas(document):
                schemas.update(schema.pop("$defs", {}))
                if "model" in schema.get("properties", {}):
                    schema["properties"]["model"]["enum"] = list(model_names)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to change it


def _body_schemas(document: dict[str, Any]) -> list[dict[str, Any]]:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    bodies = [operation["requestBody"] for operation in operations if "requestBody" in operation]
    return [body["content"]["application/json"]["schema"] for body in bodies]
