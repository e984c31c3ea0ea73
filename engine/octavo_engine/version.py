"""The version of the installed distribution."""

from importlib.metadata import version


def octavo_version() -> str:
    return version("octavo")
