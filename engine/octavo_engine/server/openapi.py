"""The OpenAPI document: what the routes say of themselves, completed so that tools can use it.

Routes parse their bodies by hand, so FastAPI does not see these; their schemas take a third of a
second to make and are made when somebody asks for the document.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel


def complete_openapi(
    app: FastAPI, model_names: Sequence[str], bodies: Mapping[str, type[BaseModel]]
) -> None:
    """Adds the bodies that are posted to each path, and names the models that can be asked for."""
    made_by_routes = app.openapi

    def openapi() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        document = made_by_routes()
        if is_new:
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for path, kind in bodies.items():
                schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schema["properties"]["model"]["enum"] = list(model_names)
                content = {"application/json": {"schema": schema}}
                document["paths"][path]["post"]["requestBody"] = {
                    "required": True,
                    "content": content,
                }
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to change it
