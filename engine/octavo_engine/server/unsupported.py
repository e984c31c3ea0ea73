"""The complaint about a known field that asks for what this server does not do."""


class UnsupportedField(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' is not supported by this server")
        self.name = name
