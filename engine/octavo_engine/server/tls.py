"""TLS of the listening port: checked before the start, loaded again when the files change."""

import ssl
from pathlib import Path

import msgspec
import structlog

from octavo_engine.errors import ConfigError

log = structlog.get_logger(__name__)


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    cert_file: Path
    """PEM: the server's certificate, then those that it was signed with."""
    key_file: Path
    client_ca_file: Path | None = None
    """When set, clients must show a certificate that one of these has signed."""


class ServerTls:
    """The context that new connections use, and what it was made from."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises ConfigError that names the files."""
        self._settings = settings
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            self.context.load_cert_chain(settings.cert_file, settings.key_file)
            if settings.client_ca_file is not None:
                self.context.load_verify_locations(settings.client_ca_file)
                self.context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(str(file) for file in self._files())
            raise ConfigError(f"TLS cannot be set up from {files}: {error}") from error
        self._changed_ns = self._change_time_ns()

    def reload_if_changed(self) -> None:
        """New connections get a renewed certificate; one that cannot be read changes nothing."""
        changed_ns = self._change_time_ns()
        if changed_ns in (self._changed_ns, None):
            return
        self._changed_ns = changed_ns
        try:
            self.context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        except OSError as error:
            log.warning("the TLS certificate stays as it was", error=str(error))
        else:
            log.info("TLS certificate read again", file=str(self._settings.cert_file))

    def _files(self) -> list[Path]:
        settings = self._settings
        return [f for f in (settings.cert_file, settings.key_file, settings.client_ca_file) if f]

    def _change_time_ns(self) -> int | None:
        """None while a file is missing, as it may be for a moment when it is replaced."""
        try:
            pair = (self._settings.cert_file, self._settings.key_file)
            return max(file.stat().st_mtime_ns for file in pair)
        except OSError:
            return None
