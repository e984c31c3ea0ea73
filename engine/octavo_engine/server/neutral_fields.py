"""Fields that this server knows but cannot honour: taken with a value that asks for nothing."""

from typing import Any, ClassVar

from pydantic import BaseModel, model_validator

from octavo_engine.server.field_errors import UnsupportedField, shown


class NeutralFields(BaseModel):
    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Known fields without effect here, and the values (beside null) that ask for none."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, allowed in cls.neutral_values.items():
            if data.get(name) is not None and data[name] not in allowed:
                raise UnsupportedField(name, data[name], " or ".join(map(shown, allowed)))
        return {name: value for name, value in data.items() if name not in cls.neutral_values}
