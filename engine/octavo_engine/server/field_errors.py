"""Complaints that validators raise about a field of the object they look at, by its name."""

import json
from typing import Any

_MAX_SHOWN_CHARS = 80


class InvalidField(ValueError):
    """A value that makes no sense, alone or beside the others."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class UnsupportedField(InvalidField):
    """A known field that asks for what this server does not do."""

    def __init__(self, name: str, value: Any, taken: str) -> None:
        """taken: the values, in words, that ask for nothing; empty: there are none."""
        rule = f": leave it out or give {taken}" if taken else ": leave it out"
        super().__init__(name, f"'{name}' {shown(value)} is not supported by this server{rule}")


def shown(value: Any) -> str:
    """As the client wrote it, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."
