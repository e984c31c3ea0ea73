"""Complaints that validators raise about a field of the object they look at, by its name."""


class InvalidField(ValueError):
    """A value that makes no sense, alone or beside the others."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class UnsupportedField(InvalidField):
    """A known field that asks for what this server does not do."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"'{name}' is not supported by this server")
