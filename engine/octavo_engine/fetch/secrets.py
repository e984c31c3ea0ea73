"""The entries of the Secret that is mounted as a folder: one file each, read when asked for."""

from pathlib import Path

from octavo_engine.fetch.errors import SecretMissing


class Secrets:
    def __init__(self, folder: Path | None) -> None:
        """None: the service names no Secret, so the source is asked without one."""
        self._folder = folder

    @property
    def is_given(self) -> bool:
        return self._folder is not None

    def get(self, name: str) -> str | None:
        path = None if self._folder is None else self._folder / name
        if path is None or not path.is_file():
            return None
        return path.read_text(encoding="utf-8").strip()

    def require(self, *names: str) -> dict[str, str]:
        """The values of all names; nothing where no Secret is given. Raises SecretMissing."""
        if self._folder is None:
            return {}
        found = {name: value for name in names if (value := self.get(name))}
        missing = [name for name in names if name not in found]
        if missing:
            raise SecretMissing(
                f"the Secret of spec.model.secretRef lacks {' and '.join(missing)}; it holds "
                f"{', '.join(self._names()) or 'nothing'}"
            )
        return found

    def _names(self) -> list[str]:
        assert self._folder is not None
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if not path.name.startswith("."))
